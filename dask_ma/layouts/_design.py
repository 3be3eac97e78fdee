"""The data of a fit by their columns, whether rows or columns are shared out.

A design answers in two ways: with products of all columns, added up over ranks, and
with a store of this rank's columns, of which some are looked at at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard
from dask_ma.kernels import column_squares
from dask_ma.layouts._column_store import ColumnStore
from dask_ma.layouts._columns import ColumnShard

_CHUNK_BYTES = 8 * 2**20
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
    shard : Shard or ColumnShard
        Its rows, or its columns.

    Attributes
    ----------
    n_features : int
        Number of columns.
    n_rows : int
        Rows whose margins this rank keeps.
    alive : ndarray of int64
        Features that may have a coefficient other than zero.
    n_stored : int
        Elements that this rank goes over in a product with all its columns.
    n_touched : int
        Stored elements that products of this rank have read so far.
    is_sparse : bool
        Whether this rank has columns of sparse rows.
    """

    #: Whether each rank has all rows of the columns that it has fetched.
    has_all_rows: ClassVar[bool] = False

    n_stored: int
    is_sparse: bool

    def __init__(self, group: Group, shard: Shard | ColumnShard) -> None:
        self.group = group
        self.shard: Any = shard
        self.n_features = shard.n_features
        self.n_rows = shard.n_rows
        self.alive = np.arange(shard.n_features)
        self.n_touched = 0

    @cached_property
    def store(self) -> ColumnStore:
        """This rank's columns, laid out for looking at some at a time."""
        return self._make_store()

    @abstractmethod
    def _make_store(self) -> ColumnStore:
        """What `store` is, made on its first use."""

    @abstractmethod
    def targets(self) -> np.ndarray | None:
        """Targets of the rows of this rank, of shape (n_rows,), if there are any."""

    @abstractmethod
    def weights(self) -> np.ndarray | None:
        """Weights of these rows in float64; None if all are 1."""

    @abstractmethod
    def whole_columns(self, values: np.ndarray) -> np.ndarray:
        """A value for each column, from what this rank has for those of its store.

        A collective call: sums over ranks where rows are shared out.
        """

    @abstractmethod
    def is_counted(self) -> bool:
        """Whether sums over this rank's rows count in sums over all ranks."""

    def products(
        self, vectors: np.ndarray, sums: np.ndarray | None = None
    ) -> tuple[Part, np.ndarray]:
        """``X' vectors`` for some of the living features; a collective call.

        Parameters
        ----------
        vectors : ndarray of float64 of shape (n_rows, n_outputs)
        sums : ndarray of float64 of shape (n,), default=None
            What this rank has worked out from its rows, to be added up over ranks in
            the same messages; None is nothing.

        Returns
        -------
        part : Part
            The parts of all ranks together hold each living feature once.
        sums : ndarray of float64 of shape (n,)
            Over all rows. Where columns are shared out each rank has all rows, and gets
            back what it has given; rank 0's are those that count.
        """
        self.n_touched += self.n_stored
        return self._products(vectors, np.zeros(0) if sums is None else sums)

    @abstractmethod
    def _products(
        self, vectors: np.ndarray, sums: np.ndarray
    ) -> tuple[Part, np.ndarray]:
        """What :meth:`products` gives."""

    def column_sums(self, weight: np.ndarray) -> np.ndarray:
        """Weighted sums of all columns, dead or alive; a collective call.

        Parameters
        ----------
        weight : ndarray of shape (n_rows,)
            Weights of the rows.

        Returns
        -------
        sums : ndarray of float64 of shape (n_features,)
            Over the rows of all ranks.
        """
        return self.whole_columns(self._own_column_sums(weight))

    @abstractmethod
    def _own_column_sums(self, weight: np.ndarray) -> np.ndarray:
        """This rank's sums of its columns."""

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

    @abstractmethod
    def cross_on_root(
        self,
        left: np.ndarray,
        right: np.ndarray,
        weight: np.ndarray,
        means: np.ndarray | None = None,
        payload: Any = None,
    ) -> tuple[np.ndarray, list[Any]] | None:
        """What :meth:`cross` gives, over the rows of all ranks; a collective call.

        Parameters
        ----------
        left, right, weight, means
            As in :meth:`cross`.
        payload : object, default=None
            What this rank has to say to rank 0 besides.

        Returns
        -------
        result : (ndarray of shape (len(left), len(right)), list of object), or None
            The products and the payloads of all ranks on rank 0, None elsewhere.
        """

    @abstractmethod
    def columns_on_root(
        self,
        features: np.ndarray,
        weight: np.ndarray,
        means: np.ndarray | None = None,
        payload: Any = None,
    ) -> tuple[np.ndarray, list[Any]] | None:
        """Fetched columns of the rows of all ranks, for rank 0; a collective call.

        Parameters
        ----------
        features : ndarray of int64 of shape (k,)
        weight, means
            As in :meth:`cross`: the products of the result are what that gives.
        payload : object, default=None
            What this rank has to say to rank 0 besides; the ranks have to agree whether
            it is None.

        Returns
        -------
        result : (ndarray of shape (k, total rows), list of object), or None
            Columns about their means, each row times the root of its weight, and the
            payloads of all ranks on rank 0, None elsewhere.
        """

    def _rooted(
        self, features: np.ndarray, weight: np.ndarray, means: np.ndarray | None
    ) -> np.ndarray:
        """This rank's rows of what :meth:`columns_on_root` gives."""
        found = np.empty((len(features), self.n_rows))
        root = np.sqrt(weight)
        for rows, columns in self.chunks(features):
            dense = columns.toarray() if sparse.issparse(columns) else columns
            part = found[:, rows]
            part[:] = dense.T
            if means is not None:
                part -= means[features, np.newaxis]
            part *= root[rows]
        return found

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
        result[share] = self._share_of_cross(left[share], right, weight, means)
        return result

    def _share_of_cross(
        self,
        left: np.ndarray,
        right: np.ndarray,
        weight: np.ndarray,
        means: np.ndarray | None,
    ) -> np.ndarray:
        """Products of this rank's rows, for what it does of the left features."""
        result = np.zeros((len(left), len(right)))
        if not len(left) or not len(right):
            return result
        both, places = np.unique(np.concatenate([left, right]), return_inverse=True)
        at_left, at_right = places[: len(left)], places[len(left) :]
        centers = None if means is None else means[both]
        for rows, columns in self.chunks(both):
            result += _cross(columns, at_left, at_right, weight[rows], centers)
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
    step, n = at_once(columns.shape[0]), len(right)
    if n <= step:
        # Taking out the left columns costs more than some products too many.
        return np.asarray(_times_dense(columns, columns[:, right], weight)[left])
    # Those of the right columns with each other are worked out once, and by the stored
    # elements of the one that has fewer: next to frequent words most have few.
    by_size = np.argsort(-np.diff(columns.indptr)[right], kind="stable")
    is_other = np.ones(columns.shape[1], dtype=bool)
    is_other[right] = False
    order = np.concatenate([right[by_size], np.flatnonzero(is_other)])
    columns = columns[:, order]
    result = np.empty((len(order), n))
    for start in range(0, n, step):
        stop = min(n, start + step)
        found = _times_dense(columns[:, start:], columns[:, start:stop], weight)
        result[start:, start:stop] = found
        result[start:stop, stop:n] = found[stop - start : n - start].T
    places = np.empty(len(is_other), dtype=np.int64)
    places[order] = np.arange(len(order))
    back = np.empty(n, dtype=np.int64)
    back[by_size] = np.arange(n)
    return result[np.ix_(places[left], back)]


