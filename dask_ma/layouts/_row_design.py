"""The data of a fit with its rows shared out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import (
    Group,
    allreduce,
    gather,
    reduce_and_gather,
    reduce_scatter,
)
from dask_ma.data import Shard
from dask_ma.kernels import column_store, take_columns
from dask_ma.layouts._column_store import ColumnStore
from dask_ma.layouts._columns import joined_columns
from dask_ma.layouts._design import (
    Design,
    Part,
    at_once,
    copied_columns,
    n_stored,
    raw_moments,
    squares_about_mean,
    transposed_product,
)

_FETCHED_BYTES = 64 * 2**20  # of columns that are kept beside each other


class RowDesign(Design):
    """Rows are shared out: each rank has all columns of its rows.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        Its rows. Sparse ones are laid out anew, column by column; dense ones are used
        as they are.
    """

    def __init__(self, group: Group, shard: Shard) -> None:
        super().__init__(group, shard)
        self._blocks = [block.X for block in shard.blocks]
        if self._blocks and shard.is_sparse:
            self._blocks = [joined_columns(shard)]
        self._bounds = np.cumsum([0, *(X.shape[0] for X in self._blocks)])
        self._living = self._blocks  # the living columns of the blocks
        self._is_sparse = any(sparse.issparse(X) for X in self._blocks)
        self._fetched = np.zeros(0, dtype=np.int64)  # sorted
        self._columns = np.zeros((0, self.n_rows))
        self.n_stored = n_stored(self._living)

    def _make_store(self) -> ColumnStore:
        # One copy of sparse rows serves both; dense ones are read faster by column.
        stores = [X if sparse.issparse(X) else column_store(X) for X in self._blocks]
        return ColumnStore(stores, self.n_features)

    def targets(self) -> np.ndarray | None:
        given = [block.y for block in self.shard.blocks if block.y is not None]
        if len(given) < len(self.shard.blocks):
            return None
        return np.concatenate(given) if given else np.zeros(0)

    def weights(self) -> np.ndarray | None:
        if all(block.sample_weight is None for block in self.shard.blocks):
            return None
        return np.concatenate(
            [b.weights() for b in self.shard.blocks], dtype=np.float64
        )

    def whole_columns(self, values: np.ndarray) -> np.ndarray:
        return allreduce(self.group, values)

    def is_counted(self) -> bool:
        return True

    def _products(
        self, vectors: np.ndarray, sums: np.ndarray
    ) -> tuple[Part, np.ndarray]:
        products = np.zeros((len(self.alive), vectors.shape[1]))
        for rows, X in self._rows(self._living):
            products += transposed_product(X, vectors[rows])
        return self._scattered(products, sums)

    def _own_column_sums(self, weight: np.ndarray) -> np.ndarray:
        self.n_touched += n_stored(self._blocks)
        sums = np.zeros(self.n_features)
        for rows, X in self._rows(self._blocks):
            sums += transposed_product(X, weight[rows, np.newaxis])[:, 0]
        return sums

    def cross_on_root(
        self,
        left: np.ndarray,
        right: np.ndarray,
        weight: np.ndarray,
        means: np.ndarray | None = None,
        payload: Any = None,
    ) -> tuple[np.ndarray, list[Any]] | None:
        own = self._share_of_cross(left, right, weight, means)
        found = reduce_and_gather(self.group, [own], payload)
        return None if found is None else (found[0][0], found[1])

    def columns_on_root(
        self,
        features: np.ndarray,
        weight: np.ndarray,
        means: np.ndarray | None = None,
        payload: Any = None,
    ) -> tuple[np.ndarray, list[Any]] | None:
        own = self._rooted(features, weight, means)
        found = gather(self.group, (own, payload))
        if found is None:
            return None
        parts, payloads = zip(*found, strict=True)
        return np.concatenate(parts, axis=1), list(payloads)

    def _squares(self, weight: np.ndarray, center: bool) -> Part:
        sums = np.zeros((len(self.alive), 2))
        for rows, X in self._rows(self._living):
            sums += raw_moments(X, weight[rows], center)
        part, _ = self._scattered(sums, np.zeros(0))
        return Part(part.features, squares_about_mean(part.values))

    def restrict(self, alive: np.ndarray) -> None:
        self.alive = alive
        self._living = [copied_columns(X, alive) for X in self._blocks]
        self.n_stored = n_stored(self._living)

    def restore(self) -> None:
        self.alive = np.arange(self.n_features)
        self._living = self._blocks
        self.n_stored = n_stored(self._living)

    def fetch(self, features: np.ndarray) -> None:
        """All columns are at hand; some dense ones are laid beside each other."""
        wanted = np.unique(features)
        if self._is_sparse or 8 * len(wanted) * self.n_rows > _FETCHED_BYTES:
            wanted = wanted[:0]
        known = np.isin(wanted, self._fetched, assume_unique=True)
        columns = np.empty((len(wanted), self.n_rows))
        columns[known] = self._columns[np.searchsorted(self._fetched, wanted[known])]
        new = np.flatnonzero(~known)
        if len(new):
            for rows, X in self._rows(self._blocks):
                columns[new, rows] = X.take(wanted[new], axis=1).T
        self._fetched, self._columns = wanted, columns

    def _chunks(self, features: np.ndarray) -> Iterator[tuple[slice, Any]]:
        if len(self._fetched):
            places = np.searchsorted(self._fetched, features)
            if np.array_equal(self._fetched.take(places, mode="clip"), features):
                yield slice(0, self.n_rows), self._columns[places].T
                return
        step = at_once(len(features))
        for block, X in self._rows(self._blocks):
            if sparse.issparse(X):
                yield block, take_columns(X, features)
                continue
            for start in range(0, X.shape[0], step):
                part = X[start : start + step].take(features, axis=1)
                first = block.start + start
                columns = part.astype(np.float64, copy=False)
                yield slice(first, first + len(part)), columns

    def _rows(self, blocks: list[Any]) -> Iterator[tuple[slice, Any]]:
        """The blocks and where their rows are."""
        for start, X in zip(self._bounds, blocks, strict=False):
            yield slice(int(start), int(start) + X.shape[0]), X

    def _scattered(
        self, values: np.ndarray, for_all: np.ndarray
    ) -> tuple[Part, np.ndarray]:
        """Sums over ranks: of some living features for each rank, and some for all."""
        group, (n, width) = self.group, values.shape
        if group.size == 1:
            group.raise_if_closed()
            return Part(self.alive, values), for_all
        # Parts of whole features: all ranks' parts are made equally long for this, and
        # each ends with what all ranks get.
        length = -(-n // group.size)
        padded = np.zeros((group.size, length * width + len(for_all)))
        parts = np.zeros(length * group.size * width)
        parts[: n * width] = values.ravel()
        padded[:, : length * width] = parts.reshape(group.size, length * width)
        padded[:, length * width :] = for_all
        own = reduce_scatter(group, padded)
        features = self.alive[length * group.rank : length * (group.rank + 1)]
        found = own[: len(features) * width].reshape(len(features), width)
        return Part(features, found), own[length * width :]
