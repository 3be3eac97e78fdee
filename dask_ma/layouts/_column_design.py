"""The data of a fit with its columns shared out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather, gather
from dask_ma.kernels import take_columns
from dask_ma.layouts._column_store import ColumnStore
from dask_ma.layouts._columns import ColumnShard
from dask_ma.layouts._design import (
    Design,
    Part,
    copied_columns,
    n_stored,
    raw_moments,
    squares_about_mean,
    transposed_product,
)


class ColumnDesign(Design):
    """Columns are shared out: each rank has all rows of its columns.

    Parameters
    ----------
    group : Group
        This rank.
    shard : ColumnShard
        Its columns.
    """

    has_all_rows = True

    def __init__(self, group: Group, shard: ColumnShard) -> None:
        super().__init__(group, shard)
        self._X, self.is_sparse = shard.X, sparse.issparse(shard.X)
        self._start, self._stop = shard.start, shard.stop
        self._living = self._X
        self._own = np.arange(self._start, self._stop)
        self._fetched = np.zeros(0, dtype=np.int64)  # sorted
        self._columns: Any = None
        self.n_stored = n_stored([self._X])

    def _make_store(self) -> ColumnStore:
        return ColumnStore([self._X], self._stop - self._start, self._start)

    def targets(self) -> np.ndarray | None:
        y: np.ndarray | None = self.shard.y
        return y if self.n_rows else np.zeros(0)

    def weights(self) -> np.ndarray | None:
        weight = self.shard.sample_weight
        return None if weight is None else weight.astype(np.float64)

    def whole_columns(self, values: np.ndarray) -> np.ndarray:
        return np.concatenate(allgather(self.group, values))

    def is_counted(self) -> bool:
        return self.group.rank == 0

    def own_share(self, n: int) -> slice:
        rank, size = self.group.rank, self.group.size
        return slice(n * rank // size, n * (rank + 1) // size)

    def _products(
        self, vectors: np.ndarray, sums: np.ndarray
    ) -> tuple[Part, np.ndarray]:
        self.group.raise_if_closed()
        return Part(self._own, transposed_product(self._living, vectors)), sums

    def _own_column_sums(self, weight: np.ndarray) -> np.ndarray:
        self.n_touched += n_stored([self._X])
        return transposed_product(self._X, weight[:, np.newaxis])[:, 0]

    def cross_on_root(
        self,
        left: np.ndarray,
        right: np.ndarray,
        weight: np.ndarray,
        means: np.ndarray | None = None,
        payload: Any = None,
    ) -> tuple[np.ndarray, list[Any]] | None:
        # Each rank works out some rows of the result, as they are in the end.
        mine = left[self.own_share(len(left))]
        own = self._share_of_cross(mine, right, weight, means)
        found = gather(self.group, (own, payload))
        if found is None:
            return None
        return np.concatenate([rows for rows, _ in found]), [p for _, p in found]

    def columns_on_root(
        self,
        features: np.ndarray,
        weight: np.ndarray,
        means: np.ndarray | None = None,
        payload: Any = None,
    ) -> tuple[np.ndarray, list[Any]] | None:
        # Each rank has fetched all rows of them.
        found = [] if payload is None else gather(self.group, payload)
        if self.group.rank != 0 or found is None:
            return None
        return self._rooted(features, weight, means), found

    def _squares(self, weight: np.ndarray, center: bool) -> Part:
        moments = raw_moments(self._living, weight, center)
        return Part(self._own, squares_about_mean(moments))

    def restrict(self, alive: np.ndarray) -> None:
        self.alive = alive
        self._own = alive[(alive >= self._start) & (alive < self._stop)]
        self._living = copied_columns(self._X, self._own - self._start)
        self.n_stored = n_stored([self._living])

    def restore(self) -> None:
        self.alive = np.arange(self.n_features)
        self._own = np.arange(self._start, self._stop)
        self._living = self._X
        self.n_stored = n_stored([self._X])

    def fetch(self, features: np.ndarray) -> None:
        wanted = np.unique(features)
        new = np.setdiff1d(wanted, self._fetched, assume_unique=True)
        kept = np.isin(self._fetched, wanted, assume_unique=True)
        if not len(new) and kept.all():
            return
        own = new[(new >= self._start) & (new < self._stop)] - self._start
        pieces = [_unpacked(p) for p in allgather(self.group, _packed(self._X, own))]
        # The ranks' columns follow each other, so the new ones come in order.
        parts = [] if self._columns is None else [self._columns[:, kept]]
        columns = _beside(parts + pieces)
        found = np.concatenate([self._fetched[kept], new])
        order = np.argsort(found)
        self._fetched, self._columns = found[order], columns[:, order]

    def _chunks(self, features: np.ndarray) -> Iterator[tuple[slice, Any]]:
        places = np.searchsorted(self._fetched, features)
        yield slice(0, self.n_rows), self._columns[:, places]


def _packed(X: Any, index: np.ndarray) -> Any:
    """Columns as arrays that travel."""
    columns = take_columns(X, index)
    if not sparse.issparse(columns):
        return np.ascontiguousarray(columns.T)
    return columns.shape[0], columns.data, columns.indices, columns.indptr


def _unpacked(packed: Any) -> Any:
    """Undo :func:`_packed`."""
    if isinstance(packed, np.ndarray):
        return packed.T
    n_rows, data, indices, indptr = packed
    return sparse.csc_array((data, indices, indptr), shape=(n_rows, len(indptr) - 1))


def _beside(parts: list[Any]) -> Any:
    """Blocks of columns beside each other."""
    if any(sparse.issparse(part) for part in parts):
        return sparse.hstack(parts, format="csc")
    return np.hstack(parts)
