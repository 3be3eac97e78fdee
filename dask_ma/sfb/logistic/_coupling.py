"""Second derivatives of all outputs as a product: of features, and of outputs.

Those of a row are ``S_i`` by the outputs, ``diag(p_i) - p_i p_i^T``, times the product
of its features. Over all rows that is about a matrix of outputs times one of features,
which say which outputs change against each other, and by which features. The closest
ones (maximum likelihood, as if rows were normal) are means of either weighted by the
inverse of the other (P. Dutilleul, 1999): each is found in its turn, at one point of a
fit and at the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, sparse

from dask_ma.comm import Group, broadcast, reduce
from dask_ma.kernels import row_slice, softmax
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._rows import row_batches, rows_at_a_time
from dask_ma.supervised import Problem


class FeaturesInDoubt(NamedTuple):
    """Sums over rows, weighted by how far they are in doubt.

    Attributes
    ----------
    moments : ndarray of shape (n_features, n_features)
        Mean products of all pairs of features, less those of the mean row.
    mean : ndarray of shape (n_features,)
        The mean row, of centred ones; zero where there is no intercept.
    weight : float
        Mean weight of a row.
    """

    moments: np.ndarray
    mean: np.ndarray
    weight: float


class Lens(NamedTuple):
    """What rows are looked at through, for their part in second derivatives.

    Attributes
    ----------
    factor : ndarray of shape (n_features, n_features)
        Lower factor of the second derivatives by features.
    mean, scales : ndarray of shape (n_features,)
        What is taken off rows, and what they are divided by.
    least : float
        Part of the intercept, which all rows have; 0 where there is none.
    """

    factor: np.ndarray
    mean: np.ndarray
    scales: np.ndarray
    least: float


class Coupling:
    """Sums over the rows of all ranks, at a point.

    Parameters
    ----------
    problem : Problem
        Rows, and more than two classes.
    totals : Totals
        Sums over all ranks.
    group : Group
        This rank.
    matrix : ParameterMatrix
        The point.
    inverse : ndarray of shape (n_outputs, n_outputs) or None
        Of the second derivatives by outputs, on rank 0.
    """

    def __init__(
        self,
        problem: Problem,
        totals: Totals,
        group: Group,
        matrix: ParameterMatrix,
        inverse: np.ndarray | None,
    ) -> None:
        self._problem, self._totals, self._group = problem, totals, group
        self._matrix = matrix
        self._inverse = np.asarray(broadcast(group, inverse, copy=False))

    def features(self) -> FeaturesInDoubt | None:
        """Second derivatives by features, on rank 0; a collective call."""
        n_features = self._problem.shard.n_features
        total, row = np.zeros((n_features, n_features)), np.zeros(n_features)
        weights = np.zeros(1)
        for X, _, own, _ in self._rows():
            row += own @ X
            weights += own.sum()
            X *= np.sqrt(own)[:, np.newaxis]
            total += X.T @ X
        found = reduce(self._group, [total, row, weights])
        if found is None:
            return None
        total, row, (weight,) = (part / self._problem.total_rows for part in found)
        mean = row / max(weight, _TINY)
        if self._matrix.intercept is None:  # which would take what all rows share
            mean[:] = 0
        total -= weight * np.outer(mean, mean)
        return FeaturesInDoubt(total, mean, float(weight))

    def outputs(self, lens: Lens | None) -> np.ndarray | None:
        """Second derivatives by outputs, on rank 0; a collective call.

        Parameters
        ----------
        lens : Lens or None
            On rank 0.

        Returns
        -------
        couplings : ndarray of shape (n_outputs, n_outputs) or None
        """
        factor, mean, scales, least = broadcast(self._group, lens, copy=False)
        n_outputs = self._matrix.shape[0]
        total, dimension = np.zeros((n_outputs, n_outputs)), np.zeros(1)
        for X, p, own, weight in self._rows():
            X -= mean
            X /= scales
            seen = linalg.solve_triangular(factor, X.T, lower=True, check_finite=False)
            part = np.einsum("ij,ij->j", seen, seen)
            part += least
            dimension += own @ part
            if weight is not None:
                part *= weight
            total -= (p * part[:, np.newaxis]).T @ p
        found = reduce(self._group, [total, dimension])
        if found is None:
            return None
        total, (seen_in_all,) = found
        # Nothing changes where all outputs do. Of ``p (1 - p)`` rounding leaves nothing
        # where rows are hardly in doubt.
        np.fill_diagonal(total, 0)
        np.fill_diagonal(total, -total.sum(axis=1))
        return np.asarray(total / max(float(seen_in_all), _TINY))

    def _rows(
        self,
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]]:
        """Rows of this rank, their probabilities, doubts and weights."""
        inverse, n_outputs = self._inverse, self._matrix.shape[0]
        # By pairs of outputs, so that rounding leaves what rows hardly in doubt have.
        apart = np.diag(inverse) + np.diag(inverse)[:, np.newaxis] - 2 * inverse
        for X, weight in self._batches():
            p = softmax(self._matrix.product(X)).astype(np.float64)
            own = np.einsum("ij,ij->i", p @ apart, p)
            own /= 2 * n_outputs
            if weight is not None:
                weight = weight.astype(np.float64)
                own *= weight
            # A copy, also where there is no centre.
            dense = X.toarray() if sparse.issparse(X) else X
            yield dense.astype(np.float64), p, own, weight

    def _batches(self) -> Iterator[tuple[Any, np.ndarray | None]]:
        """Centred rows, so few at a time that they may become dense, and weights."""
        n_outputs, n_features = self._matrix.shape
        size = rows_at_a_time(max(n_outputs, n_features))
        for _, batch in row_batches(self._problem.shard, n_outputs):
            n_rows, weight = batch.X.shape[0], batch.sample_weight
            for start in range(0, n_rows, size):
                stop = min(start + size, n_rows)
                own = None if weight is None else weight[start:stop]
                yield self._totals.centred(row_slice(batch.X, start, stop)), own


_TINY = float(np.finfo(np.float64).tiny)
