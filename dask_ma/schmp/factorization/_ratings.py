"""Ratings on their way to the ranks of their users, or items."""

from __future__ import annotations

from typing import NamedTuple

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
    numbers = np.arange(n)
    shape = 1, int(keys.max()) + 1
    row = sparse.csr_array((numbers, keys, [0, n]), shape=shape)
    order: np.ndarray = row.tocsc().data  # by their columns, which are counted
    return order


class Ratings(NamedTuple):
    """Ratings as four columns.

    Attributes
    ----------
    users, items : ndarray of int64 of shape (n,)
        Parameters: items are counted on from the users.
    values, weights : ndarray of float64 of shape (n,)
    """

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray

    @classmethod
    def of_shard(cls, shard: Shard, n_users: int) -> Ratings:
        """Ratings out of rows of user, item and rating."""
        rows = [np.empty((0, 3)), *(np.asarray(block.X) for block in shard.blocks)]
        table = np.vstack(rows)
        weights = [np.empty(0), *(block.weights() for block in shard.blocks)]
        return cls(
            table[:, 0].astype(np.int64),
            table[:, 1].astype(np.int64) + n_users,
            table[:, 2],
            np.concatenate(weights),
        )

    def take(self, index: np.ndarray) -> Ratings:
        """Some of them."""
        return Ratings(*(column[index] for column in self))

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
        order = np.argsort(ranks, kind="stable")
        ends = np.cumsum(np.bincount(ranks, minlength=group.size))[:-1]
        parts = [tuple(self.take(part)) for part in np.split(order, ends)]
        columns = zip(*alltoall(group, parts), strict=True)
        here = Ratings(*(np.concatenate(column) for column in columns))
        return here.sorted()

    def sorted(self) -> Ratings:
        """By user, item, value and weight."""
        order = counted_order(self.items)
        found = self.take(order[counted_order(self.users[order])])
        is_same = (np.diff(found.users) == 0) & (np.diff(found.items) == 0)
        if is_same.any():  # pairs that are there twice, which keep their places
            twice = np.flatnonzero(np.r_[is_same, False] | np.r_[False, is_same])
            some = found.take(twice)
            inner = np.lexsort((some.weights, some.values, some.items, some.users))
            found.values[twice] = some.values[inner]
            found.weights[twice] = some.weights[inner]
        return found

    def matrix(
        self, rows: np.ndarray, columns: np.ndarray, by: str, dtype: np.dtype
    ) -> tuple[sparse.csr_array, np.ndarray]:
        """Those of some users and items as a matrix, and their weights.

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
        own, other = (
            (self.users, self.items) if by == "users" else (self.items, self.users)
        )
        return to_csr(
            _places(rows)[own],
            _places(columns)[other],
            self.values.astype(dtype),
            self.weights.astype(dtype),
            (len(rows), len(columns)),
        )


def _places(parameters: np.ndarray) -> np.ndarray:
    """Place of each of some parameters among them, in a table."""
    places = np.zeros(parameters[-1] + 1 if len(parameters) else 0, dtype=np.int64)
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
        per_user = np.bincount(ratings.users, weights, n_parameters)
        per_item = np.bincount(ratings.items, weights, n_parameters)
        sums = np.array([weights @ values, weights @ values**2, weights.sum()])
        counted = [per_user + per_item, sums]
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
