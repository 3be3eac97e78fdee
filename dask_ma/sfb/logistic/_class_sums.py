"""Sums of the rows of each class, which are as large as the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce, barrier, reduce, reduce_scatter
from dask_ma.data import is_on_disk
from dask_ma.kernels import class_sums, row_slice
from dask_ma.sfb.model._rows import row_batches
from dask_ma.supervised import Problem

# Bytes that are added up at a time, and in how many parts at most: rows are read for
# each of them, and are there at once if they are dense and in memory.
_PART_BYTES, _MOST_PARTS, _MOST_QUICK_PARTS = 2**22, 16, 64
_KEPT_BYTES = 2**25  # of all of them, that are kept in any case


class ClassSums:
    """Weighted sums of the centred rows of each class, for some of the features.

    Only elements that are not zero are kept where these are few, as with sparse rows.

    Parameters
    ----------
    n_classes : int
        Classes, two at least.
    """

    def __init__(self, n_classes: int) -> None:
        self._n_classes = n_classes
        self._pieces: list[tuple[int, Any]] = []

    def add(self, start: int, sums: np.ndarray, dtype: Any) -> None:
        """Take those of some more features.

        Parameters
        ----------
        start : int
            The first of the features.
        sums : ndarray of shape (n, n_classes)
        dtype : dtype
            What they are kept in.
        """
        kept: Any = sums.astype(dtype)
        n_bytes = np.count_nonzero(kept) * (kept.itemsize + 4)  # with the columns
        self._pieces.append((start, kept if 2 * n_bytes > kept.nbytes else _few(kept)))

    def chunks(
        self, n_values: int, *, are_wanted: bool = True
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """Those of some features at a time.

        Parameters
        ----------
        n_values : int
            About how many numbers at a time.
        are_wanted : bool, default=True
            Whether the sums are, and not only the features; the same on all ranks.

        Yields
        ------
        features : slice
        sums : ndarray of shape (n, n_classes)
        """
        size = max(1, n_values // self._n_classes)
        for start, sums in self._pieces:
            for first in range(0, sums.shape[0], size):
                part = row_slice(sums, first, min(first + size, sums.shape[0]))
                features = slice(start + first, start + first + part.shape[0])
                yield features, part.toarray() if sparse.issparse(part) else part


class FleetingClassSums:
    """The same, added up anew whenever they are asked for, and never kept.

    Parameters
    ----------
    problem : Problem
        Rows and classes.
    group : Group
        This rank.
    centre : ndarray of shape (n_features,) or None
        What is taken off the rows.
    most_parts : int
        In how many parts at most.
    """

    def __init__(
        self, problem: Problem, group: Group, centre: Any, most_parts: int
    ) -> None:
        self._problem = problem
        self._group = group
        self._centre = centre
        self._most_parts = most_parts

    def chunks(
        self, n_values: int, *, are_wanted: bool = True
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """As :meth:`ClassSums.chunks`; all of it is a collective call."""
        problem, group = self._problem, self._group
        for features, own in _shares(problem, group, self._most_parts):
            part = ClassSums(_n_classes(problem))
            sums = np.zeros((own.stop - own.start, _n_classes(problem)))
            if are_wanted:
                sums = _share_of_sums(problem, group, self._centre, features, own)
            part.add(own.start, sums, problem.dtype)
            del sums
            yield from part.chunks(n_values)


def find_class_sums(
    problem: Problem, group: Group, centre: Any, *, is_sparse: bool
) -> ClassSums | FleetingClassSums:
    """Sums of classes of which each rank has its share; a collective call.

    Where the ranks of one process would have as many numbers as the model, and to add
    up the rows takes little beside a pass, nothing is kept.

    Parameters
    ----------
    problem, group, centre
        As in :func:`add_up_classes`.
    is_sparse : bool
        Whether the rows of all ranks are sparse.

    Returns
    -------
    sums : ClassSums or FleetingClassSums
    """
    nbytes = problem.shard.n_features * _n_classes(problem) * problem.dtype.itemsize
    if is_sparse or nbytes <= _KEPT_BYTES:
        return add_up_classes(problem, group, centre)
    on_disk = any(is_on_disk(block.X) for block in problem.shard.blocks)
    if allreduce(group, np.array(int(on_disk))):
        return add_up_classes(problem, group, centre)
    if group.layout.n_nodes > 1:
        # A process has a part of them only, and would send as much as the model. The
        # parts are the same, so that bounds do not depend on where ranks are.
        most_parts = _MOST_QUICK_PARTS
        return add_up_classes(problem, group, centre, most_parts=most_parts)
    return FleetingClassSums(problem, group, centre, _MOST_QUICK_PARTS)


def add_up_classes(
    problem: Problem,
    group: Group,
    centre: Any,
    *,
    to_root: bool = False,
    most_parts: int | None = None,
) -> ClassSums:
    """Add up the rows of each class on all ranks; a collective call.

    Some features are added up at a time, so that no rank has all of them: each gets its
    share.

    Parameters
    ----------
    problem : Problem
        Rows and classes.
    group : Group
        This rank.
    centre : ndarray of shape (n_features,) or None
        What is taken off the rows.
    to_root : bool, default=False
        Whether rank 0 gets all features, in float64, and the others none.
    most_parts : int, default=None
        In how many parts at most; None takes few.

    Returns
    -------
    sums : ClassSums
        Of the features that are this rank's.
    """
    n_classes = _n_classes(problem)
    sums = ClassSums(n_classes)
    if not to_root:
        for features, own in _shares(problem, group, most_parts):
            found = _share_of_sums(problem, group, centre, features, own)
            if len(found):
                sums.add(own.start, found, problem.dtype)
        return sums
    for features in feature_parts(problem.shard.n_features, n_classes):
        total = np.zeros((features.stop - features.start, n_classes))
        _add_own(problem, features, centre, total)
        if features.start:
            barrier(group)  # none is to send more than rank 0 has taken
        reduced = reduce(group, total)
        if reduced is not None:
            sums.add(features.start, reduced, np.float64)
    return sums


def _n_classes(problem: Problem) -> int:
    """Classes of a problem, two at least."""
    return max(2, problem.n_problems)


def _shares(
    problem: Problem, group: Group, most_parts: int | None
) -> Iterator[tuple[slice, slice]]:
    """Features that are added up at a time, and those of them that a rank gets."""
    shape = problem.shard.n_features, _n_classes(problem)
    for features in feature_parts(*shape, most_parts=most_parts):
        n_each = -(-(features.stop - features.start) // group.size)
        start = min(features.start + n_each * group.rank, features.stop)
        yield features, slice(start, min(start + n_each, features.stop))


def _share_of_sums(
    problem: Problem, group: Group, centre: Any, features: slice, own: slice
) -> np.ndarray:
    """Sums of this rank's share of some features, of all ranks; a collective call."""
    n_features, n_classes = features.stop - features.start, _n_classes(problem)
    n_each = -(-n_features // group.size)
    sums = np.zeros((n_each * group.size, n_classes))
    _add_own(problem, features, centre, sums[:n_features])
    found = reduce_scatter(group, sums).reshape(-1, n_classes)
    return found[: own.stop - own.start]


def _add_own(problem: Problem, features: slice, centre: Any, out: np.ndarray) -> None:
    """Add up some features of this rank's rows."""
    for _, batch in row_batches(problem.shard, problem.n_problems):
        X = batch.X[:, features]
        X = X if centre is None else X - centre[features]
        class_sums(X, batch.y, batch.sample_weight, out.shape[1], out)


def feature_parts(
    n_features: int,
    n_outputs: int,
    n_bytes: int | None = None,
    most_parts: int | None = None,
) -> Iterator[slice]:
    """Features whose sums are made at a time.

    Parameters
    ----------
    n_features, n_outputs : int
        Of the sums, which are in float64.
    n_bytes : int, default=None
        Least bytes of a part, but for the last one; None takes few.
    most_parts : int, default=None
        In how many at most; None takes few.

    Yields
    ------
    features : slice
    """
    n_bytes = _PART_BYTES if n_bytes is None else n_bytes
    most_parts = _MOST_PARTS if most_parts is None else most_parts
    n_parts = min(most_parts, -(-n_features * n_outputs * 8 // n_bytes))
    size = max(1, -(-n_features // max(1, n_parts)))
    for start in range(0, n_features, size):
        yield slice(start, min(start + size, n_features))


def _few(sums: np.ndarray) -> sparse.csr_array:
    """Those that are not zero."""
    rows, columns = np.nonzero(sums)
    starts = np.zeros(len(sums) + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=len(sums)), out=starts[1:])
    parts = sums[rows, columns], columns.astype(np.int32), starts.astype(np.int32)
    return sparse.csr_array(parts, shape=sums.shape)
