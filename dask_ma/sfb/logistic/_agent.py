"""A logistic regression as each rank fits it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dask_ma.engine import RankContext
from dask_ma.sfb.logistic._fit import Fit
from dask_ma.sfb.logistic._params import SFBParams
from dask_ma.supervised import FitResult, Problem, agree_on_problem, hold_out

_ROUNDING = 1e-6


def train(context: RankContext, arguments: Any, params: SFBParams) -> FitResult:
    """Fit a logistic regression to the rows of all ranks.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : SFBParams
        Parameters of the fit.

    Returns
    -------
    result : FitResult
        The same on every rank, but for the history, which rank 0 keeps.
    """
    kept = context.restore_state()
    if kept is not None:
        # Rows that were lost may have been the only ones of their class.
        params = replace(params, classes=kept.shared["classes"])
    problem = agree_on_problem(context.group, arguments, params)
    problem, validation = hold_out(context, problem, params)
    problem = with_mean_weight(problem)
    fit = Fit(context, problem, validation, params, kept)
    n_iter, stop = 0, False
    if kept is not None:
        n_iter, stop = kept.round, bool(kept.shared["stop"])
    while n_iter < params.max_iter and not stop:
        n_iter += 1
        record, done = fit.run_pass(n_iter)
        wanted = context.record(record, fit.describe(n_iter))
        stop = done or wanted
        is_last = stop or n_iter == params.max_iter
        shared = {**fit.state_dict(), "classes": problem.classes, "stop": stop}
        context.save_state(n_iter, shared, fit.own_state(), done=is_last)
    fit.finish(stop)
    fitted = fit.describe(n_iter)
    fitted["communication"] = fit.engine.communication
    return FitResult(fitted, stop, context.history, context.timeline())


def with_mean_weight(problem: Problem) -> Problem:
    """The same problem with weights whose mean is 1, where rows were held out."""
    factor = problem.total_rows / problem.total_weight
    if abs(factor - 1) < _ROUNDING:
        return problem
    blocks = [
        block._replace(sample_weight=block.sample_weight * block.X.dtype.type(factor))
        for block in problem.shard.blocks
    ]
    return replace(
        problem,
        shard=replace(problem.shard, blocks=blocks),
        weight=problem.weight * factor,
        total_weight=float(problem.total_rows),
    )
