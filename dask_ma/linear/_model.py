"""A linear model: parameters of its fit, weights, start, evaluation over the ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dask_ma.data import Shard
from dask_ma.engine import RankContext, Record, RoundLog
from dask_ma.kernels import Loss, chunked_predictions, loss_sums, penalty_value
from dask_ma.supervised import score_sums as sums_of_shard
from dask_ma.supervised._params import ValidationParams
from dask_ma.supervised._problem import Problem
from dask_ma.supervised._scores import score
from dask_ma.supervised._stopping import StopRule


@dataclass(frozen=True, kw_only=True)
class LinearParams(ValidationParams):
    """Parameters that all fits of linear models by SGD share.

    The names are those of the estimators; the rest is listed here.

    Parameters
    ----------
    coef, intercept : ndarray or None
        Model to start from, of shapes (n_problems, n_features) and (n_problems,).
        None starts from zeros, or with the mean of targets that are far from zero.
    t : float
        Number of the first step of each rank, for the learning rate.
    """

    loss: str | Loss
    penalty: str | None
    alpha: float
    l1_ratio: float
    fit_intercept: bool
    max_iter: int
    tol: float | None
    epsilon: float
    n_iter_no_change: int
    coef: np.ndarray | None = field(default=None, repr=False)
    intercept: np.ndarray | None = field(default=None, repr=False)
    t: float = 1.0


@dataclass(frozen=True, kw_only=True)
class RefineParams(LinearParams):
    """Parameters of fits that can be refined to the optimum.

    The names are those of the estimators; the rest is listed here.

    Parameters
    ----------
    is_hasty : bool
        Whether one pass that brings little may be enough for a refinement to begin.
    """

    refine: str | None
    refine_max_iter: int
    refine_tol: float
    is_hasty: bool = False


class LinearModel(NamedTuple):
    """Weights of one or several linear functions.

    Attributes
    ----------
    coef : ndarray of shape (n_problems, n_features)
    intercept : ndarray of shape (n_problems,)
    """

    coef: np.ndarray
    intercept: np.ndarray


def initial_model(problem: Problem, params: LinearParams) -> LinearModel:
    """The model to start from: the one given, or zeros and the level of the problem.

    Parameters
    ----------
    problem : Problem
        What is to be trained.
    params : LinearParams
        Parameters of the fit.

    Returns
    -------
    model : LinearModel
        In the dtype of the problem.

    Raises
    ------
    ValueError
        If the model given has another shape.
    """
    shape = problem.n_problems, problem.shard.n_features
    level = problem.level if params.coef is None else 0.0
    coef, intercept = np.zeros(shape), np.full(shape[0], level)
    if params.coef is not None:
        if params.is_warm and params.coef.shape != shape:
            raise ValueError(
                f"the fitted model has coefficients of shape {params.coef.shape}, but "
                f"these data ask for the shape {shape}; set warm_start=False"
            )
        coef = _shaped(params.coef, shape, "coef_init")
    if params.intercept is not None:
        intercept = _shaped(params.intercept, shape[:1], "intercept_init")
    return LinearModel(coef.astype(problem.dtype), intercept.astype(problem.dtype))


def describe(
    model: LinearModel, problem: Problem, t: float, n_iter: int
) -> dict[str, Any]:
    """The model after a round, with what else a fitted estimator has."""
    return {**model._asdict(), "classes": problem.classes, "t": t, "n_iter": n_iter}


def _shaped(array: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
    """`array` in the given shape; a one-row matrix may come as a vector."""
    array = np.asarray(array)
    if array.size != np.prod(shape) or array.shape[-1:] != shape[-1:]:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    return array.reshape(shape)


_ROUNDING = 1e-9  # of the sum of the local epochs


class Evaluator:
    """Evaluates the model of a round on all ranks' rows.

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
    log : RoundLog
        Where computing is timed.
    every : int, default=1
        Passes from one evaluation to the next; 0 or less for that of the last round
        alone.

    Attributes
    ----------
    epochs : float
        Passes since the last whole one; 0 right after it.
    pending : float
        Passes since the last evaluation that counts.
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
        log: RoundLog,
        every: int = 1,
    ) -> None:
        self._context = context
        self._problem = problem
        self._validation = validation
        self._params = params
        self._log = log
        self.epochs = self.pending = 0.0
        self._every = every if every > 0 else math.inf
        self._counts = self._looks = False
        self.n_worse = 0
        self._start_penalty = self._penalty(start)
        self._start_objective = float("nan")
        with context.span("evaluate"):
            self._start_losses = self._loss_sums(start)

    @property
    def start_objective(self) -> float:
        """Objective of the model that the fit started from, once one was evaluated."""
        return self._start_objective

    def unknown(self, epochs: float) -> dict[str, Any]:
        """What the record of a round has that is not evaluated.

        Parameters
        ----------
        epochs : float
            Local epochs of the round.

        Returns
        -------
        values : dict
        """
        values = {"objective": float("nan"), "local_epochs": float(epochs)}
        if self._validation is not None:
            values["validation_score"] = float("nan")
        return values

    def is_due(self, n_iter: int, epochs: float) -> bool:
        """Take note of a round; return whether its record is to be completed.

        It is once the rows have been gone over since the last time, in the last round,
        and in every round that somebody follows. The model is evaluated then, unless
        that is wanted after more passes: an evaluation costs a tenth of a pass, so one
        for each of many short rounds would cost more than the rounds.

        Parameters
        ----------
        n_iter : int
            Number of the round, from 1.
        epochs : float
            Local epochs of the round.

        Returns
        -------
        is_due : bool
            The same on all ranks.
        """
        self.epochs += epochs
        self.pending += epochs
        is_last = n_iter == self._params.max_iter
        is_whole = is_last or self.epochs >= 1 - _ROUNDING
        if is_whole:
            self.epochs = 0.0
        self._counts = is_last or (is_whole and self.pending >= self._every - _ROUNDING)
        if self._counts:
            self.pending = 0.0
        is_followed = self._context.is_followed
        self._looks = self._counts or (is_followed and self._every == 1)
        return is_whole or is_followed

    def measure(self, model: LinearModel) -> list[np.ndarray]:
        """This rank's parts of an evaluation.

        Parameters
        ----------
        model : LinearModel
            The model of the round.

        Returns
        -------
        parts : list of ndarray
            To be summed over ranks; none where the model is not evaluated.
        """
        if not self._looks:
            return []
        with self._log.computing("evaluate"):
            losses, scores = self._loss_sums(model), np.zeros(0)
            if self._validation is not None:
                scores = score_sums(
                    self._validation, model, is_classifier=self._params.is_classifier
                )
        return [losses, self._start_losses, scores]

    def complete(
        self,
        record: Record,
        sums: list[np.ndarray],
        model: LinearModel,
        *,
        may_diverge: bool = False,
    ) -> None:
        """Set `objective`, and `validation_score`, of a record.

        Parameters
        ----------
        record : dict
            Record of the round.
        sums : list of ndarray
            Sums over ranks of what :meth:`measure` gives.
        model : LinearModel
            The model of the round.
        may_diverge : bool, default=False
            Whether the objective may be infinite, since the caller takes such a round
            back.

        Raises
        ------
        ValueError
            If the objective is not finite, unless it may be.
        """
        if not sums:
            return
        losses, start_losses, scores = sums
        objective = self._objective(losses, self._penalty(model))
        if not (np.isfinite(objective) or may_diverge):
            raise ValueError(
                f"the model is not finite after round {record['round']} (objective "
                f"{objective}); scale the features, or lower eta0"
            )
        record["objective"] = objective
        self._start_objective = self._objective(start_losses, self._start_penalty)
        if self._counts:
            is_worse = objective > self._start_objective
            self.n_worse = self.n_worse + 1 if is_worse else 0
        if self._validation is not None:
            record["validation_score"] = score(
                scores, is_classifier=self._params.is_classifier
            )

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

    def times(self, n_passes: int) -> int:
        """After how many evaluations so many passes have been made."""
        return max(1, math.ceil(n_passes / self._every))

    @property
    def counts(self) -> bool:
        """Whether the last evaluation was due whoever follows the fit."""
        return self._counts

    def _loss_sums(self, model: LinearModel) -> np.ndarray:
        """Weighted sums of the losses on this rank's rows, one per problem."""
        return loss_sums_of(model, self._problem, self._params)

    def _penalty(self, model: LinearModel) -> float:
        """Penalty of the weights without alpha; not finite if they are not."""
        with self._context.span("evaluate"):
            return penalty_of(model, self._params)

    def _objective(self, losses: np.ndarray, penalty: float) -> float:
        """Mean loss plus penalty, averaged over the problems; inf if not finite."""
        objective = float(losses.mean() / self._problem.total_weight)
        objective += self._params.alpha * penalty / len(losses)
        return objective if math.isfinite(objective) else math.inf


