"""Batch size, steps and preconditioner of a fit: found at its start, or kept."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dask_ma.butterfly._batch_size import (
    Sizes,
    TimeModel,
    fit_time_model,
    rounded,
    usual_batch_size,
)
from dask_ma.butterfly._bounds import about, bounded_length, center_of, has_bounds
from dask_ma.butterfly._lazy_steps import cost_of_entry
from dask_ma.butterfly._params import ButterflyParams, Moments
from dask_ma.butterfly._state import RankState, stack
from dask_ma.butterfly._steps import (
    StepRule,
    add_moments,
    largest_rank,
    make_preconditioner,
    make_rule,
    not_below,
    sum_moments,
)
from dask_ma.butterfly._used import count_columns
from dask_ma.comm import Group, butterfly_depth, sibling
from dask_ma.engine import RankContext, State
from dask_ma.exceptions import CheckpointError
from dask_ma.linear import LinearModel, UsedColumns
from dask_ma.supervised import Problem

# How often in a pass all ranks hear of each other. Ranks whose rows are a random draw
# of all need some hundredths more passes with one mixing than with two; where each of
# two has the rows of one class alone, 73 with two instead of 48.
_USUAL_MIXINGS, _EVEN_MIXINGS = 4, 1


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
    moments : Moments or None
        What the preconditioner has been made from.
    """

    n_steps: int
    rule: StepRule
    described: dict[str, Any]
    moments: Moments | None


