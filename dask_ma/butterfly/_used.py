"""Columns of sparse rows that take part in a fit, and those without a non-zero.

A column that no row has, and whose weight is 0 at the start, keeps the weight 0. Where
many are like that the fit goes over the others alone: the model, the preconditioner and
what ranks exchange are as small as if X had no other columns, and the result is the
same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from dask_ma.butterfly._params import ButterflyParams, Moments
from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard, is_on_disk
from dask_ma.engine import State
from dask_ma.exceptions import CheckpointError
from dask_ma.kernels import wide
from dask_ma.linear import LinearModel, initial_model
from dask_ma.supervised import Problem

# Fewer columns than these are all gone over: with 2^16 a pass takes 1 ms for that.
_FEWEST = 2**16
# The numbers of the columns of a rank's elements, which are copied, may take as much
# memory as each array of the model saves: two of them take what a weight does.
_ELEMENTS_FOR_COLUMN = 2


class UsedColumns(NamedTuple):
    """The columns that take part.

    Attributes
    ----------
    numbers : ndarray of intp, shape (n_used,)
        Their numbers in X, in rising order; None for all columns.
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

    def moments(self, moments: Moments | None) -> Moments | None:
        """Moments over the columns used as those over all."""
        if moments is None:
            return None
        return Moments(self.widened(moments.sums), moments.total)

    def described(self) -> dict[str, Any]:
        """What the state of a fit holds of it."""
        return {"columns": self.numbers, "n_features": self.n_features}

    def restored(self, state: State) -> State:
        """A state with the arrays over these columns.

        Raises
        ------
        CheckpointError
            If it is that of a fit with another number of columns.
        """
        before, shared = columns_of(state), state.shared
        if before.n_features != self.n_features:
            raise CheckpointError(
                f"the model to go on from has {before.n_features} features, expected "
                f"{self.n_features} for these data"
            )
        if _are_same(before.numbers, self.numbers):
            return state
        shared = {**shared, "weights": self._moved(shared["weights"], before)}
        if shared["moments"] is not None:
            sums = before.widened(shared["moments"])
            shared["moments"] = self.taken(sums)
        own = state.own
        if own is not None:
            own = {**own, "weights": self._moved(own["weights"], before)}
        return state._replace(shared=shared, own=own)

    def _moved(self, weights: np.ndarray, before: UsedColumns) -> np.ndarray:
        """Weights as the state of a rank has them, from other columns to these."""
        coef = self.taken(before.widened(weights[:-1].T))
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
    per_rank = problem.total_stored / group.size / _ELEMENTS_FOR_COLUMN
    if n_features < _FEWEST or per_rank > n_features:
        return problem, params, every
    flags = np.zeros(n_features + 1, np.uint8)
    start = None if params.coef is None else initial_model(problem, params).coef
    # Rows on a disk stay there, the numbers of their columns with them.
    flags[-1] = any(is_on_disk(block.X) for block in problem.shard.blocks)
    if not flags[-1]:
        _mark(flags[:-1], problem.shard, start, params.moments, state)
    flags = allreduce(group, flags, "max")
    numbers = np.flatnonzero(flags[:-1].view(bool))
    if flags[-1] or not len(numbers) or per_rank > n_features - len(numbers):
        return problem, params, every
    columns = UsedColumns(numbers, n_features)
    if start is not None:
        params = replace(params, coef=columns.taken(start))
    if params.moments is not None:
        sums, total = params.moments
        params = replace(params, moments=Moments(columns.taken(sums), total))
    shard = _renumbered(problem.shard, numbers)
    return replace(problem, shard=shard), params, columns


def columns_of(state: State) -> UsedColumns:
    """The columns that a state has been kept for; all, if it does not say which."""
    shared = state.shared
    n_features = shared.get("n_features", len(shared["weights"]) - 1)
    return UsedColumns(shared.get("columns"), n_features)


def _are_same(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """Whether two fits go over the same columns."""
    if first is None or second is None:
        return first is second
    return np.array_equal(first, second)


def _mark(
    flags: np.ndarray,
    shard: Shard,
    start: np.ndarray | None,
    moments: Moments | None,
    state: State | None,
) -> None:
    """Set the flags of the columns that a rank has something for."""
    for block in shard.blocks:
        if scipy.sparse.issparse(block.X):
            flags[wide(block.X.indices)] = 1
        else:
            flags[:] = 1
    known = [] if start is None else [start]
    if moments is not None:
        known.append(moments.sums)
    if state is not None:
        before, own = columns_of(state), state.own
        if before.n_features != len(flags):
            return  # it is refused
        if before.numbers is not None:
            flags[before.numbers] = 1
        else:
            known += [s["weights"][:-1].T for s in (state.shared, own) if s is not None]
            if state.shared["moments"] is not None:
                known.append(state.shared["moments"])
    for array in known:
        flags |= array.any(axis=0)


def _renumbered(shard: Shard, numbers: np.ndarray) -> Shard:
    """A shard whose rows have these columns alone; all but their numbers is shared."""
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
