"""Ratings on their way to the ranks of their users, or items."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce, alltoall
from dask_ma.data import Shard


def counted_order(keys: np.ndarray) -> np.ndarray:
    """Stable order of integers from 0 on, by counting them.

    Parameters
    ----------
    keys : ndarray of int of shape (n,)
        About as many different ones as there are, or fewer.

    Returns
    -------
    order : ndarray of int of shape (n,)
    """
    n = len(keys)
    if not n:
        return np.zeros(0, dtype=np.int64)
    shape = 1, int(keys.max()) + 1
    index = smallest_index(max(n, shape[1]))
    ends = np.array([0, n], dtype=index)
    columns = keys.astype(index, copy=False)
    row = sparse.csr_array((np.arange(n, dtype=index), columns, ends), shape=shape)
    order: np.ndarray = row.tocsc().data  # by their columns, which are counted
    return order


def smallest_index(n: int) -> type[np.signedinteger]:
    """Type of integers up to a number: int32 where that is enough, else int64."""
    return np.int32 if n <= np.iinfo(np.int32).max else np.int64


class Ratings(NamedTuple):
    """Ratings as columns, in as few bytes as they need.

    Attributes
    ----------
    users, items : ndarray of int32 or int64 of shape (n,)
        Parameters: items are counted on from the users.
    values : ndarray of float32 or float64 of shape (n,)
    weights : ndarray of float64 of shape (n,) or None
        None where all weights are 1.
    """

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray | None

    @classmethod
    def of_shard(cls, shard: Shard, n_users: int, n_items: int) -> Ratings:
        """Ratings out of rows of user, item and rating."""
        index, n = smallest_index(n_users + n_items), shard.n_rows
        users, items = np.empty((2, n), dtype=index)
        values, start = np.empty(n, dtype=shard.dtype), 0
        for block in shard.blocks:
            own = slice(start, start + len(block.X))
            users[own], items[own], values[own] = block.X.T
            start = own.stop
        items += index(n_users)
        if all(block.sample_weight is None for block in shard.blocks):
            return cls(users, items, values, None)
        weights = np.concatenate([block.weights() for block in shard.blocks])
        return cls(users, items, values, weights)

    def take(self, index: Any) -> Ratings:
        """Some of them, by an array of numbers or a slice."""
        columns = (None if c is None else c[index] for c in self)
        return Ratings(*columns)  # type: ignore[arg-type]

    def all_weights(self) -> np.ndarray:
        """Weights, also where all are 1."""
        return np.ones(len(self.users)) if self.weights is None else self.weights

    def total_weight(self) -> float:
        """Sum of the weights."""
        return float(len(self.users) if self.weights is None else self.weights.sum())

    def sent_to(self, group: Group, ranks: np.ndarray) -> Ratings:
        """Send each to a rank; a collective call.

        Parameters
        ----------
        group : Group
            This rank.
        ranks : ndarray of int of shape (n,)
            Where each goes.

        Returns
        -------
        ratings : Ratings
            Those that have come, by user, item, value and weight: in the same order,
            whoever had them before.
        """
        if group.size == 1:
            return self.sorted()
        order = counted_order(ranks)
        ends = np.cumsum(np.bincount(ranks, minlength=group.size))[:-1]
        parts = [tuple(self.take(part)) for part in np.split(order, ends)]
        del order
        return _joined([Ratings(*part) for part in alltoall(group, parts)]).sorted()

    def sorted(self) -> Ratings:
        """By user, item, value and weight."""
        is_same = self.users[1:] == self.users[:-1]
        falls = (self.users[1:] < self.users[:-1]) | (
            is_same & (self.items[1:] < self.items[:-1])
        )
        found = self
        if falls.any():
            order = counted_order(self.items)
            order = order[counted_order(self.users[order])]
            found = self.take(order)
            is_same = found.users[1:] == found.users[:-1]
        is_same &= found.items[1:] == found.items[:-1]
        return found._with_repeats_sorted(is_same) if is_same.any() else found

    def _with_repeats_sorted(self, is_same: np.ndarray) -> Ratings:
        """Pairs that are there twice by value and weight; others keep their places."""
        twice = np.flatnonzero(np.r_[is_same, False] | np.r_[False, is_same])
        some, pairs = self.take(twice), np.cumsum(np.r_[True, ~is_same])[twice]
        keys = (some.values, pairs)
        inner = np.lexsort(keys if some.weights is None else (some.weights, *keys))
        if (inner[1:] > inner[:-1]).all():
            return self
        found = self._replace(values=self.values.copy())
        found.values[twice] = some.values[inner]
        if some.weights is not None:
            found = found._replace(weights=self.all_weights().copy())
            found.all_weights()[twice] = some.weights[inner]
        return found

    def matrix(
        self, rows: np.ndarray, columns: np.ndarray, by: str, dtype: np.dtype
    ) -> tuple[sparse.csr_array, np.ndarray]:
        """Those of some users and items as a matrix, and their weights.

        They must be sorted.

        Parameters
        ----------
        rows, columns : ndarray of int64, sorted
            Parameters of the rows, and of the columns.
        by : {"users", "items"}
            Which of them the rows are.
        dtype : dtype
            Of both.

        Returns
        -------
        values : csr_array of shape (len(rows), len(columns))
            A pair that is rated twice is there twice.
        weights : ndarray of shape (n_stored,)
        """
        own, other = self.users, self.items
        order: Any = slice(None)
        if by == "items":  # of an item, the users stay in their order
            own, other = other, own
            order = counted_order(own)
        lengths = np.bincount(_places(rows)[own], minlength=len(rows))
        index = smallest_index(max(len(own), len(columns)))
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
        indices = _places(columns)[other[order]]
        values = self.values[order].astype(dtype)
        matrix = sparse.csr_array(
            (values, indices, indptr), shape=(len(rows), len(columns))
        )
        if self.weights is None:
            return matrix, np.broadcast_to(np.ones((), dtype), values.shape)
        return matrix, self.weights[order].astype(dtype)


def _joined(parts: list[Ratings]) -> Ratings:
    """Ratings of several ranks as one; some of them may have weights."""
    users, items, values = (
        np.concatenate([part[place] for part in parts]) for place in range(3)
    )
    if all(part.weights is None for part in parts):
        return Ratings(users, items, values, None)
    weights = np.concatenate([part.all_weights() for part in parts])
    return Ratings(users, items, values, weights)


def _places(parameters: np.ndarray) -> np.ndarray:
    """Place of each of some parameters among them, in a table."""
    n = int(parameters[-1]) + 1 if len(parameters) else 0
    places = np.zeros(n, dtype=smallest_index(n))
    places[parameters] = np.arange(len(parameters))
    return places


def to_csr(
    rows: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    weights: np.ndarray,
    shape: tuple[int, int],
) -> tuple[sparse.csr_array, np.ndarray]:
    """Elements as a matrix, in which a place may be there twice, and their weights.

    Parameters
    ----------
    rows, columns : ndarray of int of shape (n,)
    values, weights : ndarray of shape (n,)
    shape : tuple of int

    Returns
    -------
    matrix : csr_array
    weights : ndarray of shape (n,)
        In its order.
    """
    order = counted_order(columns)
    order = order[counted_order(rows[order])]
    indptr = np.zeros(shape[0] + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=shape[0]), out=indptr[1:])
    matrix = sparse.csr_array((values[order], columns[order], indptr), shape=shape)
    return matrix, weights[order]


class Totals(NamedTuple):
    """What all ranks know of the ratings.

    Attributes
    ----------
    weights : ndarray of float64 of shape (n_parameters,)
        Sum of the weights of each user and item.
    mean : float
        Weighted mean of the values.
    low, high : float
        Least and largest value.
    mean_square : float
        Weighted mean of the squares of the values.
    """

    weights: np.ndarray
    mean: float
    low: float
    high: float
    mean_square: float

    @classmethod
    def of(cls, ratings: Ratings, n_parameters: int, group: Group) -> Totals:
        """Add up over the ranks; a collective call."""
        values, weights = ratings.values, ratings.weights
        per_parameter = np.zeros(n_parameters)
        for numbers in ratings[:2]:
            per_parameter += np.bincount(numbers, weights, n_parameters)
        factors = (values,) if weights is None else (values, weights)
        sums = [_sum_of_products(*factors), _sum_of_products(values, *factors)]
        counted = [per_parameter, np.array([*sums, ratings.total_weight()])]
        per_parameter, (total, squares, weight) = allreduce(group, counted)
        ends = np.array([-np.inf, -np.inf])
        if len(values):
            ends = np.array([-values.min(), values.max()])
        low, high = allreduce(group, ends, "max")
        mean, square = (total / weight, squares / weight) if weight > 0 else (0.0, 0.0)
        return cls(per_parameter, float(mean), -float(low), float(high), float(square))

    def deviation(self, center: float) -> float:
        """Root of the mean squared distance of the values from a center, or 1 for 0."""
        variance = self.mean_square - 2 * center * self.mean + center**2
        if not variance > 1e-12 * self.mean_square:
            return 1.0  # all values are the same
        return float(np.sqrt(variance))


def _sum_of_products(*columns: np.ndarray) -> float:
    """Sum of the products of the elements of columns, in double precision."""
    total = np.einsum(",".join(["n"] * len(columns)) + "->", *columns, dtype=np.float64)
    return float(total)
