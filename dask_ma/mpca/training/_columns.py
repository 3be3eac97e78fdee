"""Columns that the network of a fit knows: those that some row has."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce
from dask_ma.engine import State
from dask_ma.kernels import wide
from dask_ma.linear import UsedColumns, used_columns_of
from dask_ma.mpca.networks._columns import FEWEST_COLUMNS
from dask_ma.mpca.training._params import MPCAParams
from dask_ma.supervised import Problem


def find_columns(
    group: Group,
    problem: Problem,
    params: MPCAParams,
    kept: State | None,
    has_values: np.ndarray | None = None,
) -> UsedColumns:
    """The columns that a network is to know; a collective call.

    Hashed words make rows of a million columns, most of which no row has. No loss
    depends on their weights, but each step of an optimiser, each exchange and each
    state that is kept would go over all of them.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        The rows to train on.
    params : MPCAParams
        Parameters of the fit.
    kept : State or None
        State of a fit that goes on.
    has_values : ndarray of bool of shape (n_features,), default=None
        Which columns are not zero in all rows of all ranks; None looks at them.

    Returns
    -------
    columns : UsedColumns
        Those that are not zero in all rows of all ranks, or that the model to start
        from has weights of, where the rows are sparse and these are at most half of
        many; otherwise all. The same on every rank.
    """
    n_features = problem.shard.n_features
    every = UsedColumns(None, n_features)
    if kept is not None:
        return UsedColumns(kept.shared.get("columns"), n_features)
    # The next rows of `partial_fit` may have others.
    if (
        not params.spec.has_scaling
        or params.keep_optimizer
        or n_features < FEWEST_COLUMNS
    ):
        return every
    is_used = np.zeros(1 + (n_features if has_values is None else 0), dtype=bool)
    is_used[0] = not all(sparse.issparse(b.X) for b in problem.shard.blocks)
    if not is_used[0] and has_values is None:
        for block in problem.shard.read():
            is_used[1 + wide(block.X.indices[block.X.data != 0])] = True
    is_used = allreduce(group, is_used.view(np.uint8), "max").view(bool)
    if is_used[0]:  # some rows are dense
        return every
    is_used = is_used[1:] if has_values is None else has_values.copy()
    # Rows that are held out, or come later, may have what the fit before has learned.
    if params.known is not None and len(params.known) == n_features:
        is_used |= params.known
    return used_columns_of(is_used)


def filling_rows(problem: Problem, params: MPCAParams, columns: UsedColumns) -> float:
    """Rows that store as many elements as a network has inputs; the same on all ranks.

    Parameters
    ----------
    problem : Problem
        The rows to train on.
    params : MPCAParams
        Parameters of the fit.
    columns : UsedColumns
        The inputs.

    Returns
    -------
    n_rows : float
        1 of dense rows, and more the fewer elements sparse rows have; 0 for a module,
        whose inputs nobody knows.
    """
    if not params.spec.has_scaling:
        return 0.0
    numbers = columns.numbers
    n_inputs = columns.n_features if numbers is None else len(numbers)
    return n_inputs * problem.all_rows / max(1, problem.total_stored)
