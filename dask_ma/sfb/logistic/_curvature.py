"""Products of the second derivatives of the loss with directions, on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce, barrier, reduce
from dask_ma.kernels import softmax
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._rows import row_batches
from dask_ma.supervised import Problem

_PART_BYTES = 2**24  # of second derivatives that a rank has at a time
# By how many times its spread a feature may be away from zero, for rounding not to
# take what matters of products of rows as they are; by the bytes of a number.
_FAR = {4: 8.0, 8: 1e4}
_KEPT_BYTES = 2**26  # of probabilities that a rank keeps between products


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
        On rank 0; with a feature more for the intercept, if there is one. No rank has
        more than some of them besides.
    """
    weights, curvatures = 0.0, []
    for X, weight in _picked(problem, totals, stride):
        p = softmax(matrix.product(X))
        p *= 1 - p
        curvatures.append(p if weight is None else p * weight[:, np.newaxis])
        weights += float(len(p) if weight is None else weight.sum())
    weights = float(allreduce(group, np.array(weights)))
    n_outputs, n_features = matrix.shape[0], matrix.shape[1] + _has_intercept(matrix)
    found = None
    if group.rank == 0:
        found = np.empty((n_outputs, n_features, n_features), dtype=matrix.dtype)
    for outputs, features in _parts(n_outputs, n_features, matrix.dtype.itemsize):
        if outputs.start or features.start:
            barrier(group)  # none is to send more than rank 0 has taken
        # Of some features, the products with those that come after them are enough.
        shape = outputs.stop - outputs.start, features.stop - features.start
        own = np.zeros((*shape, n_features - features.start), dtype=matrix.dtype)
        rows = _picked(problem, totals, stride)
        for (X, _), curvature in zip(rows, curvatures, strict=True):
            if _has_intercept(matrix):
                X = np.hstack([X, np.ones((len(X), 1), dtype=X.dtype)])
            roots = np.sqrt(curvature[:, outputs].T)
            for moments, root in zip(own, roots, strict=True):
                scaled = X[:, features.start :] * root[:, np.newaxis]
                moments += scaled[:, : shape[1]].T @ scaled
        total = reduce(group, own)
        if found is not None and total is not None:
            found[outputs, features, features.start :] = total
            found[outputs, features.start :, features] = total.transpose(0, 2, 1)
    if found is None:
        return None
    found /= found.dtype.type(weights)
    return found.transpose(1, 0, 2)


def near_centre(totals: Totals, dtype: Any) -> np.ndarray | None:
    """The centre where products may do without centred rows, which take as long.

    Parameters
    ----------
    totals : Totals
        Sums over all ranks.
    dtype : dtype
        Of products.

    Returns
    -------
    centre : ndarray of shape (n_features,) or None
        None for rows that are as they are anyway, or far from zero.
    """
    if totals.centre is None:
        return None
    far = np.abs(totals.centre) > _FAR[np.dtype(dtype).itemsize] * totals.feature_scales
    return None if far.any() else totals.centre


def add_product(total: np.ndarray, X: Any, change: np.ndarray) -> None:
    """Add ``X.T @ change`` to a matrix, in place.

    Parameters
    ----------
    total : ndarray of shape (n_features, n_outputs)
    X : ndarray or CSR of shape (n_rows, n_features)
    change : ndarray of shape (n_rows, n_outputs)
    """
    if _is_double(X, change):
        total += (np.ascontiguousarray(change.T) @ X).T
    else:
        total += X.T @ change


def values_of(X: Any, values: np.ndarray) -> np.ndarray:
    """Linear functions of rows.

    Parameters
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
    values : ndarray of shape (n_features, n_outputs)

    Returns
    -------
    found : ndarray of shape (n_rows, n_outputs)
    """
    if _is_double(X, values):
        return np.asarray((np.ascontiguousarray(values.T) @ X.T).T)
    return np.asarray(X @ values)


