"""Gram matrices of small problems: all of one at hand, or made as far as is asked for.

Where there are fewer rows than columns, a product with the columns takes less than one
with their Gram matrix, and of that only the block of the coefficients that are not zero
is wanted.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Gram(Protocol):
    """A symmetric and positive semidefinite matrix of shape (m, m)."""

    def dot(self, coef: np.ndarray) -> np.ndarray:
        """Its product with a vector of shape (m,)."""

    def block(self, index: np.ndarray) -> np.ndarray:
        """Some of its rows and the same columns, in an array of their own."""

    def rows(self, index: np.ndarray) -> np.ndarray:
        """Some of its rows, of shape (k, m), in an array of their own."""


class WholeGram:
    """A matrix that is there.

    Parameters
    ----------
    matrix : ndarray of shape (m, m)
        It is not changed.
    """

    def __init__(self, matrix: np.ndarray) -> None:
        self._matrix = matrix

    def dot(self, coef: np.ndarray) -> np.ndarray:
        """Its product with a vector of shape (m,)."""
        return np.asarray(self._matrix @ coef)

    def block(self, index: np.ndarray) -> np.ndarray:
        """Some of its rows and the same columns, in an array of their own."""
        return block_of(self._matrix, index)

    def rows(self, index: np.ndarray) -> np.ndarray:
        """Some of its rows, in an array of their own."""
        return self._matrix[index]


class ColumnGram:
    """The products of columns, worked out when they are first asked for.

    Attributes
    ----------
    columns : ndarray of float64 of shape (m, n_rows)
        The columns, one after the other.
    """

    def __init__(self) -> None:
        self.columns = np.zeros((0, 0))
        self._known = np.zeros(0, dtype=np.int64)  # columns whose products are there
        self._room = np.zeros((0, 0))  # for these

    def exchange(self, kept: np.ndarray, new: np.ndarray | None) -> None:
        """Leave out columns, and append others.

        Parameters
        ----------
        kept : ndarray of bool of shape (m,)
            Which columns stay.
        new : ndarray of float64 of shape (k, n_rows) or None
            What comes behind them.
        """
        if not kept.all():
            stay = kept[self._known]
            size = int(np.count_nonzero(stay))
            self._room[:size, :size] = block_of(self._products, np.flatnonzero(stay))
            self._known = (np.cumsum(kept) - 1)[self._known[stay]]
            self.columns = self.columns[kept]
        if new is not None:
            self.columns = np.concatenate([self.columns, new]) if len(kept) else new

    def dot(self, coef: np.ndarray) -> np.ndarray:
        """Its product with a vector of shape (m,)."""
        used = np.flatnonzero(coef)
        if 3 * len(used) < len(coef):  # columns of zeros cost more than a copy
            return np.asarray(self.columns @ (coef[used] @ self.columns[used]))
        return np.asarray(self.columns @ (coef @ self.columns))

    def block(self, index: np.ndarray) -> np.ndarray:
        """Some of its rows and the same columns, in an array of their own."""
        places = np.full(len(self.columns), -1)
        places[self._known] = np.arange(len(self._known))
        new = index[places[index] < 0]
        if len(new):
            self._learn(new)
            places[new] = np.arange(len(self._known) - len(new), len(self._known))
        return block_of(self._products, places[index])

    def rows(self, index: np.ndarray) -> np.ndarray:
        """Some of its rows, in an array of their own."""
        return np.asarray(self.columns[index] @ self.columns.T)

    @property
    def _products(self) -> np.ndarray:
        """What is known of the matrix."""
        size = len(self._known)
        return self._room[:size, :size]

    def _learn(self, new: np.ndarray) -> None:
        """Work out the products of more columns."""
        n = len(self._known)
        self._known = np.concatenate([self._known, new])
        size = len(self._known)
        if len(self._room) < size:
            room = np.empty((2 * size, 2 * size))
            room[:n, :n] = self._room[:n, :n]
            self._room = room
        products = self.columns[self._known] @ self.columns[new].T
        self._room[:size, n:size] = products
        self._room[n:size, :n] = products[:n].T


class ScaledGram:
    """Another matrix G with a ridge, in other units: ``S (G + R) S``.

    Parameters
    ----------
    gram : Gram
        The matrix `G`.
    ridge : ndarray of shape (m,)
        Diagonal of `R`.
    scale : ndarray of shape (m,), default=None
        Diagonal of `S`; None stands for ones.
    """

    def __init__(
        self, gram: Gram, ridge: np.ndarray, scale: np.ndarray | None = None
    ) -> None:
        self._gram = gram
        self._ridge = ridge
        self._scale = np.ones(len(ridge)) if scale is None else scale

    def dot(self, coef: np.ndarray) -> np.ndarray:
        """Its product with a vector of shape (m,)."""
        scaled = self._scale * coef
        return self._scale * (self._gram.dot(scaled) + self._ridge * scaled)

    def block(self, index: np.ndarray) -> np.ndarray:
        """Some of its rows and the same columns, in an array of their own."""
        found, scale = self._gram.block(index), self._scale[index]
        found[np.diag_indices_from(found)] += self._ridge[index]
        found *= scale
        found *= scale[:, np.newaxis]
        return found

    def rows(self, index: np.ndarray) -> np.ndarray:
        """Some of its rows, in an array of their own."""
        found = self._gram.rows(index)
        found[np.arange(len(index)), index] += self._ridge[index]
        found *= self._scale
        found *= self._scale[index][:, np.newaxis]
        return found


class ReducedGram:
    """What is left of a matrix G when some coefficients are always at their best.

    That is the Schur complement ``G_bb - C' A^-1 C`` for the others `b`, where `A` and
    `C` are the rows of the free ones: it is as large as `G`, and only blocks of it are
    wanted.

    Parameters
    ----------
    gram : Gram
        The matrix `G`, of shape (m, m).
    index : ndarray of int of shape (n,)
        Which coefficients the others are.
    cross : ndarray of shape (m - n, n)
        The matrix `C`.
    solved : ndarray of shape (m - n, n)
        ``A^-1 C``.
    """

    def __init__(
        self, gram: Gram, index: np.ndarray, cross: np.ndarray, solved: np.ndarray
    ) -> None:
        self._gram = gram
        self._index = index
        self._cross = cross
        self._solved = solved
        self._size = len(index) + len(cross)

    def dot(self, coef: np.ndarray) -> np.ndarray:
        """Its product with a vector of shape (n,)."""
        whole = np.zeros(self._size)
        whole[self._index] = coef
        product = self._gram.dot(whole)[self._index]
        return np.asarray(product - self._cross.T @ (self._solved @ coef))

    def block(self, index: np.ndarray) -> np.ndarray:
        """Some of its rows and the same columns, in an array of their own."""
        found = self._gram.block(self._index[index])
        away = self._cross[:, index].T @ self._solved[:, index]
        found -= (away + away.T) / 2
        return found

    def rows(self, index: np.ndarray) -> np.ndarray:
        """Some of its rows, in an array of their own."""
        found = self._gram.rows(self._index[index])[:, self._index]
        found -= self._cross[:, index].T @ self._solved
        return found


def block_of(matrix: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Some rows of a matrix, and the same columns.

    Parameters
    ----------
    matrix : ndarray of shape (m, m)
    index : ndarray of int of shape (k,)

    Returns
    -------
    block : ndarray of shape (k, k)
        A copy, in C order.
    """
    return matrix[index].take(index, axis=1)
