"""Model averaging as each rank carries it out (Algorithms 3 and 4 of the paper)."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import weighted_mean
from dask_ma.engine import RankContext
from dask_ma.linear import (
    Evaluator,
    FitResult,
    LinearModel,
    Problem,
    StopRule,
    agree_on_problem,
    describe,
    hold_out,
    initial_model,
)
from dask_ma.ma._params import FitParams
from dask_ma.ma._schedule import Sizes, local_epochs
from dask_ma.ma._solver import LocalSGD

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
    epochs = local_epochs(params.local_epochs, sizes_of(problem, group.size))
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


def merge(context: RankContext, own: LinearModel, problem: Problem) -> LinearModel:
    """Average the ranks' models, weighted by the weights of their rows."""
    return LinearModel(
        *weighted_mean(
            context.group, list(own), problem.weight, total=problem.total_weight
        )
    )


def sizes_of(problem: Problem, n_ranks: int) -> Sizes:
    """Sizes that decide how often to merge."""
    return Sizes(
        n_ranks=n_ranks,
        n_rows=problem.total_rows,
        n_stored=problem.total_stored,
        n_problems=problem.n_problems,
        n_features=problem.shard.n_features,
    )


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
