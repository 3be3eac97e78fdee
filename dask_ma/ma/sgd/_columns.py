"""Columns that rounds of model averaging leave out: no row has them, and no model.

Features that are hashed have far more numbers than texts have words. The weight of such
a column stays 0, but each model that is averaged, and each vector of the refinement,
would have it, for every class.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse

from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard, is_on_disk
from dask_ma.engine import State
from dask_ma.exceptions import CheckpointError
from dask_ma.kernels import wide
from dask_ma.linear import (
    UsedColumns,
    are_same,
    columns_of,
    initial_model,
    renumbered,
    used_columns_of,
)
from dask_ma.ma.sgd._params import FitParams
from dask_ma.supervised import Problem

_FEWEST = 2**12  # columns, below which all are gone over
# Elements of a rank for each column, at most: to look at more of them, and to copy
# their columns' numbers, would take as long as some columns in vain.
_ELEMENTS_FOR_COLUMN = 16


def use_columns(
    group: Group, problem: Problem, params: FitParams, state: State | None
) -> tuple[Problem, FitParams, State | None, UsedColumns]:
    """Leave out the columns that have nothing but zeros; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        All rows, those to be held out among them.
    params : FitParams
        Parameters of the fit.
    state : State or None
        What it goes on from.

    Returns
    -------
    problem : Problem
        The same rows; those of X have the columns used alone.
    params : FitParams
        With the models to start from over these columns.
    state : State or None
        The same with its models over these columns.
    columns : UsedColumns
        The same on all ranks; all of them where to leave some out would not pay.
    """
    columns = UsedColumns(None, problem.shard.n_features)
    if _may_be_few(group, problem):  # which all ranks know
        columns = _find(group, problem, params, state)
    if state is not None:
        state = _restored(columns, state)
    if columns.numbers is None:
        return problem, params, state, columns
    if params.coef is not None:
        start = initial_model(problem, params)
        params = replace(params, coef=columns.taken(start.coef))
    if params.mean is not None:
        coef, intercept, n_rows, n_models = params.mean
        mean = columns.taken(coef), intercept, n_rows, n_models
        params = replace(params, mean=mean)
    shard = renumbered(problem.shard, columns.numbers)
    return replace(problem, shard=shard), params, state, columns


def _may_be_few(group: Group, problem: Problem) -> bool:
    """Whether columns are many, and elements few enough to look at all of them."""
    n_features = problem.shard.n_features
    most = _ELEMENTS_FOR_COLUMN * n_features * group.size
    return n_features >= _FEWEST and problem.total_stored <= most


def _find(
    group: Group, problem: Problem, params: FitParams, state: State | None
) -> UsedColumns:
    """The columns that take part; a collective call."""
    n_features = problem.shard.n_features
    every = UsedColumns(None, n_features)
    is_used = np.zeros(n_features + 1, bool)
    # Rows on a disk stay there, the numbers of their columns with them.
    is_used[-1] = not all(_is_sparse_in_memory(b.X) for b in problem.shard.blocks)
    if not is_used[-1]:
        _mark_rows(is_used, problem.shard)
        _mark_models(is_used[:-1], problem, params, state)
    is_used = allreduce(group, is_used.view(np.uint8), "max")
    return every if is_used[-1] else used_columns_of(is_used[:-1])


def _is_sparse_in_memory(X: object) -> bool:
    return scipy.sparse.issparse(X) and not is_on_disk(X)


def _mark_rows(is_used: np.ndarray, shard: Shard) -> None:
    """Mark the columns of a rank's rows."""
    for block in shard.blocks:
        is_used[wide(block.X.indices)] = True


def _mark_models(
    is_used: np.ndarray, problem: Problem, params: FitParams, state: State | None
) -> None:
    """Mark the columns that count without rows, in models that a fit goes on from."""
    models = [] if params.mean is None else [params.mean[0]]
    if params.coef is not None:
        models.append(initial_model(problem, params).coef)
    if state is not None:
        before = _before(state)
        if before.n_features != len(is_used):
            return  # it is refused
        if before.numbers is not None:
            is_used[before.numbers] = True
        else:
            models += [state.shared["coef"], state.shared["mean_coef"]]
    for coef in models:
        if coef is not None:
            is_used |= coef.any(axis=0)


def _before(state: State) -> UsedColumns:
    """The columns that a state has been kept for."""
    return columns_of(state, state.shared["coef"].shape[1])


def _restored(columns: UsedColumns, state: State) -> State:
    """A state with the models over these columns."""
    before, shared = _before(state), dict(state.shared)
    are_all = before.numbers is None and columns.numbers is None
    if before.n_features != columns.n_features and not are_all:
        raise CheckpointError(
            f"the model to go on from has {before.n_features} features, expected "
            f"{columns.n_features} for these data"
        )
    if are_all or are_same(before, columns):
        return state  # whose shapes are compared with those of the data
    for name in ("coef", "mean_coef"):
        if shared[name] is not None:
            shared[name] = columns.taken(before.widened(shared[name]))
    return state._replace(shared=shared)
