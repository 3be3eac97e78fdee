"""The data of a rank, laid out by columns, with one value per row kept beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.data import Shard
from dask_ma.kernels import (
    add_columns,
    column_entries,
    column_products,
    column_squares,
    column_store,
    column_sums,
    segment_sums,
)
from dask_ma.layouts._columns import ColumnShard, joined_columns


@dataclass
class LaidOutShard(Shard):
    """A shard of sparse rows that somebody has laid out by columns already.

    Attributes
    ----------
    columns : CSC of shape (n_rows, n_features)
        The rows of all blocks.
    """

    columns: Any = None


class LocalColumns:
    """Rows of a rank for coordinate descent, or all rows of some columns.

    Parameters
    ----------
    stores : list of ndarray or list of CSC, of shape (n, n_columns)
        Rows, as :func:`~dask_ma.kernels.column_store` gives them.
    y : ndarray of shape (n_rows,)
        Targets.
    weight : ndarray of shape (n_rows,) or None
        Weights of the rows.
    n_features : int
        Number of columns on all ranks.
    first : int, default=0
        Number of the first column in the stores. Methods that take columns want their
        numbers among all.

    Attributes
    ----------
    y : ndarray of float64 of shape (n_rows,)
        Targets.
    weight : ndarray of float64 of shape (n_rows,) or None
        Weights of the rows; None stands for 1.
    values : ndarray of float64 of shape (n_rows,) or (n_rows, K)
        What a program keeps for each row.
    offset : float
        What is to be added to all values.
    codes : ndarray of int of shape (n_rows,) or None
        Classes of the rows, where there are classes.
    sums : ndarray of float64 of shape (n_columns,)
        Weighted sums of the columns in the stores, where a program has set them.
    n_touched : int
        Stored elements that products, sums and additions have read so far.
    """

    def __init__(
        self,
        stores: list[Any],
        y: np.ndarray,
        weight: np.ndarray | None,
        n_features: int,
        first: int = 0,
    ) -> None:
        self.n_features = n_features
        self._first = first
        self._n_columns = stores[0].shape[1] if stores else n_features
        self._stores = stores
        stops = np.cumsum([store.shape[0] for store in self._stores], dtype=int)
        starts = [0, *stops[:-1].tolist()]
        self._parts = [
            slice(a, b) for a, b in zip(starts, stops.tolist(), strict=False)
        ]
        self.y = y.astype(np.float64)
        self.weight = None if weight is None else weight.astype(np.float64)
        self.values = np.zeros(len(self.y))
        self.offset = 0.0
        self.codes: np.ndarray | None = None
        self.sums = np.zeros(0)
        self.n_touched = 0

    @classmethod
    def of_rows(cls, shard: Shard) -> LocalColumns:
        """Store of rows with targets, copied into columns unless they are there."""
        blocks, weight = shard.blocks, None
        if not shard.is_sparse:
            stores = [column_store(block.X) for block in blocks]
        elif isinstance(shard, LaidOutShard):
            stores = [shard.columns]
        else:
            stores = [joined_columns(shard)]
        if any(block.sample_weight is not None for block in blocks):
            weight = _joined([block.weights() for block in blocks])
        y = _joined([np.asarray(b.y, dtype=np.float64) for b in blocks])
        return cls(stores, y, weight, shard.n_features)

    @classmethod
    def of_columns(cls, columns: ColumnShard) -> LocalColumns:
        """Store of all rows of some columns, of which X is not copied."""
        y = np.zeros(0) if columns.y is None else columns.y
        weight, n_features = columns.sample_weight, columns.n_features
        return cls([columns.X], y, weight, n_features, columns.start)

    @property
    def weight_sum(self) -> float:
        """Sum of the weights of the rows."""
        return float(len(self.y) if self.weight is None else self.weight.sum())

    def n_stored(self, index: np.ndarray) -> int:
        """Stored elements of some columns."""
        if not self._stores or not sparse.issparse(self._stores[0]):
            return len(self.y) * len(index)
        indptr, index = self._stores[0].indptr, index - self._first
        return int((indptr[index + 1].astype(np.int64) - indptr[index]).sum())

    def weighted(self, values: np.ndarray) -> np.ndarray:
        """Values of the rows times their weights."""
        if self.weight is None:
            return values
        weight = self.weight if values.ndim == 1 else self.weight[:, np.newaxis]
        return weight * values

    def column_sums(self) -> np.ndarray:
        """Weighted sums of the columns in the stores."""
        sums = np.zeros(self._n_columns)
        self.n_touched += self._n_elements()
        for store, part in self._pairs():
            sums += column_sums(store, self._weight_of(part))
        return sums

    def sums_of(self, index: np.ndarray) -> np.ndarray:
        """What `sums` has for some columns."""
        return np.asarray(self.sums[index - self._first])

    def target_sum(self) -> float:
        """Weighted sum of the targets."""
        return float(self.weighted(self.y).sum())

    def squares(self, center: np.ndarray | None = None) -> np.ndarray:
        """Weighted sums of squares of the columns in the stores, less a center.

        The center has the means of the columns of all ranks.
        """
        squares = np.zeros(self._n_columns)
        self.n_touched += self._n_elements()
        if center is not None:
            center = center[self._first : self._first + self._n_columns]
        for store, part in self._pairs():
            squares += column_squares(store, self._weight_of(part), center)
        return squares

    def products(self, index: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Products of some columns with a value of each row."""
        products = np.zeros((len(index), *values.shape[1:]))
        self.n_touched += self.n_stored(index)
        index = index - self._first
        for store, part in self._pairs():
            products += column_products(store, index, values[part])
        return products

    def products_of(
        self,
        index: np.ndarray,
        function: Callable[[np.ndarray, np.ndarray | None], np.ndarray],
    ) -> np.ndarray:
        """Products of some columns with weighted ``function(values, codes)``.

        The function is worked out for those rows only that the columns have, if these
        are few.
        """
        if self.n_stored(index) >= len(self.y) or self.codes is None:
            return self.products(
                index, self.weighted(function(self.values, self.codes))
            )
        self.n_touched += self.n_stored(index)
        entries, rows, bounds = column_entries(self._stores[0], index - self._first)
        if self.weight is not None:
            entries = entries * self.weight[rows]
        slopes = function(self.values[rows], self.codes[rows])
        factors = entries if slopes.ndim == 1 else entries[:, np.newaxis]
        return segment_sums(factors * slopes, bounds)

    def add(
        self,
        out: np.ndarray,
        change: np.ndarray,
        index: np.ndarray,
        *,
        weighted: bool = False,
    ) -> None:
        """Add some columns, each times a change, to a value of each row."""
        self.n_touched += self.n_stored(index)
        index = index - self._first
        for store, part in self._pairs():
            weight = self._weight_of(part) if weighted else None
            add_columns(out[part], store, index, change, weight)

    def _n_elements(self) -> int:
        """Stored elements of all columns."""
        stores = self._stores
        return sum(X.nnz if sparse.issparse(X) else X.size for X in stores)

    def _pairs(self) -> Any:
        return zip(self._stores, self._parts, strict=True)

    def _weight_of(self, part: slice) -> np.ndarray | None:
        return None if self.weight is None else self.weight[part]


def _joined(columns: list[np.ndarray]) -> np.ndarray:
    """Columns of the blocks laid end to end."""
    return np.concatenate(columns) if columns else np.zeros(0)
