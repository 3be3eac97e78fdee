"""Columns of sparse rows, without a copy of the rows.

Beside the rows lie the places of each column's elements among them: 4 bytes for an
element that takes 12. A few columns are put together from these when they are wanted;
what concerns all columns goes over the rows as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse

_PARTS = 32  # in which the places are found, since that takes memory, too
_LARGEST_INT32 = np.iinfo(np.int32).max


class RowColumns:
    """Where the elements of each column are in CSR blocks.

    Parameters
    ----------
    blocks : list of CSR, of shape (n, n_features)
        Rows, at least one block of them, that name no column twice. They are kept, and
        not changed.
    """

    def __init__(self, blocks: list[Any]) -> None:
        self._blocks = blocks
        self._type = type(blocks[0].T)  # a matrix or an array, as the rows
        self.dtype = np.result_type(*[X.dtype for X in blocks])
        self._n_rows = sum(X.shape[0] for X in blocks)
        n_features = blocks[0].shape[1]
        # Elements before each block, and before each row of all blocks.
        self._firsts = np.cumsum([0, *(X.nnz for X in blocks)])
        # SciPy and NumPy take time for each column, however few the elements are.
        self._most = max(1, int(self._firsts[-1]) // _PARTS, n_features)
        self._bounds = np.zeros(n_features + 1, dtype=np.int64)
        np.cumsum(self._counts(n_features), out=self._bounds[1:])
        starts = [X.indptr[:-1].astype(np.int64) for X in blocks]
        self._row_starts = np.concatenate(
            [own + first for own, first in zip(starts, self._firsts, strict=False)]
        )
        self._find_places()

    def _counts(self, n_features: int) -> np.ndarray:
        """Elements of each column."""
        counts = np.zeros(n_features, dtype=np.int64)
        for X in self._blocks:
            for start in range(0, X.nnz, self._most):  # NumPy copies what it counts
                part = X.indices[start : start + self._most]
                counts += np.bincount(part, minlength=n_features)
        return counts

    def _find_places(self) -> None:
        """Sort the elements by their columns, those of a column by their rows."""
        small = self._firsts[-1] <= _LARGEST_INT32
        self._places = np.empty(self._firsts[-1], np.int32 if small else np.int64)
        following = self._bounds[:-1].copy()
        for X, first in zip(self._blocks, self._firsts, strict=False):
            cuts = np.searchsorted(X.indptr, np.arange(0, X.nnz, self._most)[1:])
            bounds = np.unique([0, *cuts, X.shape[0]])
            for start, stop in zip(bounds, bounds[1:], strict=False):
                self._sort_rows(X, start, stop, int(first), following)

    def _sort_rows(
        self, X: Any, start: int, stop: int, first: int, following: np.ndarray
    ) -> None:
        """Write the places of some rows' elements to where they follow."""
        begin, end = int(X.indptr[start]), int(X.indptr[stop])
        numbers = np.arange(end - begin, dtype=np.int32)
        indptr = X.indptr[start : stop + 1] - X.indptr[start]
        shape = stop - start, X.shape[1]
        by_row = sparse.csr_array((numbers, X.indices[begin:end], indptr), shape=shape)
        by_column = by_row.tocsc()
        counts = np.diff(by_column.indptr)
        targets = np.repeat(following - by_column.indptr[:-1], counts)
        targets += numbers
        found = by_column.data.astype(self._places.dtype, copy=False)
        found += self._places.dtype.type(first + begin)
        self._places[targets] = found
        following += counts

    def parts(self) -> Iterator[np.ndarray]:
        """All columns, some at a time that have a small part of the elements."""
        cuts = np.searchsorted(self._bounds, np.arange(0, self._bounds[-1], self._most))
        n_features = len(self._bounds) - 1
        for start, stop in pairwise(np.unique([0, *cuts, n_features])):
            yield np.arange(start, stop)

    def n_stored(self, index: np.ndarray) -> int:
        """Elements of some columns."""
        return int((self._bounds[index + 1] - self._bounds[index]).sum())

    def take(self, index: np.ndarray, dtype: np.dtype | None = None) -> Any:
        """Some columns as a CSC.

        Parameters
        ----------
        index : ndarray of int of shape (k,)
            Columns wanted.
        dtype : numpy.dtype, default=None
            Type of the elements; None is that of the rows.

        Returns
        -------
        columns : CSC of shape (n_rows, k)
            Elements of each column by their rows.
        """
        starts = self._bounds[index]
        counts = self._bounds[index + 1] - starts
        bounds = np.zeros(len(index) + 1, dtype=np.int64)
        np.cumsum(counts, out=bounds[1:])
        wanted = np.repeat(starts - bounds[:-1], counts)
        wanted += np.arange(bounds[-1])
        places = self._places[wanted]
        # The last row that begins at a place or before has it: empty ones do, too.
        rows = np.searchsorted(self._row_starts, places, side="right") - 1
        index_dtype = self._blocks[0].indices.dtype
        taken = self._type((self._n_rows, len(index)), dtype=dtype or self.dtype)
        taken.data = self._values(places, taken.dtype)
        taken.indices = rows.astype(index_dtype)
        taken.indptr = bounds.astype(index_dtype)
        return taken

    def _values(self, places: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Elements at some places."""
        if len(self._blocks) == 1:
            return self._blocks[0].data[places].astype(dtype, copy=False)
        values = np.empty(len(places), dtype)
        of_block = np.searchsorted(self._firsts, places, side="right") - 1
        for number in np.unique(of_block):
            own = of_block == number
            values[own] = self._blocks[number].data[places[own] - self._firsts[number]]
        return values
