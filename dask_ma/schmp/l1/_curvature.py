"""Second derivatives of the loss by products, on the sparse rows of this rank.

The Hessian of a working set has a number for each two coefficients. Its product with a
direction takes no more than the stored elements of their columns: a coefficient
concerns the rows of its column, for its own class alone. With several classes, the
coefficients make a sparse matrix with a row for each pair of a row and a class that
they concern. What the classes have in common is a mean for each row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.kernels import segment_sums, softmax, take_columns
from dask_ma.schmp.l1._losses import WeightedLoss


class Curvature(ABC):
    """Second derivatives by some coefficients and the intercepts, in this order."""

    _matrix: Any
    _bent: np.ndarray

    def diagonal(self) -> np.ndarray:
        """Second derivatives by single coefficients, of shape (m,)."""
        matrix = self._matrix
        arrays = matrix.data**2, matrix.indices, matrix.indptr
        squared = sparse.csc_array(arrays, shape=matrix.shape)
        return np.asarray(squared.T @ self._bent)

    @abstractmethod
    def move_to(
        self, loss: WeightedLoss, margins: np.ndarray, share: float = 0.0
    ) -> None:
        """Look at the derivatives at some margins.

        Parameters
        ----------
        loss : WeightedLoss
        margins : ndarray of shape (n_rows, n_outputs)
            Of all rows that this rank has.
        share : float, default=0.0
            From 0 to 1, without the latter: with several classes, second derivatives
            are those of probabilities that are so much nearer to the labels, and never
            less than the true ones. Rows that are wrong by far have hardly any of their
            own, though their slopes are large.
        """

    @abstractmethod
    def gradient(self) -> np.ndarray:
        """Negative gradient of the loss, of shape (m + n_outputs,)."""

    @abstractmethod
    def blocks(self) -> list[np.ndarray]:
        """Second derivatives within outputs.

        Returns
        -------
        blocks : list of ndarray
            Those by two coefficients, a square for each output, one after the other, of
            shape (sum of squares,); those by a coefficient and the intercept of its
            output, of shape (m,); those by the latter, of shape (n_outputs,).
        """

    @abstractmethod
    def product(self, direction: np.ndarray) -> np.ndarray:
        """All second derivatives times a direction of shape (m + n_outputs,)."""


class RowCurvature(Curvature):
    """That of two classes, which have one output.

    Parameters
    ----------
    columns : CSC of float64 of shape (n_rows, m)
        Columns of the coefficients, of the rows that this rank does.
    rows : slice
        These rows, among those that it has.
    """

    def __init__(self, columns: Any, rows: slice) -> None:
        self._matrix, self._transposed, self._rows = columns, columns.T, rows

    def move_to(
        self, loss: WeightedLoss, margins: np.ndarray, share: float = 0.0
    ) -> None:
        self._slopes = loss.negative_slopes(margins)[self._rows, 0]
        self._bent = loss.curvatures(margins)(0)[self._rows, 0]

    def gradient(self) -> np.ndarray:
        return np.append(self._transposed @ self._slopes, self._slopes.sum())

    def blocks(self) -> list[np.ndarray]:
        square = _squares(self._matrix, self._bent).toarray().ravel()
        return [square, self._transposed @ self._bent, np.array([self._bent.sum()])]

    def product(self, direction: np.ndarray) -> np.ndarray:
        change = self._matrix @ direction[:-1]
        change += direction[-1]
        change *= self._bent
        return np.append(self._transposed @ change, change.sum())


class PairCurvature(Curvature):
    """That of several classes.

    Parameters
    ----------
    columns : CSC of float64 of shape (n_rows, m)
        As for :class:`RowCurvature`.
    rows : slice
        The same.
    outputs : ndarray of int of shape (m,)
        Classes of the coefficients, in order.
    n_outputs : int
        Number of classes.
    """

    def __init__(
        self, columns: Any, rows: slice, outputs: np.ndarray, n_outputs: int
    ) -> None:
        self._outputs, self._n_outputs, self._part = outputs, n_outputs, rows
        self._n_rows, m = columns.shape
        # Pairs of a class stand together, as its coefficients do.
        places = np.repeat(outputs, np.diff(columns.indptr)) * np.int64(self._n_rows)
        places += columns.indices
        is_used = np.zeros(n_outputs * self._n_rows, dtype=bool)
        is_used[places] = True
        pairs = np.flatnonzero(is_used)
        number = np.zeros(len(is_used), dtype=np.int32)
        number[pairs] = np.arange(len(pairs))
        self._classes, self._rows = np.divmod(pairs, max(1, self._n_rows))
        self._bounds = np.searchsorted(self._classes, np.arange(n_outputs + 1))
        arrays = columns.data, number[places], columns.indptr
        self._matrix = sparse.csc_array(arrays, shape=(len(pairs), m))
        self._transposed = self._matrix.T

    def move_to(
        self, loss: WeightedLoss, margins: np.ndarray, share: float = 0.0
    ) -> None:
        y, self._weight = loss.y[self._part], loss.weight[self._part]
        self._p = softmax(margins[self._part])
        of_pairs, weights = self._p[self._rows, self._classes], self._weight[self._rows]
        is_own = y[self._rows] == self._classes
        own = np.bincount(y, self._weight, minlength=self._n_outputs)
        self._total = self._weight @ self._p
        self._slopes, self._sums = weights * (is_own - of_pairs), own - self._total
        if share:
            # Second derivatives are concave in the probabilities: as much of the true
            # ones as is left at least is made up for by the weights.
            rest = 1 - share
            self._p *= rest
            self._p[np.arange(len(y)), y] += share
            of_pairs = rest * of_pairs + share * is_own
            self._weight, weights = self._weight / rest, weights / rest
            self._total += share / rest * own
        self._of_pairs, self._scales = of_pairs, weights * of_pairs
        self._bent = self._scales * (1 - of_pairs)
        # Sums over the pairs of each row: one element for each pair.
        n_pairs = len(self._rows)
        arrays = self._of_pairs, self._rows, np.arange(n_pairs + 1)
        shape = self._n_rows, n_pairs
        self._averaging = sparse.csc_array(arrays, shape=shape)

    def gradient(self) -> np.ndarray:
        return np.append(self._transposed @ self._slopes, self._sums)

    def blocks(self) -> list[np.ndarray]:
        products = _squares(self._matrix, self._bent).tocoo()
        sizes = np.bincount(self._outputs, minlength=self._n_outputs)
        starts, squares = np.cumsum(sizes) - sizes, sizes**2
        firsts = np.cumsum(squares) - squares
        row, column = (places.astype(np.int64) for places in products.coords)
        output = self._outputs[row]
        start = starts[output]
        found = np.zeros(int(squares.sum()))
        found[firsts[output] + (row - start) * sizes[output] + column - start] = (
            products.data
        )
        corner = self._weight @ (self._p * (1 - self._p))
        return [found, self._transposed @ self._bent, corner]

    def product(self, direction: np.ndarray) -> np.ndarray:
        m = len(self._outputs)
        change, shift = self._matrix @ direction[:m], direction[m:]
        means = self._averaging @ change
        means += self._p @ shift
        change *= self._scales
        sums = segment_sums(change, self._bounds) + self._total * shift
        sums -= (self._weight * means) @ self._p
        means = means[self._rows]
        means -= np.repeat(shift, np.diff(self._bounds))
        means *= self._scales
        change -= means
        return np.append(self._transposed @ change, sums)


def make_curvature(
    columns: Any,
    places: np.ndarray,
    outputs: np.ndarray,
    rows: slice,
    n_outputs: int,
) -> Curvature:
    """What finds the second derivatives by some coefficients.

    Parameters
    ----------
    columns : CSC of float64 of shape (n_rows, n_columns)
        Columns of the rows that this rank does.
    places : ndarray of int of shape (m,)
        Column of each coefficient.
    outputs, rows, n_outputs
        As for :class:`PairCurvature`.
    """
    taken = take_columns(columns, places)
    if n_outputs == 1:
        return RowCurvature(taken, rows)
    return PairCurvature(taken, rows, outputs, n_outputs)


def _squares(matrix: Any, bent: np.ndarray) -> Any:
    """Products of columns with each other, by weights that are not negative."""
    arrays = matrix.data * np.sqrt(bent)[matrix.indices], matrix.indices, matrix.indptr
    rooted = sparse.csc_array(arrays, shape=matrix.shape)
    return rooted.T @ rooted
