"""Columns of sparse rows that take part in a fit, and those without a non-zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dask_ma.data import Shard
from dask_ma.engine import State
from dask_ma.linear._model import LinearModel

_LEAST_LEFT_OUT = 0.5  # part of the columns that has to be in vain


class UsedColumns(NamedTuple):
    """The columns that take part.

    Attributes
    ----------
    numbers : ndarray of intp, shape (n_used,)
        Their numbers in X; None for all columns.
    n_features : int
        Columns of X.
    """

    numbers: np.ndarray | None
    n_features: int

    def widened(self, array: np.ndarray) -> np.ndarray:
        """An array over the columns used as one over all, which has 0 elsewhere.

        Parameters
        ----------
        array : ndarray of shape (n, n_used)

        Returns
        -------
        array : ndarray of shape (n, n_features)
            The same one where all columns are used.
        """
        if self.numbers is None:
            return array
        # Memory that nobody has written to is not touched.
        whole = np.zeros((len(array), self.n_features), array.dtype)
        for row, values in zip(whole, array, strict=True):
            row[self.numbers] = values
        return whole

    def taken(self, array: np.ndarray) -> np.ndarray:
        """An array over all columns as one over those used, of shape (n, n_used)."""
        if self.numbers is None:
            return array
        return array.take(self.numbers, axis=1)

    def model(self, model: LinearModel) -> LinearModel:
        """A model over the columns used as one over all."""
        return LinearModel(self.widened(model.coef), model.intercept)

    def described(self) -> dict[str, Any]:
        """What the state of a fit holds of it."""
        return {"columns": self.numbers, "n_features": self.n_features}


def used_columns_of(is_used: np.ndarray) -> UsedColumns:
    """The columns that take part, of those that have something.

    Parameters
    ----------
    is_used : ndarray of bool, shape (n_features,)
        Which have.

    Returns
    -------
    columns : UsedColumns
        All, unless those that have something are some, and at most half of them.
    """
    numbers, n_features = np.flatnonzero(is_used), len(is_used)
    most = (1 - _LEAST_LEFT_OUT) * n_features
    return UsedColumns(numbers if 0 < len(numbers) <= most else None, n_features)


def columns_of(state: State, n_columns: int) -> UsedColumns:
    """The columns that a state has been kept for.

    Parameters
    ----------
    state : State
        What a fit goes on from.
    n_columns : int
        Columns of its model; these are all of X if the state does not say which.

    Returns
    -------
    columns : UsedColumns
    """
    shared = state.shared
    return UsedColumns(shared.get("columns"), shared.get("n_features", n_columns))


def are_same(first: UsedColumns, second: UsedColumns) -> bool:
    """Whether two fits go over the same columns."""
    if first.numbers is None or second.numbers is None:
        return first.numbers is second.numbers
    return np.array_equal(first.numbers, second.numbers)


def renumbered(shard: Shard, numbers: np.ndarray) -> Shard:
    """A shard whose rows have these columns alone; all but their numbers is shared.

    Parameters
    ----------
    shard : Shard
        Sparse rows, none of which has another column.
    numbers : ndarray of int
        Numbers of the columns, in the order that they are to have.

    Returns
    -------
    shard : Shard
    """
    places = np.empty(shard.n_features, np.int32)  # of no other columns
    places[numbers] = np.arange(len(numbers), dtype=np.int32)
    blocks = []
    for block in shard.blocks:
        # The constructor of SciPy would look for the largest number.
        X = type(block.X)((block.X.shape[0], len(numbers)), dtype=block.X.dtype)
        X.data, X.indptr = block.X.data, block.X.indptr
        X.indices = places.take(block.X.indices)
        blocks.append(block._replace(X=X))
    return replace(shard, blocks=blocks, n_features=len(numbers))
