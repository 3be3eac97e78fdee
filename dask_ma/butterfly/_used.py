"""Columns of sparse rows that take part in a fit, and those without a non-zero.

A column that no row has, and whose weight is 0 at the start, keeps the weight 0. Where
many are like that the fit goes over the others alone: the model, the preconditioner and
what ranks exchange are as small as if X had no other columns, and the result is the
same but for rounding. They are gone over in the order in which the rows have them, so
that what a row needs is near each other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse

from dask_ma.butterfly._params import ButterflyParams, Moments
from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard, is_on_disk
from dask_ma.engine import State
from dask_ma.exceptions import CheckpointError
from dask_ma.kernels import wide
from dask_ma.linear import (
    LinearModel,
    UsedColumns,
    are_same,
    initial_model,
    renumbered,
)
from dask_ma.linear import columns_of as columns_of_state
from dask_ma.supervised import Problem

# Fewer columns than these are all gone over: with 2^16 a pass takes 1 ms for that.
_FEWEST = 2**16
# The numbers of the columns of a rank's elements, which are copied, may take as much
# memory as each array of the model saves: two of them take what a weight does.
_ELEMENTS_FOR_COLUMN = 2


def moments_of(columns: UsedColumns, moments: Moments | None) -> Moments | None:
    """Moments over the columns used as those over all."""
    if moments is None:
        return None
    return Moments(columns.widened(moments.sums), moments.total)


def restored(columns: UsedColumns, state: State) -> State:
    """A state with the arrays over these columns.

    Raises
    ------
    CheckpointError
        If it is that of a fit with another number of columns.
    """
    before, shared = columns_of(state), state.shared
    if before.n_features != columns.n_features:
        raise CheckpointError(
            f"the model to go on from has {before.n_features} features, expected "
            f"{columns.n_features} for these data"
        )
    if are_same(before, columns):
        return state
    shared = {**shared, "weights": _moved(columns, shared["weights"], before)}
    if shared["moments"] is not None:
        sums = before.widened(shared["moments"])
        shared["moments"] = columns.taken(sums)
    own = state.own
    if own is not None:
        own = {**own, "weights": _moved(columns, own["weights"], before)}
    return state._replace(shared=shared, own=own)


def _moved(
    columns: UsedColumns, weights: np.ndarray, before: UsedColumns
) -> np.ndarray:
    """Weights as the state of a rank has them, from other columns to these."""
    coef = columns.taken(before.widened(weights[:-1].T))
    return np.vstack([coef.T, weights[-1:]])


def use_columns(
    group: Group, problem: Problem, params: ButterflyParams, state: State | None
) -> tuple[Problem, ButterflyParams, UsedColumns]:
    """Leave out the columns that have nothing but zeros; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        All rows, those to be held out among them.
    params : ButterflyParams
        Parameters of the fit.
    state : State or None
        What it goes on from.

    Returns
    -------
    problem : Problem
        The same rows; those of X have the columns used alone.
    params : ButterflyParams
        With the model to start from, and the moments before, over these columns.
    columns : UsedColumns
        The same on all ranks; all of them where to leave some out would not pay.
    """
    n_features = problem.shard.n_features
    every = UsedColumns(None, n_features)
    # All ranks know this: no message is sent where there is nothing to be gained.
    if not _may_leave_out(group, problem, 0):
        return problem, params, every
    # Of each column, who has it: one more than the ranks from the last to the first
    # that has rows with it, 1 if none has, but it counts.
    owners = np.zeros(n_features + 1, np.min_scalar_type(group.size + 1))
    start = None if params.coef is None else initial_model(problem, params).coef
    # Rows on a disk stay there, the numbers of their columns with them.
    owners[-1] = any(is_on_disk(block.X) for block in problem.shard.blocks)
    own = np.zeros(0, np.intp)
    if not owners[-1]:
        own = _columns_of_rows(problem.shard)
        owners[own] = _code(group.size, group.rank)
        _mark(owners[:-1], start, params.moments, state)
    owners = allreduce(group, owners, "max")
    used = np.flatnonzero(owners[:-1] != 0)
    if owners[-1] or not len(used) or not _may_leave_out(group, problem, len(used)):
        return problem, params, every
    before = every if state is None else columns_of(state)
    numbers = before.numbers if before.n_features == n_features else None
    # All that a state has are used: as many are the same ones.
    if numbers is None or len(numbers) != len(used):
        numbers = _in_order(group, owners, used, own)
    columns = UsedColumns(numbers, n_features)
    if start is not None:
        params = replace(params, coef=columns.taken(start))
    if params.moments is not None:
        sums, total = params.moments
        params = replace(params, moments=Moments(columns.taken(sums), total))
    shard = renumbered(problem.shard, numbers)
    return replace(problem, shard=shard), params, columns


def count_columns(
    group: Group,
    problem: Problem,
    columns: UsedColumns,
    moments: Moments | None,
    model: LinearModel,
) -> int:
    """How many columns have values where a fit leaves out others, else all.

    It is the same for rows on a disk, of which all columns are gone over, and for rows
    in memory: both are fitted in the same steps.

    Parameters
    ----------
    group : Group
        This rank.
    problem, columns : Problem, UsedColumns
        As :func:`use_columns` gives them.
    moments : Moments or None
        Of the rows, which are not gone over for this alone.
    model : LinearModel
        The model to start from.

    Returns
    -------
    n_columns : int
        The same on all ranks.
    """
    n_features, leaves_out = problem.shard.n_features, columns.numbers is not None
    if moments is None or not (leaves_out or _may_leave_out(group, problem, 0)):
        return n_features
    # Not those with stored zeros alone, nor with values of rows that are held out.
    is_used = moments.sums.any(axis=0) | model.coef.any(axis=0)
    n_used = int(np.count_nonzero(is_used))
    leaves_out = leaves_out or _may_leave_out(group, problem, n_used)
    return n_used if n_used and leaves_out else n_features


def _may_leave_out(group: Group, problem: Problem, n_used: int) -> bool:
    """Whether a fit that uses so many columns, or more for 0, leaves out the others."""
    n_features = problem.shard.n_features
    per_rank = problem.total_stored / group.size / _ELEMENTS_FOR_COLUMN
    return n_features >= _FEWEST and per_rank <= n_features - n_used


def columns_of(state: State) -> UsedColumns:
    """The columns that a state has been kept for; all, if it does not say which."""
    return columns_of_state(state, len(state.shared["weights"]) - 1)


def _columns_of_rows(shard: Shard) -> np.ndarray:
    """Columns of a rank's rows, each once, where the last row has it."""
    if not all(scipy.sparse.issparse(block.X) for block in shard.blocks):
        return np.arange(shard.n_features)
    firsts = np.cumsum([0, *(block.X.indices.size for block in shard.blocks)])
    dtype = np.min_scalar_type(-firsts[-1])
    last = np.empty(shard.n_features, dtype)  # of no columns but those of the rows
    parts = []
    for block, first in zip(shard.blocks, firsts[:-1], strict=True):
        indices = wide(block.X.indices)
        last[indices] = np.arange(first, first + len(indices), dtype=dtype)
    for block, first in zip(shard.blocks, firsts[:-1], strict=True):
        indices = block.X.indices
        places = np.arange(first, first + len(indices), dtype=dtype)
        parts.append(wide(indices[last.take(indices) == places]))
    return np.concatenate([np.zeros(0, np.intp), *parts])


