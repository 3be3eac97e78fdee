"""Model averaging as each rank carries it out (Algorithms 2 to 4 of the paper)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dask_ma.comm import weighted_mean
from dask_ma.data import Shard, join_shard
from dask_ma.engine import RankContext
from dask_ma.linear import Evaluator, describe, initial_model
from dask_ma.ma._paradigm import Gradients
from dask_ma.ma.sgd._finish import finish, is_in_vain, is_refined
from dask_ma.ma.sgd._mean import RunningMean
from dask_ma.ma.sgd._paradigms import Paradigm, SendGradient, SendModel
from dask_ma.ma.sgd._params import FitParams
from dask_ma.ma.sgd._progress import Progress
from dask_ma.ma.sgd._schedule import Sizes, local_epochs
from dask_ma.ma.sgd._solver import LocalSGD
from dask_ma.ma.sgd._steps import balanced_steps, steps_of
from dask_ma.ma.sgd._trial import Shrinking, find_steps
from dask_ma.supervised import FitResult, Problem, StopRule, agree_on_problem, hold_out

_SMALLEST_STEP = 1e-6  # where scikit-learn's adaptive step size ends, too
_SHRINK = 5.0  # and how it gets there


def train(context: RankContext, arguments: Any, params: FitParams) -> FitResult:
    """Train a linear model on the rows of all ranks.

    A round takes all ranks from one common model to the next, as the paradigm has it.
    What the rounds end with is refined if that is asked for, or needed.

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
        The same on every rank, but for the times in the history and the timeline, which
        rank 0 has.
    """
    group, state, size = context.group, context.restore_state(), context.group.size
    if state is not None:
        # Rows that were lost may have been the only ones of their class.
        params = replace(params, classes=state.shared["classes"])
    problem = agree_on_problem(group, arguments, params, one_vs_rest=True)
    problem, validation = hold_out(context, problem, params)
    # What is done once per block costs a look at all coefficients.
    problem = replace(problem, shard=join_shard(problem.shard, params.join_limit))
    now = begin(context, problem, validation, params)
    if state is not None:
        now.load_state_dict(state)
    elif params.is_balanced and params.max_iter > 0:
        if params.eta is None:
            now.set_steps(find_steps(context, problem, params, now.model))
        else:
            now.set_steps(balanced_steps(params, params.eta, params.t))
    paradigm, evaluator = now.paradigm, now.evaluator
    epochs, output, wanted = paradigm.epochs, now.mean.current(now.model), False
    while now.n_iter < params.max_iter and not now.stop and not now.n_refined:
        now.n_iter += 1
        now.model, n_rows = paradigm.round(
            now.model, evaluator.computing, is_last=now.n_iter == params.max_iter
        )
        output = now.mean.update(now.model, epochs)
        for record in evaluator.evaluate(output, now.n_iter, epochs, n_rows):
            fitted = describe(output, problem, paradigm.t, now.n_iter)
            wanted = context.record(record, fitted)
            now.stop = evaluator.is_done(record, now.rule)
            now.stop = now.stop or is_in_vain(params, evaluator)
            value, start = record["objective"], evaluator.start_objective
            if params.is_balanced and evaluator.counts and not np.isnan(value):
                if now.shrinking.update(value, start):
                    now.set_steps(now.steps.halved(mean_t(problem, params, now, size)))
        shrunk = now.steps.scale / _SHRINK
        if now.stop and params.learning_rate == "adaptive" and shrunk > _SMALLEST_STEP:
            now.set_steps(replace(now.steps, scale=shrunk))
            now.rule.restart()
            now.stop = False
        now.stop, now.converged = now.stop or wanted, wanted
        is_last = now.stop or now.n_iter == params.max_iter
        done = is_last and (wanted or not is_refined(params))
        now.keep(context, problem, done=done)
    t = weighted_mean(
        group, np.array(paradigm.t), problem.weight, total=problem.total_weight
    )
    n_iter, converged = now.n_iter, now.stop
    if is_refined(params) and not wanted:
        outcome = finish(context, problem, params, now, output, float(t))
        output, n_iter, converged = outcome
    fitted = describe(output, problem, float(t), n_iter)
    if params.average:
        fitted["mean_of"] = (*now.model, *now.mean.counts)
    if params.is_balanced and params.max_iter > 0:
        fitted["eta"] = now.steps.at(float(t))
    return FitResult(
        fitted, converged, context.history, context.timeline(), notes_on(problem)
    )


def notes_on(problem: Problem) -> tuple[str, ...]:
    """What the user is to know of the rows."""
    if problem.uneven is None:
        return ()
    advice = (
        "; models trained on them alone differ so much that their mean needs many more "
        "rounds. shuffle='ranks' deals the rows out, for which nearly all of them move "
        "to another worker once"
    )
    return (problem.uneven + advice,)


def begin(
    context: RankContext,
    problem: Problem,
    validation: Shard | None,
    params: FitParams,
) -> Progress:
    """Where a fit stands before its first round."""
    model = initial_model(problem, params)
    mean = RunningMean(params.average, problem.total_rows)
    if params.mean is not None:
        coef, intercept, *counts = params.mean
        mean.load_state_dict(coef, intercept, np.array(counts))
    return Progress(
        model=model,
        mean=mean,
        paradigm=make_paradigm(context, problem, params),
        rule=StopRule(
            params.tol,
            params.n_iter_no_change,
            maximize=params.early_stopping,
            is_relative=not params.early_stopping,
        ),
        evaluator=Evaluator(context, problem, validation, params, model),
        steps=steps_of(params),
        shrinking=Shrinking(),
    )


def mean_t(problem: Problem, params: FitParams, now: Progress, n_ranks: int) -> float:
    """Place in the schedule of a rank with the mean number of rows."""
    epochs = now.n_iter * now.paradigm.epochs
    return params.t + epochs * problem.total_rows / n_ranks


def make_paradigm(
    context: RankContext, problem: Problem, params: FitParams
) -> Paradigm:
    """What a round is to be."""
    if isinstance(params.paradigm, Gradients):
        return SendGradient(context, problem, params, params.paradigm)
    size = context.group.size
    solver = LocalSGD(
        problem.shard,
        problem.n_problems,
        params,
        context.seed,
        size,
        problem.positive_weight,
    )
    epochs = local_epochs(
        params.local_epochs, sizes_of(problem, size, params.link_bandwidth)
    )
    return SendModel(context, problem, params, solver, epochs)


def sizes_of(problem: Problem, n_ranks: int, link_bandwidth: float) -> Sizes:
    """Sizes that decide how often to merge."""
    return Sizes(
        n_ranks=n_ranks,
        n_rows=problem.total_rows,
        n_stored=problem.total_stored,
        n_problems=problem.n_problems,
        n_features=problem.shard.n_features,
        link_bandwidth=link_bandwidth,
    )
