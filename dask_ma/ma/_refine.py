"""L-BFGS on the objective of all ranks (section 5.2.2 of the paper)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from dask_ma.comm import Group, broadcast
from dask_ma.engine import RankContext, Record
from dask_ma.kernels import gradient_sums
from dask_ma.linear import Evaluator, LinearModel, Problem, describe
from dask_ma.ma._aggregation import aggregate
from dask_ma.ma._params import FitParams

#: Losses with a continuous derivative, which L-BFGS needs.
SMOOTH_LOSSES = frozenset(
    {
        "log_loss",
        "squared_hinge",
        "modified_huber",
        "squared_error",
        "huber",
        "squared_epsilon_insensitive",
    }
)

_ROUNDING = 64 * np.finfo(np.float64).eps  # a relative gain that says nothing


class _EndedError(Exception):
    """Rank 0 has had all the evaluations that it may have."""


class Evaluation(NamedTuple):
    """The objective at a point, the same on all ranks.

    Attributes
    ----------
    objective : float
        Mean over the problems.
    gradient : LinearModel
        Of each problem's own objective, of float64.
    records : list of dict
        What the history holds of it.
    """

    objective: float
    gradient: LinearModel
    records: list[Record]


class GradientEvaluator(Evaluator):
    """An evaluator that finds objective and gradient in one pass over the rows."""

    _params: FitParams

    def evaluate_gradient(self, model: LinearModel, n_iter: int) -> Evaluation:
        """Evaluate a model as a round of its own; a collective call.

        Parameters
        ----------
        model : LinearModel
            Of float64.
        n_iter : int
            Number of the round.

        Returns
        -------
        evaluation : Evaluation

        Raises
        ------
        ValueError
            If the objective is not finite.
        """
        with self.computing():
            own = self._gradient_sums(model)
        self._note(n_iter, 1.0, self._problem.shard.n_rows)
        counters = np.concatenate(self.log.counters)
        losses, coef, intercept, counters = aggregate(
            self._context.group, [*own, counters], self._params.aggregation
        )
        alpha = self._params.alpha if self._params.penalty else 0.0
        total = self._problem.total_weight
        gradient = LinearModel(coef / total + alpha * model.coef, intercept / total)
        records = self._finish_records(np.split(counters, len(self.log.counters)))
        objective = self._objective(losses, model, n_iter)
        records[-1]["objective"] = objective
        free = gradient if self._params.fit_intercept else gradient[:1]
        records[-1]["gradient_norm"] = float(
            max(np.abs(part).max(initial=0.0) for part in free)
        )
        return Evaluation(objective, gradient, records)

    def _gradient_sums(
        self, model: LinearModel
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sums over this rank's rows of the losses and of their gradients."""
        losses = np.zeros(len(model.coef))
        coef, intercept = np.zeros(model.coef.shape), np.zeros(model.intercept.shape)
        for block in self._problem.shard.blocks:
            sums = gradient_sums(
                block.X,
                block.y,
                block.sample_weight,
                *model,
                loss=self._params.loss,
                epsilon=self._params.epsilon,
                one_vs_rest=self._params.is_classifier,
            )
            losses += sums.losses
            coef += sums.coef
            intercept += sums.intercept
        return losses, coef, intercept


def refine(
    context: RankContext,
    problem: Problem,
    params: FitParams,
    evaluator: GradientEvaluator,
    model: LinearModel,
    n_iter: int,
    t: float,
) -> tuple[LinearModel, int, bool]:
    """Go on from a model by L-BFGS; a collective call.

    Rank 0 runs SciPy's L-BFGS-B and sends out the points at which it needs objective
    and gradient; all ranks evaluate them. Were each rank to run it for itself, ranks on
    processors of different kinds could round differently, and one would end while the
    others wait for it.

    Parameters
    ----------
    context : RankContext
        This rank.
    problem : Problem
        What is to be trained.
    params : FitParams
        Parameters of the fit.
    evaluator : GradientEvaluator
        What has evaluated the rounds so far.
    model : LinearModel
        Where to start.
    n_iter : int
        Rounds so far.
    t : float
        Place in the schedule of the learning rate, which stays as it is.

    Returns
    -------
    model : LinearModel
        The best one evaluated, in the dtype of `model`; the same on all ranks.
    n_iter : int
        Rounds so far, of which each evaluation is one.
    converged : bool
        Whether the gradient is as small as asked for.
    """
    points = Points(context, problem, params, evaluator, model, n_iter, t)
    group = context.group
    if group.rank == 0:
        converged = _minimize(points, params)
        broadcast(group, (None, converged))
    else:
        point, converged = broadcast(group)
        while point is not None:
            points.evaluate(point)
            point, converged = broadcast(group)
    return points.best, points.n_iter, converged or points.is_ended