def _times_dense(columns: Any, right: Any, weight: np.ndarray) -> np.ndarray:
    """Weighted products of sparse columns with some that are made dense."""
    dense = right.toarray(order="C")
    dense *= weight[:, np.newaxis]
    # The transpose of CSC is CSR, for which the product is fast.
    return np.asarray(columns.T @ dense)


def is_among(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Which integers are among others that are sorted.

    What ``np.isin`` tells, in a tenth of the time where there are some hundreds.
    """
    if not len(among):
        return np.zeros(len(values), dtype=bool)
    places = np.searchsorted(among, values)
    return np.asarray(among.take(places, mode="clip") == values)


def transposed_product(
    X: Any, vectors: np.ndarray, columns: slice = slice(None)
) -> np.ndarray:
    """``X[:, columns]' vectors`` in float64, without a copy of all of X."""
    step = at_once(X.shape[1])  # of all columns, so that some have the same bits
    if columns != slice(None):
        X = X[:, columns]
    if sparse.issparse(X) or X.dtype == np.float64:
        # One vector takes a faster way than a matrix of one column.
        if vectors.shape[1] == 1:
            return np.asarray(X.T @ vectors[:, 0])[:, np.newaxis]
        return np.asarray(X.T @ vectors)
    result = np.zeros((X.shape[1], vectors.shape[1]))
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


def at_once(length: int) -> int:
    """How many rows, or columns, of some length in float64 make a chunk."""
    return max(1, _CHUNK_BYTES // (8 * max(1, length)))


def copied_columns(X: Any, index: np.ndarray) -> Any:
    """Some columns as a block of their own, in their dtype."""
    return X[:, index] if sparse.issparse(X) else X.take(index, axis=1)


def n_stored(blocks: list[Any]) -> int:
    """Stored elements of blocks."""
    return sum(X.nnz if sparse.issparse(X) else X.size for X in blocks)