def prepare(
    context: RankContext,
    problem: Problem,
    params: ButterflyParams,
    model: LinearModel,
    columns: UsedColumns,
) -> tuple[RankState, Plan]:
    """Settle the batch size and the preconditioner; a collective call."""
    group = context.group
    most_rows, most_nonzero = largest_rank(group, problem)
    scales = _find_scales(group, problem, params, is_dense=math.isinf(most_nonzero))
    moments, latest, steep, center = scales
    t = int(params.t)
    base = stack(model)
    state = RankState(
        base.copy(), t, params.eta0, n_exchanges=t - 1, base=base, is_base=True
    )
    described: dict[str, Any] = {}
    # With one rank nothing is exchanged, so that there is nothing to weigh.
    is_usual = params.batch_size == "auto" or group.size == 1
    if params.batch_size not in ("auto", "timed"):
        batch_size = min(int(params.batch_size), most_rows)
    elif is_usual:
        sizes = Sizes(
            n_ranks=group.size,
            most_rows=most_rows,
            most_nonzero=most_nonzero,
            n_features=count_columns(group, problem, columns, moments, model),
            n_problems=problem.n_problems,
            cost_of_entry=cost_of_entry(group.size, params.mixing, problem.dtype),
            is_adaptive=params.takes_back,
        )
        batch_size = usual_batch_size(sizes)
    else:
        times: TimeModel = fit_time_model(
            context, problem, params, state, steep, most_rows, most_nonzero
        )
        described = times._asdict()
        batch_size = rounded(times.best_batch_size(group.size), most_rows)
    n_steps = -(-most_rows // batch_size)
    period = period_of(params, problem, group.size, n_steps)
    steps = {"batch_size": batch_size, "n_steps": n_steps, "mixing_period": period}
    described = {**steps, **described}
    preconditioner = make_preconditioner(steep, params, problem, batch_size)
    if preconditioner is not None and center is not None and steep is not None:
        # Features that have been constant so far are left to the intercept.
        preconditioner[(center != 0) & (steep.sums[1] == 0)] = 0
    if has_bounds(params) and latest is not None:
        length = bounded_length(
            group, problem, latest, preconditioner, center, params, batch_size
        )
        state = state._replace(eta=min(state.eta, length * math.sqrt(t)))
    state = state._replace(batch_size=batch_size, preconditioner=preconditioner)
    rule = make_rule(params, problem, group.size, n_steps, most_nonzero, period, center)
    return state, Plan(n_steps, rule, described, moments)


class _Scales(NamedTuple):
    """Moments of all rows so far, of the latest, what steps go by, and their center."""

    moments: Moments | None = None
    latest: Moments | None = None
    steep: Moments | None = None
    center: np.ndarray | None = None


def _find_scales(
    group: Group, problem: Problem, params: ButterflyParams, *, is_dense: bool
) -> _Scales:
    """How large the features are; a collective call."""
    if params.preconditioner is None:
        # A bound of the steps goes by the rows of the call alone.
        latest = sum_moments(group, problem) if has_bounds(params) else None
        return _Scales(latest=latest)
    moments = latest = sum_moments(group, problem, is_dense=is_dense)
    if params.moments is not None:
        moments = add_moments(params.moments, latest)
    center = None
    if is_dense and has_bounds(params):
        center = center_of(moments, params)
    latest, steep = about(latest, center), about(moments, center)
    if params.moments is not None:
        steep = not_below(steep, latest)
    return _Scales(moments, latest, steep, center)


def resume(
    context: RankContext, problem: Problem, params: ButterflyParams, kept: State
) -> tuple[RankState, Plan]:
    """State and plan that were kept after a pass; a collective call."""
    shared, group = kept.shared, context.group
    shape = problem.shard.n_features + 1, problem.n_problems
    if shared["weights"].shape != shape:
        raise CheckpointError(
            f"the model to go on from has weights of shape {shared['weights'].shape}, "
            f"expected {shape} for these data"
        )
    # A rank that has lost its own weights, without a sibling, begins with the mean.
    weights = shared["weights"] if kept.own is None else kept.own["weights"]
    moments, batch_size = None, shared["batch_size"]
    if shared["moments"] is not None:
        moments = Moments(shared["moments"], shared["moments_total"])
    state = RankState(
        weights=weights.copy(),  # steps change them in place
        t=shared["t"],
        eta=shared["eta"],
        n_passes=shared["n_passes"],
        batch_size=batch_size,
        preconditioner=make_preconditioner(moments, params, problem, batch_size),
        # After a pass the mean is the model, on all ranks.
        mean=shared["weights"].copy() if shared["n_averaged"] else None,
        n_averaged=shared["n_averaged"],
        n_exchanges=shared["n_exchanges"],
        base=None if shared["n_averaged"] else shared["weights"],
    )
    most_rows, most_nonzero = largest_rank(group, problem)
    n_steps = -(-most_rows // state.batch_size)
    described = dict(zip(shared["described"], shared["values"].tolist(), strict=True))
    period = period_of(params, problem, group.size, n_steps)
    described |= {"batch_size": state.batch_size, "n_steps": n_steps}
    described["mixing_period"] = period
    rule = make_rule(params, problem, group.size, n_steps, most_nonzero, period)
    return state, Plan(n_steps, rule, described, moments)


def period_of(
    params: ButterflyParams, problem: Problem, n_ranks: int, n_steps: int
) -> int:
    """Steps from one exchange to the next."""
    if n_ranks == 1 or params.mixing == "none":
        return 1  # nothing is exchanged
    if params.mixing_period != "auto":
        return min(int(params.mixing_period), n_steps)
    if params.batch_size == "timed":
        return 1  # batches were chosen to have an exchange each
    # Of targets that are no classes nothing is known.
    is_even = problem.classes is not None and problem.uneven is None
    n_mixings = _EVEN_MIXINGS if is_even else _USUAL_MIXINGS
    n_exchanges = n_mixings * butterfly_depth(n_ranks)
    # The last step has an exchange, which is not to come right after another one.
    longer = -(-n_steps // n_exchanges)
    is_enough = -(-n_steps // longer) >= n_exchanges
    return longer if is_enough else max(1, n_steps // n_exchanges)


def replica_of(rank: int, shared: dict[str, Any]) -> int:
    """Rank that held the same average as `rank` after the last exchange."""
    other = sibling(rank, shared["n_exchanges"] - 1, shared["n_ranks"])
    return rank if other is None else other