def _minimize(points: Points, params: FitParams) -> bool:
    """Run SciPy's L-BFGS on rank 0; return whether it has converged."""
    try:
        result = minimize(
            points.send_and_evaluate,
            points.start,
            method="L-BFGS-B",
            jac=True,
            options={
                "gtol": params.refine_tol,
                "ftol": _ROUNDING,
                # The count of evaluations is kept by `points`.
                "maxiter": params.refine_max_iter,
                "maxfun": params.refine_max_iter + 1,
            },
        )
    except _EndedError:
        return False
    return bool(result.success)


class Points:
    """The points of the refinement, as vectors of all problems' weights.

    Parameters
    ----------
    context, problem, params, evaluator, model, n_iter, t
        As in :func:`refine`.

    Attributes
    ----------
    start : ndarray of float64, shape (n_weights,)
        The first point: coefficients, then intercepts if they are fitted.
    best : LinearModel
        The model with the lowest objective.
    n_iter : int
        Rounds so far.
    is_ended : bool
        Whether somebody who follows the fit wants it to end.
    """

    def __init__(
        self,
        context: RankContext,
        problem: Problem,
        params: FitParams,
        evaluator: GradientEvaluator,
        model: LinearModel,
        n_iter: int,
        t: float,
    ) -> None:
        self.best = model
        self.n_iter = n_iter
        self.is_ended = False
        self._group: Group = context.group
        self._context = context
        self._problem = problem
        self._fit_intercept = params.fit_intercept
        self._evaluator = evaluator
        self._first = model
        self._t = t
        self._last_iter = n_iter + params.refine_max_iter
        self._lowest = np.inf
        self.start = self._to_vector(model)

    def send_and_evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Have all ranks evaluate a point; rank 0 calls this."""
        if self.is_ended or self.n_iter == self._last_iter:
            raise _EndedError
        broadcast(self._group, (point, False))
        return self.evaluate(point)

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Sum of the problems' objectives at a point, and its gradient."""
        self.n_iter += 1
        exact = self._to_model(point)
        found = self._evaluator.evaluate_gradient(exact, self.n_iter)
        model = LinearModel(
            *(
                array.astype(first.dtype)
                for array, first in zip(exact, self._first, strict=True)
            )
        )
        if found.objective < self._lowest:
            self._lowest, self.best = found.objective, model
        for record in found.records:
            fitted = describe(self.best, self._problem, self._t, self.n_iter)
            self.is_ended = self._context.record(record, fitted)
        # The problems have nothing in common: with their sum instead of their mean,
        # each has the gradient that it has alone.
        return found.objective * len(model.coef), self._to_vector(found.gradient)

    def _to_vector(self, model: LinearModel) -> np.ndarray:
        parts = [model.coef.ravel()]
        if self._fit_intercept:
            parts.append(model.intercept)
        return np.concatenate(parts).astype(np.float64, copy=False)

    def _to_model(self, point: np.ndarray) -> LinearModel:
        """The model at a point; it shares no memory with the point."""
        coef = self._first.coef
        intercept = self._first.intercept.astype(np.float64)
        if self._fit_intercept:
            intercept = np.array(point[coef.size :])
        return LinearModel(np.array(point[: coef.size]).reshape(coef.shape), intercept)
