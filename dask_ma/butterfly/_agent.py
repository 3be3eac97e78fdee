"""Butterfly mixing as each rank carries it out (Algorithm 2 of the paper)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dask_ma.butterfly._batch_size import (
    WITHOUT_EXCHANGE,
    TimeModel,
    fit_time_model,
    rounded,
)
from dask_ma.butterfly._params import ButterflyParams
from dask_ma.butterfly._state import RankState, stack, unstack
from dask_ma.butterfly._steps import (
    StepRule,
    make_preconditioner,
    make_rule,
    run_steps,
    sum_moments,
)
from dask_ma.comm import Group, allreduce, sibling, weighted_mean
from dask_ma.engine import RankContext, State
from dask_ma.exceptions import CheckpointError
from dask_ma.linear import (
    Evaluator,
    FitResult,
    LinearModel,
    Problem,
    StopRule,
    agree_on_problem,
    describe,
    initial_model,
    pass_batches,
    pass_generator,
)


def train(context: RankContext, arguments: Any, params: ButterflyParams) -> FitResult:
    """Train a linear classifier on the rows of all ranks.

    In each step every rank updates its weights by the gradient of a batch of its own
    rows, and averages them with those of a partner. The model is the mean over ranks.

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
    kept = context.restore(stand_in)
    if kept is not None:
        # Rows that were lost may have been the only ones of their class.
        params = replace(params, classes=kept.shared["classes"])
    problem = agree_on_problem(context.group, arguments, params)
    stop_rule = StopRule(params.tol, params.n_iter_no_change, maximize=False)
    model = initial_model(problem, params)
    evaluator = Evaluator(context, problem, None, params, model)
    stop = False
    if kept is None:
        state, plan = prepare(context, problem, params, model)
    else:
        state, plan = go_on(context, problem, params, kept)
        stop_rule.go_on(kept.shared["rule"])
        stop = kept.shared["stop"]
        model = average(context.group, problem, params, state)
    n_rows = problem.shard.n_rows
    while state.n_passes < params.max_iter and not stop:
        # Weights that overflow are found, and refused, by the evaluation.
        with np.errstate(over="ignore", invalid="ignore"):
            state = run_pass(context, problem, params, state, plan, evaluator)
            model = average(context.group, problem, params, state)
            records = evaluator.evaluate(model, state.n_passes, 1.0, n_rows)
        for record in records:
            del record["local_epochs"]  # a pass is always one
            record.update(plan.described)
            fitted = describe(model, problem, float(state.t), state.n_passes)
            wanted = context.record(record, fitted)
            stop = evaluator.is_done(record, stop_rule) or wanted
        shared = {
            **shared_state(state, model, plan),
            "classes": problem.classes,
            "rule": np.array(stop_rule.state()),
            "stop": stop,
            "n_ranks": context.group.size,
        }
        is_last = stop or state.n_passes == params.max_iter
        # The next steps change the weights in place.
        own = {"weights": state.weights.copy()}
        context.keep(state.n_passes, shared, own, done=is_last)
    fitted = describe(model, problem, float(state.t), state.n_passes)
    return FitResult(fitted, stop, context.history, context.timeline())


class Plan(NamedTuple):
    """What stays the same from pass to pass.

    Attributes
    ----------
    n_steps : int
        Steps of a pass, the same on all ranks.
    rule : StepRule
        What this rank does in a step.
    described : dict
        What the records of the history tell of it.
    """

    n_steps: int
    rule: StepRule
    described: dict[str, Any]


def prepare(
    context: RankContext, problem: Problem, params: ButterflyParams, model: LinearModel
) -> tuple[RankState, Plan]:
    """Settle the batch size and the preconditioner; a collective call."""
    group = context.group
    most_rows = rows_of_largest_rank(group, problem)
    moments = sum_moments(group, problem) if params.preconditioner else None
    state = RankState(stack(model), int(params.t), 0, 0, None)
    described: dict[str, Any] = {}
    if params.batch_size != "auto":
        batch_size = min(int(params.batch_size), most_rows)
    elif group.size == 1 or params.mixing == "none":
        batch_size = min(WITHOUT_EXCHANGE, most_rows)
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
        preconditioner=make_preconditioner(moments, problem, batch_size),
    )
    return state, Plan(
        n_steps, make_rule(params, problem, group.size, n_steps), described
    )


def go_on(
    context: RankContext, problem: Problem, params: ButterflyParams, kept: State
) -> tuple[RankState, Plan]:
    """Take over what was kept after a pass; a collective call."""
    shared, group = kept.shared, context.group
    shape = problem.shard.n_features + 1, problem.n_problems
    if shared["weights"].shape != shape:
        raise CheckpointError(
            f"the model to go on from has weights of shape {shared['weights'].shape}, "
            f"expected {shape} for these data"
        )
    # A rank that has lost its own weights, without a sibling, begins with the mean.
    weights = shared["weights"] if kept.own is None else kept.own["weights"]
    state = RankState(
        weights=weights.copy(),  # steps change them in place
        t=shared["t"],
        n_passes=kept.round,
        batch_size=shared["batch_size"],
        preconditioner=shared["preconditioner"],
    )
    n_steps = -(-rows_of_largest_rank(group, problem) // state.batch_size)
    described = dict(zip(shared["described"], shared["values"].tolist(), strict=True))
    described |= {"batch_size": state.batch_size, "n_steps": n_steps}
    rule = make_rule(params, problem, group.size, n_steps)
    return state, Plan(n_steps, rule, described)


def shared_state(state: RankState, model: LinearModel, plan: Plan) -> dict[str, Any]:
    """What is the same on all ranks after a pass."""
    return {
        "weights": stack(model),
        "t": state.t,
        "batch_size": state.batch_size,
        "preconditioner": state.preconditioner,
        "described": list(plan.described),
        "values": np.array(list(plan.described.values()), dtype=np.float64),
    }


def stand_in(rank: int, shared: dict[str, Any]) -> int:
    """Rank that held the same average as `rank` after the last step."""
    last_step = shared["t"] - 2  # `t` is the next step and counts from 1
    other = sibling(rank, last_step, shared["n_ranks"])
    return rank if other is None else other


def rows_of_largest_rank(group: Group, problem: Problem) -> int:
    """Most rows that a rank has; a collective call."""
    return int(allreduce(group, np.array(problem.shard.n_rows), "max"))


def run_pass(
    context: RankContext,
    problem: Problem,
    params: ButterflyParams,
    state: RankState,
    plan: Plan,
    evaluator: Evaluator,
) -> RankState:
    """Go over the rows of this rank once; a collective call."""
    rng = pass_generator(context, state.n_passes) if params.shuffle else None
    batches = pass_batches(
        problem.shard, plan.n_steps, rng, n_problems=problem.n_problems
    )
    state = run_steps(
        context.group, state, batches, plan.rule, params.mixing, evaluator.computing
    )
    return state._replace(n_passes=state.n_passes + 1)


def average(
    group: Group, problem: Problem, params: ButterflyParams, state: RankState
) -> LinearModel:
    """Mean of the ranks' models; a collective call.

    Mixing keeps the plain mean over ranks, in which each rank's rows already count by
    their number. Where nothing is mixed, the ranks count by the weights of their rows.
    """
    if params.mixing == "none":
        weight, total = problem.weight, problem.total_weight
    else:
        weight, total = 1.0, float(group.size)
    return unstack(weighted_mean(group, state.weights, weight, total=total))
