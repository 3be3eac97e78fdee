"""Columns of a rank, of which some are read at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.kernels import (
    ColumnEntries,
    add_columns,
    column_entries,
    column_products,
    column_squares,
    column_sums,
)


class ColumnStore:
    """All columns of some rows, or all rows of some columns.

    Parameters
    ----------
    stores : list of ndarray or list of CSC, of shape (n, n_columns)
        Rows, as :func:`~dask_ma.kernels.column_store` gives them; sparse ones in one
        piece.
    n_columns : int
        Number of columns.
    first : int, default=0
        Number of the first column among all. Methods that take columns want their
        numbers among all.

    Attributes
    ----------
    n_rows : int
        Number of rows.
    n_touched : int
        Stored elements that products, sums and additions have read so far.
    """

    def __init__(self, stores: list[Any], n_columns: int, first: int = 0) -> None:
        self._stores = stores
        self._n_columns = n_columns
        self._first = first
        self._is_sparse = bool(stores) and sparse.issparse(stores[0])
        stops = np.cumsum([store.shape[0] for store in stores], dtype=int).tolist()
        starts = [0, *stops[:-1]]
        self._parts = [slice(a, b) for a, b in zip(starts, stops, strict=False)]
        self.n_rows = stops[-1] if stops else 0
        self.n_touched = 0

    def n_stored(self, index: np.ndarray) -> int:
        """Stored elements of some columns."""
        if not self._is_sparse:
            return self.n_rows * len(index)
        indptr, index = self._stores[0].indptr, index - self._first
        return int((indptr[index + 1].astype(np.int64) - indptr[index]).sum())

    def sums(self, weight: np.ndarray | None) -> np.ndarray:
        """Weighted sums of all columns here; weights of None are 1."""
        sums = np.zeros(self._n_columns)
        self.n_touched += self._n_elements()
        for store, part in self._pairs():
            sums += column_sums(store, _of(weight, part))
        return sums

    def squares(
        self, weight: np.ndarray | None, center: np.ndarray | None = None
    ) -> np.ndarray:
        """Weighted sums of squares of all columns here, less a center.

        The center has a value for the columns of all ranks.
        """
        squares = np.zeros(self._n_columns)
        self.n_touched += self._n_elements()
        if center is not None:
            center = center[self._first : self._first + self._n_columns]
        for store, part in self._pairs():
            squares += column_squares(store, _of(weight, part), center)
        return squares

    def products(self, index: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Products of some columns with a value, or some values, of each row."""
        products = np.zeros((len(index), *values.shape[1:]))
        self.n_touched += self.n_stored(index)
        index = index - self._first
        for store, part in self._pairs():
            products += column_products(store, index, values[part])
        return products

    def has_few(self, index: np.ndarray) -> bool:
        """Whether some columns have fewer stored elements than there are rows."""
        return self._is_sparse and self.n_stored(index) < self.n_rows

    def entries(self, index: np.ndarray) -> ColumnEntries:
        """Stored elements of some sparse columns."""
        self.n_touched += self.n_stored(index)
        return column_entries(self._stores[0], index - self._first)

    def add(
        self,
        out: np.ndarray,
        change: np.ndarray,
        index: np.ndarray,
        weight: np.ndarray | None = None,
    ) -> None:
        """Add some columns, each times a change, to a value of each row.

        Rows are multiplied by their weights first.
        """
        self.n_touched += self.n_stored(index)
        index = index - self._first
        for store, part in self._pairs():
            add_columns(out[part], store, index, change, _of(weight, part))

    def places(self, index: np.ndarray) -> np.ndarray:
        """Where some columns are among those here."""
        return np.asarray(index - self._first)

    def _n_elements(self) -> int:
        """Stored elements of all columns."""
        stores = self._stores
        return sum(X.nnz if sparse.issparse(X) else X.size for X in stores)

    def _pairs(self) -> Iterator[tuple[Any, slice]]:
        """The stores, and where their rows are."""
        return zip(self._stores, self._parts, strict=True)


def _of(weight: np.ndarray | None, part: slice) -> np.ndarray | None:
    """Weights of some rows."""
    return None if weight is None else weight[part]
