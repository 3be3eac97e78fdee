"""The data of a fit with its rows shared out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from dask_ma.comm import (
    Group,
    allreduce,
    gather,
    reduce_and_gather,
    reduce_scatter,
    reduce_scatter_parts,
)
from dask_ma.data import Shard, hand_back, is_on_disk, read_ahead
from dask_ma.kernels import column_squares, column_store, take_columns
from dask_ma.layouts._column_store import ColumnStore
from dask_ma.layouts._columns import FEW_STORED as _SMALL
from dask_ma.layouts._columns import joined_columns
from dask_ma.layouts._design import (
    Design,
    Part,
    at_once,
    copied_columns,
    is_among,
    n_stored,
    raw_moments,
    squares_about_mean,
    transposed_product,
)
from dask_ma.layouts._read_columns import ReadColumns, is_read
from dask_ma.layouts._row_columns import RowColumns

_FETCHED_BYTES = 64 * 2**20  # of columns that are kept beside each other
# Of sparse columns, so many elements may be copied; or one of so many of all.
_LITTLE = 2**19
_COPIED = 8
# Of the products of all columns, each rank's part is worked out and sent by itself, if
# it has so many columns; it begins at a multiple of some, as kernels take them.
_PART = 2**13
_MULTIPLE = 64


class RowDesign(Design):
    """Rows are shared out: each rank has all columns of its rows.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        Its rows, which are used as they are. Beside sparse ones lies where the elements
        of each column are, and no more than a quarter of them is copied. They are laid
        out anew, column by column, for :attr:`store`, where a row names a column twice,
        where they are several blocks or few, and where they would be read from a disk.
        Those on a disk whose columns are too many for the memory are read, block by
        block, for each product and for the columns of a working set.
    """

    def __init__(self, group: Group, shard: Shard) -> None:
        super().__init__(group, shard)
        self._blocks = [block.X for block in shard.blocks]
        self.is_sparse = bool(self._blocks) and shard.is_sparse
        self._is_read = is_read(group, shard)
        # Sums over one block have the bits of those over its columns; over several they
        # would not have those of the same rows on a disk.
        if (
            self.is_sparse
            and not self._is_read
            and (
                len(self._blocks) > 1
                or n_stored(self._blocks) <= _SMALL
                or not _can_be_used(self._blocks[0])
            )
        ):
            self._blocks = [joined_columns(shard)]
        # The living columns of the blocks, or all columns where copies were too much.
        self._living = self._blocks
        self._are_all = True
        self._fetched = np.zeros(0, dtype=np.int64)  # sorted
        self._columns: Any = np.zeros((0, self.n_rows))
        self.n_stored = n_stored(self._living)

    @cached_property
    def _by_column(self) -> RowColumns | ReadColumns | None:
        """Columns of sparse rows; None where they lie by column already."""
        if not self.is_sparse or self._blocks[0].format != "csr":
            return None
        return (ReadColumns if self._is_read else RowColumns)(self._blocks)

    def _make_store(self) -> ColumnStore:
        if self.is_sparse:
            is_by_row = self._blocks[0].format == "csr"
            stores = [joined_columns(self.shard)] if is_by_row else self._blocks
        else:
            stores = [column_store(X) for X in self._blocks]
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
        # Ranks may have rows of another kind, or none: this is the same on all of them.
        n_ranks = self.group.size
        is_apart = self.group.layout.n_nodes == n_ranks > 1
        if is_apart and self._is_long(len(self.alive)):
            return self._products_in_parts(vectors, sums)
        return self._scattered(self._living_products(vectors), sums)

    def _is_long(self, n: int) -> bool:
        """Whether so many columns are worked out part by part."""
        return n >= self.group.size * _PART

    def _length(self, n: int) -> int:
        """Columns of a rank's part of so many, but for the last ones."""
        length = -(-n // self.group.size)
        return length + -length % _MULTIPLE if self._is_long(n) else length

    def _slices(self, n: int) -> list[slice]:
        """Of columns whose products are one, wherever ranks are: bits may go by it."""
        # Rows on a disk are read once, and sparse ones have no parts to go by.
        is_whole = self.is_sparse or any(map(is_on_disk, self._blocks))
        if is_whole or not self._is_long(n):
            return [slice(None)]
        length = self._length(n)
        return [slice(first, first + length) for first in range(0, n, length)]

    def _products_in_parts(
        self, vectors: np.ndarray, sums: np.ndarray
    ) -> tuple[Part, np.ndarray]:
        """What :meth:`_products` gives, each part sent while the next is worked out."""
        n, width = len(self.alive), vectors.shape[1]
        length = self._length(n)
        is_cut = len(self._slices(n)) > 1
        whole = None if is_cut else self._living_products(vectors)

        def part_of(rank: int) -> np.ndarray:
            part = np.zeros(length * width + len(sums))
            part[length * width :] = sums
            start, stop = length * rank, min(n, length * (rank + 1))
            if start < stop:
                found = part[: (stop - start) * width].reshape(-1, width)
                if whole is not None:
                    found[:] = whole[start:stop]
                else:
                    self._add_products(found, vectors, slice(start, stop))
            return part

        return self._own_part(reduce_scatter_parts(self.group, part_of), length, width)

    def _add_products(
        self, found: np.ndarray, vectors: np.ndarray, columns: slice
    ) -> None:
        """Add products of some living columns, which are dense and in memory."""
        for rows, X in self._rows(self._living):
            found += transposed_product(X, vectors[rows], columns)

    def _living_products(self, vectors: np.ndarray) -> np.ndarray:
        """Products of all living columns."""
        slices = self._slices(len(self.alive))
        if len(slices) == 1:
            return self._of_living(
                vectors.shape[1], lambda X, rows: transposed_product(X, vectors[rows])
            )
        found = np.zeros((len(self.alive), vectors.shape[1]))
        for columns in slices:
            self._add_products(found[columns], vectors, columns)
        return found

    def _of_living(
        self, width: int, function: Callable[[Any, slice], np.ndarray]
    ) -> np.ndarray:
        """Sums over blocks of what a function has for their living columns."""
        n_columns = self.n_features if self._are_all else len(self.alive)
        found = np.zeros((n_columns, width))
        for rows, X in self._rows(self._living):
            found += function(X, rows)
        return found if n_columns == len(self.alive) else found[self.alive]

    def _own_column_sums(self, weight: np.ndarray) -> np.ndarray:
        self.n_touched += n_stored(self._blocks)
        sums = np.zeros(self.n_features)
        for columns in self._slices(self.n_features):
            for rows, X in self._rows(self._blocks):
                found = transposed_product(X, weight[rows, np.newaxis], columns)
                sums[columns] += found[:, 0]
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
        sums = self._of_living(
            2, lambda X, rows: self._moments(X, weight[rows], center)
        )
        part, _ = self._scattered(sums, np.zeros(0))
        return Part(part.features, squares_about_mean(part.values))

    def _moments(self, X: Any, weight: np.ndarray, center: bool) -> np.ndarray:
        """What :func:`raw_moments` has, with the bits of rows laid out by column."""
        columns = self._by_column
        if not isinstance(columns, RowColumns) or X.format == "csc":
            return raw_moments(X, weight, center)
        moments = np.zeros((self.n_features, 2))
        for part in columns.parts():
            moments[part, 0] = column_squares(columns.take(part), weight)
        if center:
            moments[:, 1] = transposed_product(X, weight[:, np.newaxis])[:, 0]
        return moments

    def restrict(self, alive: np.ndarray) -> None:
        self.alive = alive
        columns = self._by_column
        self._living, self._are_all = self._blocks, True
        if columns is None:
            if not self._is_read or _COPIED * len(alive) <= self.n_features:
                self._living = [copied_columns(X, alive) for X in self._blocks]
                self._are_all = False
        elif self._is_little(columns, alive):
            self._living, self._are_all = [columns.take(alive)], False
        self.n_stored = n_stored(self._living)

    def restore(self) -> None:
        self.alive = np.arange(self.n_features)
        self._living, self._are_all = self._blocks, True
        self.n_stored = n_stored(self._living)

    def fetch(self, features: np.ndarray) -> None:
        """All columns are at hand; some are laid beside each other."""
        wanted = np.unique(features)
        if self.is_sparse:
            self._fetch_sparse(wanted)
            return
        if 8 * len(wanted) * self.n_rows > _FETCHED_BYTES:
            wanted = wanted[:0]
        known = is_among(wanted, self._fetched)
        columns = np.empty((len(wanted), self.n_rows))
        columns[known] = self._columns[np.searchsorted(self._fetched, wanted[known])]
        new = np.flatnonzero(~known)
        if len(new):
            for rows, X in self._rows(self._blocks):
                columns[new, rows] = X.take(wanted[new], axis=1).T
        self._fetched, self._columns = wanted, columns

    def _fetch_sparse(self, wanted: np.ndarray) -> None:
        """Keep some sparse columns, if they are few."""
        columns = self._by_column
        if columns is None or np.array_equal(wanted, self._fetched):
            return
        self._fetched = wanted if self._is_little(columns, wanted) else wanted[:0]
        self._columns = columns.take(self._fetched, np.dtype(np.float64))

    def _is_little(
        self, columns: RowColumns | ReadColumns, features: np.ndarray
    ) -> bool:
        """Whether a copy of some sparse columns takes little beside the rows."""
        n = columns.n_stored(features)
        return n <= _LITTLE or _COPIED * n <= n_stored(self._blocks)

    def _sparse_columns(self, features: np.ndarray) -> Any:
        """Columns of sparse rows, fetched ones or others."""
        columns = self._by_column
        if columns is None:
            return take_columns(self._blocks[0], features)
        if len(self._fetched):
            places = np.searchsorted(self._fetched, features)
            if np.array_equal(self._fetched.take(places, mode="clip"), features):
                return take_columns(self._columns, places)
        return columns.take(features, np.dtype(np.float64))

    def _chunks(self, features: np.ndarray) -> Iterator[tuple[slice, Any]]:
        if self.is_sparse:
            yield slice(0, self.n_rows), self._sparse_columns(features)
            return
        if len(self._fetched):
            places = np.searchsorted(self._fetched, features)
            if np.array_equal(self._fetched.take(places, mode="clip"), features):
                yield slice(0, self.n_rows), self._columns[places].T
                return
        step = at_once(len(features))
        for block, X in self._rows(self._blocks):
            for start in range(0, X.shape[0], step):
                part = X[start : start + step].take(features, axis=1)
                first = block.start + start
                columns = part.astype(np.float64, copy=False)
                yield slice(first, first + len(part)), columns

    def _rows(self, blocks: list[Any]) -> Iterator[tuple[slice, Any]]:
        """The blocks and where their rows are."""
        start = 0
        for X in read_ahead(blocks):
            yield slice(start, start + X.shape[0]), X
            start += X.shape[0]
            hand_back(X)

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
        length = self._length(n)
        padded = np.zeros((group.size, length * width + len(for_all)))
        parts = np.zeros(length * group.size * width)
        parts[: n * width] = values.ravel()
        padded[:, : length * width] = parts.reshape(group.size, length * width)
        padded[:, length * width :] = for_all
        return self._own_part(reduce_scatter(group, padded), length, width)

    def _own_part(
        self, own: np.ndarray, length: int, width: int
    ) -> tuple[Part, np.ndarray]:
        """Of what this rank gets, the values of its features, and what all get."""
        first = length * self.group.rank
        features = self.alive[first : first + length]
        found = own[: len(features) * width].reshape(len(features), width)
        return Part(features, found), own[length * width :]


def _can_be_used(X: Any) -> bool:
    """Whether sparse rows serve as they are."""
    return not is_on_disk(X) and bool(X.has_canonical_format)
