"""Butterfly mixing as each rank carries it out (Algorithm 2 of the paper)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dask_ma.butterfly._batch_size import (
    TimeModel,
    fit_time_model,
    rounded,
    usual_batch_size,
)
from dask_ma.butterfly._control import StepControl
from dask_ma.butterfly._finish import finish, is_in_vain, is_refined
from dask_ma.butterfly._params import ButterflyParams
from dask_ma.butterfly._progress import Plan, Progress, replica_of, resume
from dask_ma.butterfly._state import RankState, stack, unstack
from dask_ma.butterfly._steps import (
    make_preconditioner,
    make_rule,
    rows_of_largest_rank,
    run_steps,
    sum_moments,
)
from dask_ma.comm import Group, weighted_mean
from dask_ma.engine import RankContext, Record, State
from dask_ma.linear import Evaluator, LinearModel, initial_model
from dask_ma.supervised import (
    FitResult,
    Problem,
    StopRule,
    agree_on_problem,
    hold_out,
    pass_batches,
    pass_generator,
)


def train(context: RankContext, arguments: Any, params: ButterflyParams) -> FitResult:
    """Train a linear model on the rows of all ranks.

    In each step every rank updates its weights by the gradient of a batch of its own
    rows, and averages them with those of a partner. The model is the mean over ranks.
    A pass that has made it worse is taken back, and the next one makes shorter steps.
    What the passes end with is refined if that is asked for, or needed.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : ButterflyParams
        Parameters of the fit.

    Returns
    -------
    result : FitResult
        The same on every rank, but for the history, which rank 0 keeps.
    """
    kept = context.restore_state(replica_of)
    if kept is not None:
        # Rows that were lost may have been the only ones of their class.
        params = replace(params, classes=kept.shared["classes"])
    problem = agree_on_problem(context.group, arguments, params, one_vs_rest=True)
    problem, validation = hold_out(context, problem, params)
    model = initial_model(problem, params)
    evaluator = Evaluator(context, problem, validation, params, model)
    now = begin(context, problem, params, evaluator, model, kept)
    wanted = False
    while now.state.n_passes < params.max_iter and not now.stop and not now.n_refined:
        record = run_pass(context, problem, params, now)
        wanted = context.record(record, now.describe(problem))
        is_done = now.control.may_stop and evaluator.is_done(record, now.rule)
        now.stop = is_done or wanted or is_in_vain(params, now)
        now.converged = wanted
        is_last = now.stop or now.state.n_passes == params.max_iter
        now.keep(context, problem, done=is_last and (wanted or not is_refined(params)))
    converged = now.stop
    if is_refined(params) and not wanted:
        outcome = finish(context, problem, params, now)
        now.model, converged = outcome.model, outcome.converged
    fitted = now.describe(problem)
    return FitResult(fitted, converged, context.history, context.timeline())


def begin(
    context: RankContext,
    problem: Problem,
    params: ButterflyParams,
    evaluator: Evaluator,
    model: LinearModel,
    kept: State | None,
) -> Progress:
    """Where a fit stands before its first pass, or goes on; a collective call."""
    if kept is None:
        state, plan = prepare(context, problem, params, model)
    else:
        state, plan = resume(context, problem, params, kept)
    by_score = params.early_stopping
    now = Progress(
        model=model,
        state=state,
        plan=plan,
        rule=StopRule(
            params.tol,
            params.n_iter_no_change,
            maximize=by_score,
            is_relative=not by_score,
        ),
        control=StepControl(
            is_adaptive=params.learning_rate == "adaptive",
            takes_back=params.mixing != "none",
        ),
        evaluator=evaluator,
    )
    if kept is not None:
        now.load_state_dict(kept, problem)
    return now


def prepare(
    context: RankContext, problem: Problem, params: ButterflyParams, model: LinearModel
) -> tuple[RankState, Plan]:
    """Settle the batch size and the preconditioner; a collective call."""
    group = context.group
    most_rows = rows_of_largest_rank(group, problem)
    moments = None
    if params.preconditioner is not None:
        moments = sum_moments(group, problem, params.moments)
    state = RankState(stack(model), int(params.t), params.eta0)
    described: dict[str, Any] = {}
    if params.batch_size == "auto":
        batch_size = usual_batch_size(most_rows)
    elif params.batch_size != "timed":
        batch_size = min(int(params.batch_size), most_rows)
    elif group.size == 1:
        # Nothing is exchanged, so nothing is gained by large batches.
        batch_size = usual_batch_size(most_rows)
    else:
        times: TimeModel = fit_time_model(
            context, problem, params, state, moments, most_rows
        )
        described = times._asdict()
        batch_size = rounded(times.best_batch_size(group.size), most_rows)
    n_steps = -(-most_rows // batch_size)
    described = {"batch_size": batch_size, "n_steps": n_steps, **described}
    state = state._replace(
        batch_size=batch_size,
        preconditioner=make_preconditioner(moments, params, problem, batch_size),
    )
    rule = make_rule(params, problem, group.size, n_steps)
    return state, Plan(n_steps, rule, described, moments)


def run_pass(
    context: RankContext, problem: Problem, params: ButterflyParams, now: Progress
) -> Record:
    """Go over the rows once, and keep the model or not; a collective call.

    Returns
    -------
    record : dict
        What the history holds of the pass.
    """
    # Weights that overflow are found by the evaluation, and refused or taken back.
    with np.errstate(over="ignore", invalid="ignore"):
        state = make_steps(context, problem, params, now.state, now.plan, now.evaluator)
        candidate, state = merge(context.group, problem, params, state)
        (record,) = now.evaluator.evaluate(
            candidate,
            state.n_passes,
            1.0,
            problem.shard.n_rows,
            may_diverge=now.control.takes_back,
        )
    del record["local_epochs"]  # a pass is always one
    record.update(now.plan.described, eta=state.eta)
    start = now.evaluator.start_objective
    if settle(record, start, now.control):
        now.model = candidate
    else:
        state = state.at(now.model)
    now.state = state._replace(eta=params.eta0 * now.control.factor)
    now.is_worse = record["objective"] > start
    return record


def make_steps(
    context: RankContext,
    problem: Problem,
    params: ButterflyParams,
    state: RankState,
    plan: Plan,
    evaluator: Evaluator,
) -> RankState:
    """Go over the rows of this rank once; a collective call."""
    rng = pass_generator(context, state.n_passes) if params.shuffle else None
    n_problems = None if problem.classes is None else problem.n_problems
    batches = pass_batches(problem.shard, plan.n_steps, rng, n_problems=n_problems)
    state = run_steps(
        context.group, state, batches, plan.rule, params.mixing, evaluator.computing
    )
    return state._replace(n_passes=state.n_passes + 1)


def merge(
    group: Group, problem: Problem, params: ButterflyParams, state: RankState
) -> tuple[LinearModel, RankState]:
    """The model after a pass, and the state of a rank that knows it; collective.

    Mixing keeps the plain mean over ranks, in which each rank's rows already count by
    their number. Where nothing is mixed, the ranks count by the weights of their rows.
    A mean over steps is linear in the weights: its mean over ranks is the same whether
    each rank goes on with its own or all go on with that of all.
    """
    if params.mixing == "none":
        weight, total = problem.weight, problem.total_weight
    else:
        weight, total = 1.0, float(group.size)
    values = state.weights if state.mean is None else state.mean
    values = weighted_mean(group, values, weight, total=total)
    if state.mean is not None:
        state = state._replace(mean=values)
    return unstack(values), state


def settle(record: Record, start: float, control: StepControl) -> bool:
    """Whether the model of a pass is kept; its record tells of the model that is."""
    score = record.get("validation_score", np.nan)
    is_kept = control.update(record["objective"], start, score)
    if not is_kept:
        record["objective"], score = control.kept
        if "validation_score" in record:
            record["validation_score"] = score
    return is_kept