def _code(size: int, rank: int) -> int:
    """What tells that a rank has a column."""
    return size + 1 - rank


def _in_order(
    group: Group, owners: np.ndarray, used: np.ndarray, own: np.ndarray
) -> np.ndarray:
    """The columns used in the order in which the ranks' rows have them; collective."""
    # Elements of a row are then near each other in the weights, and those of a rank's
    # rows are near those of its other rows.
    codes = owners.take(used)
    others = used[codes == 1]
    if group.size == 1:
        return np.concatenate([own, others])
    ends = np.cumsum(np.bincount(codes, minlength=group.size + 2)[::-1])
    end, code = ends[group.rank], _code(group.size, group.rank)
    mine = own[owners.take(own) == code]
    places = np.zeros(len(owners), np.int32)
    places[mine] = np.arange(end - len(mine), end)
    places[others] = np.arange(len(used) - len(others), len(used))
    places = allreduce(group, places.take(used), "max")
    numbers = np.empty(len(used), np.intp)
    numbers[places] = used
    return numbers


def _mark(
    owners: np.ndarray,
    start: np.ndarray | None,
    moments: Moments | None,
    state: State | None,
) -> None:
    """Set the owners of the columns that count without rows."""
    known = [] if start is None else [start]
    if moments is not None:
        known.append(moments.sums)
    if state is not None:
        before, own = columns_of(state), state.own
        if before.n_features != len(owners):
            return  # it is refused
        if before.numbers is not None:
            is_known = np.zeros(len(owners), bool)
            is_known[before.numbers] = True
            np.maximum(owners, is_known, out=owners)
        else:
            known += [s["weights"][:-1].T for s in (state.shared, own) if s is not None]
            if state.shared["moments"] is not None:
                known.append(state.shared["moments"])
    for array in known:
        np.maximum(owners, array.any(axis=0), out=owners)