def loss_sums_of(
    model: LinearModel, problem: Problem, params: LinearParams
) -> np.ndarray:
    """Weighted sums of the losses of a model on this rank's rows, one per problem.

    Parameters
    ----------
    model : LinearModel
        The model.
    problem : Problem
        With the rows.
    params : LinearParams
        Parameters of the fit.

    Returns
    -------
    sums : ndarray of shape (n_problems,)
    """
    sums = np.zeros(len(model.coef))
    coef = model.coef if model.coef.any() else model.coef[:, :0]
    for block in problem.shard.read():
        sums += loss_sums(
            # Zeros need no look at X.
            block.X if coef.shape[1] else np.empty((len(block.y), 0)),
            block.y,
            block.sample_weight,
            coef,
            model.intercept,
            loss=params.loss,
            epsilon=params.epsilon,
            one_vs_rest=params.is_classifier,
            positive_weight=problem.positive_weight,
        )
    return sums


def penalty_of(model: LinearModel, params: LinearParams) -> float:
    """Penalty of the weights without alpha; not finite if they are not.

    Parameters
    ----------
    model : LinearModel
        The model.
    params : LinearParams
        Parameters of the fit.

    Returns
    -------
    penalty : float
    """
    if params.penalty is None:
        return 0.0 if np.isfinite(model.coef).all() else math.inf
    return float(penalty_value(params.penalty, model.coef, params.l1_ratio))


def score_sums(shard: Shard, model: LinearModel, *, is_classifier: bool) -> np.ndarray:
    """Weighted sums from which the score over all ranks follows.

    Parameters
    ----------
    shard : Shard
        Rows, y encoded.
    model : LinearModel
        The model to score.
    is_classifier : bool
        Whether y holds class codes.

    Returns
    -------
    sums : ndarray of shape (4,)
        As :func:`dask_ma.supervised.score_sums` gives them.
    """
    return sums_of_shard(
        shard,
        lambda X: chunked_predictions(X, model.coef, model.intercept),
        is_classifier=is_classifier,
    )
