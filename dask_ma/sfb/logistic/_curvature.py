"""Products of the second derivatives of the loss with directions, on all ranks."""

from __future__ import annotations

import numpy as np

from dask_ma.comm import Group, allreduce, reduce
from dask_ma.kernels import softmax
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._rows import row_batches
from dask_ma.supervised import Problem


def moments_of_outputs(
    problem: Problem,
    totals: Totals,
    group: Group,
    matrix: ParameterMatrix,
    stride: int,
) -> np.ndarray | None:
    """Second derivatives of the loss within each output; a collective call.

    Parameters
    ----------
    problem, totals, group, matrix
        As in :class:`Curvature`; rows are dense.
    stride : int
        One row of so many is looked at.

    Returns
    -------
    moments : ndarray of shape (n_features, n_outputs, n_features) or None
        On rank 0; with a feature more for the intercept, if there is one.
    """
    has_intercept = matrix.intercept is not None
    n_outputs, n_features = matrix.shape[0], matrix.shape[1] + has_intercept
    total = np.zeros((n_outputs, n_features, n_features), dtype=matrix.dtype)
    weights = 0.0
    for rows, batch in row_batches(problem.shard, n_outputs):
        picked = slice(-rows.start % stride, None, stride)
        X, weight = totals.centred(batch.X[picked]), batch.sample_weight
        p = softmax(matrix.product(X))
        curvatures = p * (1 - p)
        if weight is not None:
            curvatures *= weight[picked, np.newaxis]
        weights += float(len(p) if weight is None else weight[picked].sum())
        if has_intercept:
            X = np.hstack([X, np.ones((len(X), 1), dtype=X.dtype)])
        for moments, own in zip(total, np.sqrt(curvatures).T, strict=True):
            scaled = X * own[:, np.newaxis]
            moments += scaled.T @ scaled
    weights = float(allreduce(group, np.array(weights)))
    found = reduce(group, total)
    return None if found is None else found.transpose(1, 0, 2) / weights


class Curvature:
    """Second derivatives at a point; a rank keeps the probabilities of its rows.

    Parameters
    ----------
    problem : Problem
        Rows and classes.
    totals : Totals
        Sums over all ranks.
    group : Group
        This rank.
    matrix : ParameterMatrix
        The point.
    """

    def __init__(
        self, problem: Problem, totals: Totals, group: Group, matrix: ParameterMatrix
    ) -> None:
        self._problem, self._totals, self._group = problem, totals, group
        self._probabilities = [
            softmax(matrix.product(totals.centred(batch.X)))
            for _, batch in row_batches(problem.shard, problem.n_problems)
        ]

    def product(
        self, values: np.ndarray, intercept: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Their product with a direction; a collective call.

        Parameters
        ----------
        values : ndarray of shape (n_features, n_outputs)
        intercept : ndarray of shape (n_outputs,) or (0,)
            Empty where there is none.

        Returns
        -------
        products : tuple of ndarray, or None
            Of the same shapes, but for those of intercepts, on rank 0.
        """
        total, slopes = np.zeros(values.shape), np.zeros(values.shape[1])
        batches = row_batches(self._problem.shard, self._problem.n_problems)
        for (_, batch), p in zip(batches, self._probabilities, strict=True):
            X = self._totals.centred(batch.X)
            change = X @ values
            if len(intercept):
                change += intercept
            if change.shape[1] > 1:
                change -= np.einsum("ij,ij->i", p, change)[:, np.newaxis]
            else:
                change *= 1 - p
            change *= p
            if batch.sample_weight is not None:
                change *= batch.sample_weight[:, np.newaxis]
            slopes += change.sum(axis=0, dtype=np.float64)
            total += X.T @ change
        found = reduce(self._group, [total, slopes])
        if found is None:
            return None
        total, slopes = (part / self._problem.total_rows for part in found)
        return total, slopes
