"""Sums of the rows of each class, which are as large as the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, barrier, reduce, reduce_scatter
from dask_ma.kernels import class_sums, row_slice
from dask_ma.sfb.model._rows import row_batches
from dask_ma.supervised import Problem

# Bytes that are added up at a time, and in how many parts at most: rows are read for
# each of them.
_PART_BYTES, _MOST_PARTS = 2**22, 16


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

    def chunks(self, n_values: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Those of some features at a time.

        Parameters
        ----------
        n_values : int
            About how many numbers at a time.

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


def add_up_classes(
    problem: Problem, group: Group, centre: Any, *, to_root: bool = False
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

    Returns
    -------
    sums : ClassSums
        Of the features that are this rank's.
    """
    n_classes, n_ranks = max(2, problem.n_problems), 1 if to_root else group.size
    sums = ClassSums(n_classes)
    for features in feature_parts(problem.shard.n_features, n_classes):
        n_each = -(-(features.stop - features.start) // n_ranks)
        own = np.zeros((n_each * n_ranks, n_classes))
        _add_own(problem, features, centre, own[: features.stop - features.start])
        if to_root:
            if features.start:
                barrier(group)  # none is to send more than rank 0 has taken
            found, start = reduce(group, own), features.start
            if found is not None:
                sums.add(start, found, np.float64)
            continue
        found = reduce_scatter(group, own).reshape(-1, n_classes)
        start = features.start + n_each * group.rank
        n_own = min(n_each, features.stop - start)
        if n_own > 0:
            sums.add(start, found[:n_own], problem.dtype)
    return sums


def _add_own(problem: Problem, features: slice, centre: Any, out: np.ndarray) -> None:
    """Add up some features of this rank's rows."""
    for _, batch in row_batches(problem.shard, problem.n_problems):
        X = batch.X[:, features]
        X = X if centre is None else X - centre[features]
        class_sums(X, batch.y, batch.sample_weight, out.shape[1], out)


def feature_parts(
    n_features: int, n_outputs: int, n_bytes: int | None = None
) -> Iterator[slice]:
    """Features whose sums are made at a time.

    Parameters
    ----------
    n_features, n_outputs : int
        Of the sums, which are in float64.
    n_bytes : int, default=None
        Least bytes of a part, but for the last one; None takes few.

    Yields
    ------
    features : slice
    """
    n_bytes = _PART_BYTES if n_bytes is None else n_bytes
    n_parts = min(_MOST_PARTS, -(-n_features * n_outputs * 8 // n_bytes))
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
