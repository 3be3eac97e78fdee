"""The data of a fit as products with columns, whether rows or columns are shared out.

A coefficient has a coordinate: ``feature * n_outputs + output``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce, reduce_scatter
from dask_ma.data import Shard
from dask_ma.kernels import column_squares, take_columns
from dask_ma.layouts._columns import joined_columns

_CHUNK_BYTES = 8 * 2**20
_FETCHED_BYTES = 64 * 2**20  # of columns that are kept beside each other
_ROUNDING = 1e-13  # of a sum of squares, when the square of the mean is taken off


class Part(NamedTuple):
    """Values of consecutive features, some of those of all ranks.

    Attributes
    ----------
    features : ndarray of int64 of shape (k,)
        Which they are.
    values : ndarray of float64 of shape (k, n_outputs)
    """

    features: np.ndarray
    values: np.ndarray


class Design(ABC):
    """The matrix of features, as one rank sees it.

    Parameters
    ----------
    group : Group
        This rank.
    n_features : int
        Number of columns.
    n_rows : int
        Rows whose margins this rank keeps.

    Attributes
    ----------
    alive : ndarray of int64
        Features that may have a coefficient other than zero.
    n_stored : int
        Elements that this rank goes over in a product with all its columns.
    n_touched : int
        Stored elements that products of this rank have read so far.
    """

    n_stored: int

    def __init__(self, group: Group, n_features: int, n_rows: int) -> None:
        self.group = group
        self.n_features = n_features
        self.n_rows = n_rows
        self.alive = np.arange(n_features)
        self.n_touched = 0

    @abstractmethod
    def is_counted(self) -> bool:
        """Whether sums over this rank's rows count in sums over all ranks."""

    def products(self, vectors: np.ndarray) -> Part:
        """``X' vectors`` for some of the living features; a collective call.

        Parameters
        ----------
        vectors : ndarray of float64 of shape (n_rows, n_outputs)

        Returns
        -------
        part : Part
            The parts of all ranks together hold each living feature once.
        """
        self.n_touched += self.n_stored
        return self._products(vectors)

    @abstractmethod
    def _products(self, vectors: np.ndarray) -> Part:
        """What :meth:`products` gives."""

    def squares(self, weight: np.ndarray, center: bool) -> Part:
        """Upper bounds of the weighted sums of squares of the living features.

        A collective call. They are the sums themselves but for rounding.

        Parameters
        ----------
        weight : ndarray of shape (n_rows,)
            Weights of the rows, which add up to 1 over all rows.
        center : bool
            Whether the mean is taken from each column.
        """
        self.n_touched += self.n_stored
        return self._squares(weight, center)

    @abstractmethod
    def _squares(self, weight: np.ndarray, center: bool) -> Part:
        """What :meth:`squares` gives."""

    @abstractmethod
    def restrict(self, alive: np.ndarray) -> None:
        """Leave out all but the given features, which are among the living ones."""

    @abstractmethod
    def restore(self) -> None:
        """Take all features for living again."""

    @abstractmethod
    def fetch(self, features: np.ndarray) -> None:
        """Have some columns at hand for :meth:`chunks`; a collective call."""

    def chunks(self, features: np.ndarray) -> Iterator[tuple[slice, Any]]:
        """Fetched columns, some rows at a time.

        Parameters
        ----------
        features : ndarray of int64 of shape (k,)

        Yields
        ------
        rows : slice
            Which rows.
        columns : ndarray or CSC of float64 of shape (some rows, k)
            It may be changed if it is dense.
        """
        for rows, columns in self._chunks(features):
            self.n_touched += n_stored([columns])
            yield rows, columns

    @abstractmethod
    def _chunks(self, features: np.ndarray) -> Iterator[tuple[slice, Any]]:
        """What :meth:`chunks` yields."""

    def own_share(self, n: int) -> slice:
        """Part of `n` pieces of work that this rank does for all."""
        return slice(0, n)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Add up what each rank has worked out from its rows; a collective call."""
        return allreduce(
            self.group, values if self.is_counted() else np.zeros_like(values)
        )

    def dot(self, features: np.ndarray, values: np.ndarray) -> np.ndarray:
        """``X[:, features] values`` for values of shape (k, n_outputs)."""
        result = np.zeros((self.n_rows, values.shape[1]))
        if not len(features):
            return result
        for rows, columns in self.chunks(features):
            result[rows] = columns @ values
        return result

    def transposed_dot(self, features: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """``X[:, features]' vectors``, from this rank's rows alone."""
        result = np.zeros((len(features), vectors.shape[1]))
        if not len(features):
            return result
        for rows, columns in self.chunks(features):
            result += columns.T @ vectors[rows]
        return result

    def moments(self, features: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Weighted sums of the squares of fetched columns, and of the columns.

        Parameters
        ----------
        features : ndarray of int64 of shape (k,)
            Columns.
        weight : ndarray of shape (n_rows,)
            Weights of the rows.

        Returns
        -------
        moments : ndarray of float64 of shape (k, 2)
            From this rank's rows alone.
        """
        result = np.zeros((len(features), 2))
        for rows, columns in self.chunks(features):
            result += raw_moments(columns, weight[rows], with_means=True)
        return result

    def cross(
        self,
        left: np.ndarray,
        right: np.ndarray,
        weight: np.ndarray,
        means: np.ndarray | None = None,
    ) -> np.ndarray:
        """``X[:, left]' diag(weight) X[:, right]``, this rank's part of the sum.

        Parameters
        ----------
        left, right : ndarray of int64
            Features.
        weight : ndarray of shape (n_rows,)
            Weights of the rows.
        means : ndarray of shape (n_features,), default=None
            Weighted means that are taken from the columns; needs weights that add up
            to 1 over all rows.

        Returns
        -------
        cross : ndarray of float64 of shape (len(left), len(right))
            To be added up over ranks.
        """
        result = np.zeros((len(left), len(right)))
        share = self.own_share(len(left))
        mine = left[share]
        if not len(mine) or not len(right):
            return result
        both, places = np.unique(np.concatenate([mine, right]), return_inverse=True)
        at_left, at_right = places[: len(mine)], places[len(mine) :]
        centers = None if means is None else means[both]
        for rows, columns in self.chunks(both):
            result[share] += _cross(columns, at_left, at_right, weight[rows], centers)
        return result


