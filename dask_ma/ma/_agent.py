"""Model averaging as each rank carries it out (Algorithms 3 and 4 of the paper)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dask_ma.comm import weighted_mean
from dask_ma.data import Shard
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
from dask_ma.ma._mean import RunningMean
from dask_ma.ma._params import FitParams
from dask_ma.ma._progress import Progress
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
    group, state = context.group, context.restore()
    if state is not None:
        # Rows that were lost may have been the only ones of their class.
        params = replace(params, classes=state.shared["classes"])
    problem = agree_on_problem(group, arguments, params)
    problem, validation = hold_out(context, problem, params)
    epochs = local_epochs(params.local_epochs, sizes_of(problem, group.size))
    now = begin(context, problem, validation, params)
    if state is not None:
        now.go_on(state, epochs)
    solver, evaluator, output = now.solver, now.evaluator, now.mean.current(now.model)
    while now.n_iter < params.max_iter and not now.stop:
        now.n_iter += 1
        with evaluator.computing():
            own, n_rows = solver.run(now.model, epochs)
        now.model = merge(context, own, problem)
        output = now.mean.update(now.model, epochs)
        wanted = False
        for record in evaluator.evaluate(output, now.n_iter, epochs, n_rows):
            fitted = describe(output, problem, solver.t, now.n_iter)
            wanted = context.record(record, fitted)
            now.stop = evaluator.is_done(record, now.rule)
        if (
            now.stop
            and params.learning_rate == "adaptive"
            and now.eta / _SHRINK > _SMALLEST_STEP
        ):
            now.set_step_size(now.eta / _SHRINK)
            now.rule.restart()
            now.stop = False
        now.stop = now.stop or wanted
        now.keep(context, problem, params.max_iter)
    t = weighted_mean(
        group, np.array(solver.t), problem.weight, total=problem.total_weight
    )
    fitted = describe(output, problem, float(t), now.n_iter)
    return FitResult(fitted, converged=now.stop, history=context.history)


def begin(
    context: RankContext,
    problem: Problem,
    validation: Shard | None,
    params: FitParams,
) -> Progress:
    """Where a fit stands before its first round."""
    model, size = initial_model(problem, params), context.group.size
    return Progress(
        model=model,
        mean=RunningMean(params.average, problem.total_rows),
        solver=LocalSGD(problem.shard, problem.n_problems, params, context.seed, size),
        rule=StopRule(
            params.tol, params.n_iter_no_change, maximize=params.early_stopping
        ),
        evaluator=Evaluator(context, problem, validation, params, model),
        eta=params.eta0,
    )


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
