"""The record of a round: objective, score, traffic and time over all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from dask_ma.comm import allreduce
from dask_ma.data import Shard
from dask_ma.engine import RankContext, Record
from dask_ma.kernels import loss_sums, penalty_value
from dask_ma.ma._params import FitParams, LinearModel
from dask_ma.ma._problem import Problem
from dask_ma.ma._validation import score, score_sums

_COUNTERS = (
    "n_samples",
    "bytes_sent",
    "bytes_shared",
    "messages_sent",
    "seconds_computing",
    "seconds_waiting",
)


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
    params : FitParams
        Parameters of the fit.
    start : LinearModel
        The model that the fit starts from.
    """

    def __init__(
        self,
        context: RankContext,
        problem: Problem,
        validation: Shard | None,
        params: FitParams,
        start: LinearModel,
    ) -> None:
        self._context = context
        self._problem = problem
        self._validation = validation
        self._params = params
        self._computing = 0.0
        self._counted = np.zeros(len(_COUNTERS))
        self._n_samples = 0
        self._start = start
        self._start_losses = self._loss_sums(start)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Count the time spent inside as time of computing."""
        start = perf_counter()
        try:
            yield
        finally:
            self._computing += perf_counter() - start

    def evaluate(
        self, model: LinearModel, n_iter: int, epochs: float, n_rows: int
    ) -> Record:
        """Evaluate `model`; a collective call.

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

        Returns
        -------
        record : dict
            What the history holds of the round; sums and means over all ranks, so all
            ranks get the same, but for the time.

        Raises
        ------
        ValueError
            If the objective is not finite.
        """
        with self.computing():
            losses = self._loss_sums(model)
            scores = self._score_sums(model)
        parts = [losses, self._start_losses, scores, self._counters(n_rows)]
        sums = allreduce(self._context.group, np.concatenate(parts))
        ends = np.cumsum([len(part) for part in parts[:-1]])
        losses, start_losses, scores, counters = np.split(sums, ends)
        record = self._record(n_iter, epochs, counters)
        record["objective"] = self._objective(losses, model, n_iter)
        self._start_objective = self._objective(start_losses, self._start, 0)
        if self._validation is not None:
            record["validation_score"] = score(
                scores, is_classifier=self._params.is_classifier
            )
        return record

    def criterion(self, record: Record) -> float:
        """The value that decides when to stop."""
        return record["objective" if self._validation is None else "validation_score"]

    def has_gained(self, record: Record) -> bool:
        """Whether the model is better than the one that the fit started from.

        As long as it is not, rounds without progress are SGD's first large steps, not
        convergence. A start without any loss, as the perceptron's, says nothing.
        """
        start = self._start_objective
        return self._validation is not None or not 0 < start < record["objective"]

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
            )
        return sums

    def _score_sums(self, model: LinearModel) -> np.ndarray:
        if self._validation is None:
            return np.zeros(0)
        return score_sums(
            self._validation, model, is_classifier=self._params.is_classifier
        )

    def _counters(self, n_rows: int) -> np.ndarray:
        """What this rank has done since the last round."""
        self._n_samples += n_rows
        counters = self._context.group.counters
        now = np.array(
            [
                self._n_samples,
                counters.bytes_sent,
                counters.bytes_shared,
                counters.messages_sent,
                self._computing,
                counters.seconds_waiting,
            ]
        )
        since = now - self._counted
        self._counted = now
        return since

    def _record(self, n_iter: int, epochs: float, counters: np.ndarray) -> Record:
        """The record without what depends on the model."""
        record: dict[str, Any] = {"round": n_iter, "time": self._context.elapsed()}
        for name, value in zip(_COUNTERS, counters, strict=True):
            is_time = name.startswith("seconds")
            # Times are means over ranks, which run side by side; the rest are sums.
            record[name] = (
                float(value) / self._context.group.size if is_time else int(value)
            )
        record["local_epochs"] = float(epochs)
        return record

    def _objective(self, losses: np.ndarray, model: LinearModel, n_iter: int) -> float:
        """Mean loss plus penalty, averaged over the problems."""
        params = self._params
        penalty = penalty_value(params.penalty, model.coef, params.l1_ratio)
        objective = losses.mean() / self._problem.total_weight
        objective += params.alpha * penalty / len(model.coef)
        if not (np.isfinite(objective) and np.isfinite(model.coef).all()):
            raise ValueError(
                f"the model is not finite after round {n_iter} (objective "
                f"{objective}); scale the features, or lower eta0"
            )
        return float(objective)
