"""Model averaging as each rank carries it out (Algorithms 3 and 4 of the paper)."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import weighted_mean
from dask_ma.engine import RankContext
from dask_ma.ma._evaluation import Evaluator
from dask_ma.ma._params import FitParams, FitResult, LinearModel
from dask_ma.ma._problem import Problem, agree_on_problem
from dask_ma.ma._schedule import local_epochs
from dask_ma.ma._solver import LocalSGD
from dask_ma.ma._stopping import StopRule
from dask_ma.ma._validation import hold_out

_SMALLEST_STEP = 1e-6  # where scikit-learn's adaptive step size ends, too
_SHRINK = 5.0  # and how it gets there


def train(context: RankContext, arguments: Any, params: FitParams) -> FitResult:
    """Train a linear model on the rows of all ranks.

    In each round every rank runs SGD over its own rows, starting from the merged model;
    then the models are averaged, weighted by the weights of the ranks' rows.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : FitParams
        Parameters of the fit.

    Returns
    -------
    result : FitResult
        The same on every rank, but for the history, which rank 0 keeps.
    """
    group = context.group
    problem = agree_on_problem(group, arguments, params)
    problem, validation = hold_out(context, problem, params)
    solver = LocalSGD(
        problem.shard, problem.n_problems, params, context.seed, group.size
    )
    rule = StopRule(params.tol, params.n_iter_no_change, maximize=params.early_stopping)
    model = output = initial_model(problem, params)
    evaluator = Evaluator(context, problem, validation, params, model)
    mean = RunningMean(params.average, problem.total_rows)
    epochs = local_epochs(params.local_epochs, problem.sizes(group.size))
    n_iter, stop, eta = 0, False, params.eta0
    while n_iter < params.max_iter and not stop:
        n_iter += 1
        with evaluator.computing():
            own, n_rows = solver.run(model, epochs)
        model = merge(context, own, problem)
        output = mean.update(model, epochs)
        wanted = False
        for record in evaluator.evaluate(output, n_iter, epochs, n_rows):
            fitted = describe(output, problem, solver.t, n_iter)
            wanted = context.record(record, fitted)
            stop = evaluator.is_done(record, rule)
        if (
            stop
            and params.learning_rate == "adaptive"
            and eta / _SHRINK > _SMALLEST_STEP
        ):
            eta /= _SHRINK
            solver.set_step_size(eta)
            rule.restart()
            stop = False
        stop = stop or wanted
    t = weighted_mean(
        group, np.array(solver.t), problem.weight, total=problem.total_weight
    )
    fitted = describe(output, problem, float(t), n_iter)
    return FitResult(fitted, converged=stop, history=context.history)


def describe(
    model: LinearModel, problem: Problem, t: float, n_iter: int
) -> dict[str, Any]:
    """The model after a round, with what else a fitted estimator has."""
    return {**model._asdict(), "classes": problem.classes, "t": t, "n_iter": n_iter}


def merge(context: RankContext, own: LinearModel, problem: Problem) -> LinearModel:
    """Average the ranks' models, weighted by the weights of their rows."""
    return LinearModel(
        *weighted_mean(
            context.group, list(own), problem.weight, total=problem.total_weight
        )
    )


def initial_model(problem: Problem, params: FitParams) -> LinearModel:
    """The model to start from: the one given, or zeros."""
    shape = problem.n_problems, problem.shard.n_features
    coef, intercept = np.zeros(shape), np.zeros(shape[0])
    if params.coef is not None:
        coef = _shaped(params.coef, shape, "coef_init")
    if params.intercept is not None:
        intercept = _shaped(params.intercept, shape[:1], "intercept_init")
    return LinearModel(coef.astype(problem.dtype), intercept.astype(problem.dtype))


def _shaped(array: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
    """`array` in the given shape; a one-row matrix may come as a vector."""
    array = np.asarray(array)
    if array.size != np.prod(shape) or array.shape[-1:] != shape[-1:]:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    return array.reshape(shape)


class RunningMean:
    """Mean of the merged models with polynomially growing weights.

    The models of late rounds are better, so the weight of round `t` of the mean grows
    like ``t**3`` (polynomial-decay averaging, O. Shamir and T. Zhang, "Stochastic
    gradient descent for non-smooth optimization", ICML 2013, section 4).

    Parameters
    ----------
    average : bool or int
        False: no mean, the last model counts. Otherwise the mean begins with the round
        in which the ranks together have seen this many rows.
    total_rows : int
        Rows of all ranks.
    """

    _DEGREE = 3

    def __init__(self, average: bool | int, total_rows: int) -> None:
        self._start = float(average) / total_rows if average else np.inf
        self._epochs = 0.0
        self._rounds = 0
        self._mean: LinearModel | None = None

    def update(self, model: LinearModel, epochs: float) -> LinearModel:
        """Take the model of a round; return the mean so far, or the model itself."""
        self._epochs += epochs
        if self._epochs < self._start:
            return model
        self._rounds += 1
        if self._mean is None:
            self._mean = model
        share = (self._DEGREE + 1) / (self._rounds + self._DEGREE)
        self._mean = LinearModel(
            *(a + (b - a) * share for a, b in zip(self._mean, model, strict=True))
        )
        return self._mean
