"""The record of a round: objective, score, traffic and time over all ranks."""

from __future__ import annotations

import numpy as np

from dask_ma.comm import allreduce
from dask_ma.data import Shard
from dask_ma.engine import RankContext, Record, RoundLog
from dask_ma.kernels import loss_sums, penalty_value
from dask_ma.linear._params import LinearModel, LinearParams
from dask_ma.linear._scores import score_sums
from dask_ma.supervised._problem import Problem
from dask_ma.supervised._scores import score
from dask_ma.supervised._stopping import StopRule

_ROUNDING = 1e-9  # of the sum of the local epochs


class Evaluator:
    """Evaluates the model of a round on all ranks' rows and adds up their counters.

    Parameters
    ----------
    context : RankContext
        This rank.
    problem : Problem
        The rows to train on.
    validation : Shard or None
        The rows held out.
    params : LinearParams
        Parameters of the fit.
    start : LinearModel
        The model that the fit starts from.

    Attributes
    ----------
    log : RoundLog
        The records of the rounds.
    n_worse : int
        How many evaluations in a row that count have found a model that is worse than
        the one that the fit starts from.
    """

    def __init__(
        self,
        context: RankContext,
        problem: Problem,
        validation: Shard | None,
        params: LinearParams,
        start: LinearModel,
    ) -> None:
        self._context = context
        self._problem = problem
        self._validation = validation
        self._params = params
        self.log = RoundLog(context)
        self.computing = self.log.computing
        self._epochs = 0.0
        self._counts = False
        self.n_worse = 0
        self._start = start
        self._start_objective = float("nan")
        with context.span("evaluate"):
            self._start_losses = self._loss_sums(start)

    @property
    def epochs(self) -> float:
        """Passes since the last evaluation that counts; 0 right after one."""
        return self._epochs

    @epochs.setter
    def epochs(self, value: float) -> None:
        self._epochs = value

    @property
    def start_objective(self) -> float:
        """Objective of the model that the fit started from, once one was evaluated."""
        return self._start_objective

    def evaluate(
        self,
        model: LinearModel,
        n_iter: int,
        epochs: float,
        n_rows: int,
        *,
        may_diverge: bool = False,
    ) -> list[Record]:
        """Note a round, and evaluate its model if that is due; a collective call.

        It is due once the rows have been gone over since the last time, in the last
        round, and in every round that somebody follows: an evaluation costs a tenth of
        a pass, so one for each of many short rounds would cost more than the rounds.

        Parameters
        ----------
        model : LinearModel
            The model of the round.
        n_iter : int
            Number of the round, from 1.
        epochs : float
            Local epochs of the round.
        n_rows : int
            Rows that this rank has gone over in it.
        may_diverge : bool, default=False
            Whether the objective may be infinite, since the caller takes such a round
            back.

        Returns
        -------
        records : list of dict
            What the history holds of the rounds since the last evaluation; the last one
            has the objective, the others have NaN. Empty if no evaluation is due. All
            ranks get the same, but for the times.

        Raises
        ------
        ValueError
            If the objective is not finite, unless it may be.
        """
        self._note(n_iter, epochs, n_rows)
        self._epochs += epochs
        is_last = n_iter == self._params.max_iter
        self._counts = is_last or self._epochs >= 1 - _ROUNDING
        if not (self._counts or self._context.is_followed):
            return []
        if self._counts:
            self._epochs = 0.0
        with self.computing("evaluate"):
            losses = self._loss_sums(model)
            scores = self._score_sums(model)
        parts = [losses, self._start_losses, scores, *self.log.counters]
        sums = allreduce(self._context.group, np.concatenate(parts))
        ends = np.cumsum([len(part) for part in parts[:-1]])
        losses, start_losses, scores, *counters = np.split(sums, ends)
        records = self._finish_records(counters)
        objective = self._objective(losses, model)
        if not (np.isfinite(objective) or may_diverge):
            raise ValueError(
                f"the model is not finite after round {n_iter} (objective "
                f"{objective}); scale the features, or lower eta0"
            )
        records[-1]["objective"] = objective
        self._start_objective = self._objective(start_losses, self._start)
        if self._counts:
            is_worse = objective > self._start_objective
            self.n_worse = self.n_worse + 1 if is_worse else 0
        if self._validation is not None:
            records[-1]["validation_score"] = score(
                scores, is_classifier=self._params.is_classifier
            )
        return records

    def is_done(self, record: Record, rule: StopRule) -> bool:
        """Whether the fit has converged with the round of a record.

        A model that is worse than the one the fit started from has not: rounds without
        progress are SGD's first large steps then. A start without any loss, as the
        perceptron's, says nothing.
        """
        objective, start = record["objective"], self._start_objective
        # To be followed must not change a fit: what is evaluated for that alone does
        # not count.
        if np.isnan(objective) or not self._counts:
            return False
        if self._validation is not None:
            return rule.update(record["validation_score"])
        return rule.update(objective) and not 0 < start < objective

    @property
    def counts(self) -> bool:
        """Whether the last evaluation was due whoever follows the fit."""
        return self._counts

    def _loss_sums(self, model: LinearModel) -> np.ndarray:
        """Weighted sums of the losses on this rank's rows, one per problem."""
        sums = np.zeros(len(model.coef))
        coef = model.coef if model.coef.any() else model.coef[:, :0]
        for block in self._problem.shard.blocks:
            sums += loss_sums(
                # Zeros need no look at X.
                block.X if coef.shape[1] else np.empty((len(block.y), 0)),
                block.y,
                block.sample_weight,
                coef,
                model.intercept,
                loss=self._params.loss,
                epsilon=self._params.epsilon,
                one_vs_rest=self._params.is_classifier,
                positive_weight=self._problem.positive_weight,
            )
        return sums

    def _score_sums(self, model: LinearModel) -> np.ndarray:
        if self._validation is None:
            return np.zeros(0)
        return score_sums(
            self._validation, model, is_classifier=self._params.is_classifier
        )

    def _note(self, n_iter: int, epochs: float, n_rows: int) -> None:
        """Keep what this rank has done since the last round."""
        objective = float("nan")
        self.log.note(n_iter, n_rows, objective=objective, local_epochs=float(epochs))

    def _finish_records(self, counters: list[np.ndarray]) -> list[Record]:
        """The records kept so far, with the counters of all ranks."""
        records = self.log.finish(counters)
        if self._validation is not None:
            for record in records:
                record["validation_score"] = float("nan")
        return records

    def _objective(self, losses: np.ndarray, model: LinearModel) -> float:
        """Mean loss plus penalty, averaged over the problems; inf if not finite."""
        params = self._params
        with self._context.span("evaluate"):
            penalty = penalty_value(params.penalty, model.coef, params.l1_ratio)
            objective = losses.mean() / self._problem.total_weight
            objective += params.alpha * penalty / len(model.coef)
            is_finite = np.isfinite(objective) and np.isfinite(model.coef).all()
        return float(objective) if is_finite else float("inf")