def _is_double(X: Any, values: np.ndarray) -> bool:
    """Whether BLAS is twice as fast with few columns that lie one after the other."""
    return not sparse.issparse(X) and values.dtype == X.dtype == np.float64


def _has_intercept(matrix: ParameterMatrix) -> bool:
    """Whether there are intercepts."""
    return matrix.intercept is not None


def _picked(
    problem: Problem, totals: Totals, stride: int
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """One row of so many, centred, and their weights."""
    for rows, batch in row_batches(problem.shard, problem.n_problems):
        picked = slice(-rows.start % stride, None, stride)
        weight = batch.sample_weight
        weight = None if weight is None else weight[picked]
        yield totals.centred(batch.X[picked]), weight


def _parts(
    n_outputs: int, n_features: int, itemsize: int
) -> Iterator[tuple[slice, slice]]:
    """Some outputs at a time, or some features of one, for all second derivatives."""
    n_bytes = n_features**2 * itemsize
    n_each = max(1, _PART_BYTES // n_bytes)
    n_strips = -(-n_bytes // _PART_BYTES)
    length = -(-n_features // n_strips)
    for output in range(0, n_outputs, n_each):
        outputs = slice(output, min(output + n_each, n_outputs))
        for start in range(0, n_features, length):
            yield outputs, slice(start, min(start + length, n_features))


class Curvature:
    """Second derivatives at a point.

    A rank keeps the probabilities of its rows, as far as they are not very many, and
    finds the others again for each product.

    Parameters
    ----------
    problem : Problem
        Rows and classes.
    totals : Totals
        Sums over all ranks.
    group : Group
        This rank.
    matrix : ParameterMatrix
        The point; not to be changed between products.
    centre : ndarray of shape (n_features,), default=None
        What is taken off products in place of rows; None centres rows.
    """

    def __init__(
        self,
        problem: Problem,
        totals: Totals,
        group: Group,
        matrix: ParameterMatrix,
        centre: np.ndarray | None = None,
    ) -> None:
        self._problem, self._totals, self._group = problem, totals, group
        self._matrix = matrix
        self._centre = centre
        self._kept: list[np.ndarray] = []  # of the first batches
        n_left = _KEPT_BYTES // (matrix.dtype.itemsize * problem.n_problems)
        for _, batch in row_batches(problem.shard, problem.n_problems):
            n_left -= batch.X.shape[0]
            if n_left < 0:
                break
            self._kept.append(self._probabilities(totals.centred(batch.X)))

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
        shift = intercept if len(intercept) else np.zeros(len(slopes), values.dtype)
        if self._centre is not None:
            shift = shift - self._centre @ values
        batches = row_batches(self._problem.shard, self._problem.n_problems)
        for number, (_, batch) in enumerate(batches):
            X = batch.X if self._centre is not None else self._totals.centred(batch.X)
            if not sparse.issparse(X):
                # Rows in single precision are converted once for both products.
                X = X.astype(values.dtype, copy=False)
            is_kept = number < len(self._kept)
            if is_kept:
                p = self._kept[number]
            else:
                p = self._probabilities(self._totals.centred(batch.X))
            change = values_of(X, values)
            change += shift
            if change.shape[1] > 1:
                change -= np.einsum("ij,ij->i", p, change)[:, np.newaxis]
            else:
                change *= 1 - p
            change *= p
            if batch.sample_weight is not None:
                change *= batch.sample_weight[:, np.newaxis]
            slopes += change.sum(axis=0, dtype=np.float64)
            add_product(total, X, change)
        if self._centre is not None:
            total -= np.outer(self._centre, slopes)
        found = reduce(self._group, [total, slopes])
        if found is None:
            return None
        total, slopes = (part / self._problem.total_rows for part in found)
        return total, slopes

    def _probabilities(self, X: Any) -> np.ndarray:
        """Those of all outputs for some rows, which are centred."""
        return softmax(self._matrix.product(X))