def _cross(
    columns: Any,
    left: np.ndarray,
    right: np.ndarray,
    weight: np.ndarray,
    centers: np.ndarray | None,
) -> np.ndarray:
    """Weighted products of columns of some rows."""
    if not sparse.issparse(columns):
        if centers is not None:
            columns -= centers
        weighted = columns[:, right] * weight[:, np.newaxis]
        product: np.ndarray = columns[:, left].T @ weighted
        return product
    product = _sparse_cross(columns, left, right, weight)
    if centers is not None:
        product -= np.outer(centers[left] * weight.sum(), centers[right])
    return product


def _sparse_cross(
    columns: Any, left: np.ndarray, right: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """Products of sparse columns, some of the right ones made dense at a time."""
    # The transpose of CSC is CSR, for which the product is fast; taking out the left
    # columns costs more than working out some products too many.
    result = np.zeros((columns.shape[1], len(right)))
    step = max(1, _CHUNK_BYTES // (8 * max(1, columns.shape[0])))
    for start in range(0, len(right), step):
        part = slice(start, start + step)
        dense = columns[:, right[part]].toarray(order="C")
        dense *= weight[:, np.newaxis]
        result[:, part] = columns.T @ dense
    return result[left]


class RowDesign(Design):
    """Rows are shared out: each rank has all columns of its rows.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        Its rows. Sparse ones are laid out anew, column by column; dense ones are used
        as they are.

    Attributes
    ----------
    columns : CSC of shape (n_rows, n_features), or None
        The rows, if they are sparse.
    """

    def __init__(self, group: Group, shard: Shard) -> None:
        super().__init__(group, shard.n_features, shard.n_rows)
        blocks = [block.X for block in shard.blocks]
        is_sparse = bool(blocks) and shard.is_sparse
        self.columns = joined_columns(shard) if is_sparse else None
        self._blocks = blocks if self.columns is None else [self.columns]
        self._bounds = np.cumsum([0, *(X.shape[0] for X in self._blocks)])
        self._living = self._blocks  # the living columns of the blocks
        self._is_sparse = any(sparse.issparse(X) for X in self._blocks)
        self._fetched = np.zeros(0, dtype=np.int64)  # sorted
        self._columns = np.zeros((0, self.n_rows))
        self.n_stored = n_stored(self._living)

    def is_counted(self) -> bool:
        return True

    def _products(self, vectors: np.ndarray) -> Part:
        sums = np.zeros((len(self.alive), vectors.shape[1]))
        for rows, X in self._rows(self._living):
            sums += transposed_product(X, vectors[rows])
        return self._scattered(sums)

    def _squares(self, weight: np.ndarray, center: bool) -> Part:
        sums = np.zeros((len(self.alive), 2))
        for rows, X in self._rows(self._living):
            sums += raw_moments(X, weight[rows], center)
        part = self._scattered(sums)
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
        step = max(1, _CHUNK_BYTES // (8 * max(1, len(features))))
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

    def _scattered(self, sums: np.ndarray) -> Part:
        """Sums over all ranks of one part of the living features for each rank."""
        group, n = self.group, len(self.alive)
        if group.size == 1:
            group.raise_if_closed()
            return Part(self.alive, sums)
        # Parts of whole features: all ranks' parts are made equally long for this.
        length = -(-n // group.size)
        padded = np.zeros((length * group.size, sums.shape[1]))
        padded[:n] = sums
        values = reduce_scatter(group, padded).reshape(length, sums.shape[1])
        features = self.alive[length * group.rank : length * (group.rank + 1)]
        return Part(features, values[: len(features)])


def transposed_product(X: Any, vectors: np.ndarray) -> np.ndarray:
    """``X' vectors`` in float64, without a copy of all of X."""
    if sparse.issparse(X) or X.dtype == np.float64:
        # One vector takes a faster way than a matrix of one column.
        if vectors.shape[1] == 1:
            return np.asarray(X.T @ vectors[:, 0])[:, np.newaxis]
        return np.asarray(X.T @ vectors)
    result = np.zeros((X.shape[1], vectors.shape[1]))
    step = max(1, _CHUNK_BYTES // (8 * max(1, X.shape[1])))
    for start in range(0, X.shape[0], step):
        rows = slice(start, start + step)
        result += X[rows].astype(np.float64).T @ vectors[rows]
    return result


def raw_moments(X: Any, weight: np.ndarray, with_means: bool) -> np.ndarray:
    """Weighted sums of the squares of columns, and of the columns, or zeros."""
    moments = np.zeros((X.shape[1], 2))
    if sparse.issparse(X) or X.dtype != np.float64:
        moments[:, 0] = column_squares(X, weight)
    else:  # faster, and without a copy
        moments[:, 0] = np.einsum("ij,ij,i->j", X, X, weight)
    if with_means:
        moments[:, 1] = transposed_product(X, weight[:, np.newaxis])[:, 0]
    return moments


def squares_about_mean(moments: np.ndarray) -> np.ndarray:
    """Upper bounds of the sums of squares about the means, from raw moments."""
    raw, means = moments.T
    bounds = np.maximum(raw - means**2, 0.0) + _ROUNDING * raw
    return np.asarray(bounds[:, np.newaxis])


def copied_columns(X: Any, index: np.ndarray) -> Any:
    """Some columns as a block of their own, in their dtype."""
    return X[:, index] if sparse.issparse(X) else X.take(index, axis=1)


def n_stored(blocks: list[Any]) -> int:
    """Stored elements of blocks."""
    return sum(X.nnz if sparse.issparse(X) else X.size for X in blocks)
