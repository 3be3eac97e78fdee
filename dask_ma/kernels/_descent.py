"""Sums over a block of rows that second-order methods need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.kernels._objective import (
    _check_shapes,
    _chunk_size,
    _chunks,
    one_vs_rest_targets,
    positive_factors,
)
from dask_ma.kernels._rows import row_slice, transposed
from dask_ma.kernels.losses import Loss, smooth_loss

_DENSE_ELEMENTS = 2**19  # of a chunk that is made dense: 4 MiB of float64
_FLAT = 1e-13  # curvature, against the largest, that is as good as none


class Standardization(NamedTuple):
    """How columns are shifted and divided.

    Attributes
    ----------
    centre : ndarray of float64, shape (n_features,)
        What is subtracted.
    scale : ndarray of float64, shape (n_features,)
        What the difference is divided by, above 0.
    """

    centre: np.ndarray
    scale: np.ndarray


class DescentSums(NamedTuple):
    """Weighted sums over rows, all of float64.

    Attributes
    ----------
    losses : ndarray of shape (n_problems,)
        Of the losses.
    smooth : ndarray of shape (n_problems,)
        Of the smooth losses.
    gaps : ndarray of shape (n_problems,)
        Of what their smoothness may cost.
    coef : ndarray of shape (n_problems, n_features)
        Derivatives of the smooth losses by the coefficients.
    intercept : ndarray of shape (n_problems,)
        Derivatives by the intercepts.
    hessian : ndarray of shape (n_problems, n_columns + 1, n_columns + 1)
        Second derivatives by the coefficients of standardised columns, and by the
        intercepts, which come last. Without problems if they were not asked for.
    """

    losses: np.ndarray
    smooth: np.ndarray
    gaps: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray
    hessian: np.ndarray


def moment_sums(X: Any, sample_weight: np.ndarray | None) -> np.ndarray:
    """Weighted sums of the columns and of their squares.

    Parameters
    ----------
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        Rows; read in chunks and never made dense. A sparse row names no column twice.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the samples; None weighs each by 1.

    Returns
    -------
    ndarray of float64, shape (2, n_features)
    """
    sums = np.zeros((2, X.shape[1]))
    for chunk, where in _chunks(X, 1, None):
        s = np.ones(chunk.shape[0])
        if sample_weight is not None:
            s = sample_weight[where].astype(np.float64, copy=False)
        columns = transposed(chunk)
        sums[0] += columns @ s
        if sparse.issparse(columns):
            # SciPy's product of two matrices would look for their common elements.
            with np.errstate(over="ignore"):
                columns.data = columns.data**2
        else:
            columns = columns**2
        sums[1] += columns @ s
    return sums


def moment_sums_about(
    X: Any, sample_weight: np.ndarray | None, columns: np.ndarray, centre: np.ndarray
) -> np.ndarray:
    """Weighted sums of some columns and of their squares, with a number taken off each.

    Parameters
    ----------
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        Rows; the columns are made dense, some rows at a time.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the samples; None weighs each by 1.
    columns : ndarray of int, shape (n_columns,)
        Which columns.
    centre : ndarray of float64, shape (n_columns,)
        What is taken off.

    Returns
    -------
    ndarray of float64, shape (2, n_columns)
    """
    sums = np.zeros((2, len(columns)))
    size = max(1, _DENSE_ELEMENTS // max(1, len(columns)))
    for start in range(0, X.shape[0], size):
        where = slice(start, min(start + size, X.shape[0]))
        rows = row_slice(X, where.start, where.stop)[:, columns]
        rows = rows.toarray() if sparse.issparse(rows) else rows
        off = rows.astype(np.float64) - centre
        s = np.ones(len(off))
        if sample_weight is not None:
            s = sample_weight[where].astype(np.float64, copy=False)
        sums += s @ off, s @ off**2
    return sums


def descent_sums(
    X: Any,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
    coef: np.ndarray,
    intercept: np.ndarray,
    *,
    loss: str | Loss,
    epsilon: float,
    widths: np.ndarray,
    caution: np.ndarray,
    problems: np.ndarray | None = None,
    n_problems: int = 1,
    positive_weight: np.ndarray | None = None,
    standardization: Standardization | None = None,
    columns: np.ndarray | None = None,
) -> DescentSums:
    """Sums of smooth losses and of their derivatives over a block, in one pass.

    Parameters
    ----------
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        Rows of the block, read in chunks.
    y : ndarray of shape (n_samples,)
        Targets of the one problem; with `problems`, class codes as
        :func:`one_vs_rest_targets` takes them.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the samples; None weighs each by 1.
    coef : ndarray of float64, shape (n_asked, n_features)
        Coefficients of the problems asked for.
    intercept : ndarray of float64, shape (n_asked,)
        Their intercepts.
    loss, epsilon
        As :func:`smooth_loss` takes them.
    widths : ndarray of float64, shape (n_asked,)
        Widths of the problems' smooth losses.
    caution : ndarray of float64, shape (n_asked,)
        Their caution, as :func:`smooth_loss` takes it.
    problems : ndarray of int, shape (n_asked,), or None, default=None
        Numbers of the problems asked for, if `y` holds class codes.
    n_problems : int, default=1
        How many problems the class codes make.
    positive_weight : ndarray of shape (n_problems,) or None, default=None
        What the weights of each problem's own class are multiplied by, with `problems`,
        as :func:`positive_factors` has it; None multiplies by 1.
    standardization : Standardization or None, default=None
        Columns of the Hessian; None leaves it out. Its rows are made dense, some at a
        time.
    columns : ndarray of int, shape (n_asked, n_columns), or None, default=None
        Which columns each problem's Hessian has, with `standardization`; None is all.

    Returns
    -------
    DescentSums

    Raises
    ------
    ValueError
        If shapes disagree.
    """
    _check_shapes(X, y, sample_weight, coef, intercept, problems is not None)
    n_asked, n_features = coef.shape
    weights = coef[0] if n_asked == 1 else np.ascontiguousarray(coef.T)
    losses, smooth, gaps, slope_sums = (np.zeros(n_asked) for _ in range(4))
    gradient = np.zeros(weights.shape)
    n_second = 0 if standardization is None else n_asked
    # Nobody promises for a loss of a user's that it knows what None means.
    is_bent = standardization is not None or not isinstance(loss, str)
    cautious = caution if is_bent else None
    size = 1 + (n_features if columns is None else columns.shape[1])
    hessian = np.zeros((n_second, size, size))
    products = _Products(X, gradient)
    for chunk, where in _chunks(X, n_asked, None):
        p = chunk @ weights
        p += intercept
        targets = y[where]
        if problems is not None:
            targets = one_vs_rest_targets(targets, n_problems, problems=problems)
        targets_of = targets.reshape(p.shape)
        found = smooth_loss(loss, targets_of, p, epsilon, widths, cautious)
        s = np.ones(len(p))
        if sample_weight is not None:
            s = sample_weight[where].astype(np.float64, copy=False)
        if positive_weight is not None:
            factors = positive_factors(targets, positive_weight[problems])
            s = (factors.T * s).T.reshape(p.shape)
        losses += _weighted_sums(s, found.values)
        smooth += _weighted_sums(s, found.smooth)
        gaps += _weighted_sums(s, found.gaps)
        slopes = (found.slopes.T * s.T).T
        slope_sums += slopes.sum(axis=0)
        products.add(where, slopes)
        if standardization is not None:
            curvatures = (found.curvatures.T * s.T).reshape(n_asked, -1)
            if columns is None:
                _add_hessian(hessian, chunk, curvatures, standardization)
            else:
                _add_parts(hessian, chunk, curvatures, standardization, columns)
    products.finish()
    return DescentSums(
        losses, smooth, gaps, gradient.T.reshape(coef.shape), slope_sums, hessian
    )


class _Products:
    """Adds up the products of a block's columns and slopes, of many rows at a time."""

    # A product is as large as the model. Where there are so many problems that a chunk
    # has few rows, products of all chunks would take longer than the rest.

    def __init__(self, X: Any, total: np.ndarray) -> None:
        self._X = X
        self._total = total
        # Slopes that are kept are then no more than the model has numbers.
        self._most = min(X.shape[1], _chunk_size(X, 1))
        self._start = 0
        self._kept: list[np.ndarray] = []
        self._n_kept = 0

    def add(self, where: slice, slopes: np.ndarray) -> None:
        """Take the slopes of a chunk's rows, which follow those before."""
        if self._n_kept + len(slopes) > self._most:
            self.finish()
            self._start = where.start
        self._kept.append(slopes)
        self._n_kept += len(slopes)

    def finish(self) -> None:
        """Add what has not been added yet."""
        if not self._kept:
            return
        rows = row_slice(self._X, self._start, self._start + self._n_kept)
        slopes = self._kept[0] if len(self._kept) == 1 else np.concatenate(self._kept)
        self._kept, self._n_kept = [], 0
        self._total += transposed(rows.astype(np.float64, copy=False)) @ slopes


def _weighted_sums(s: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sums over the samples, whose weights may differ from problem to problem."""
    return s @ values if s.ndim == 1 else np.einsum("ik,ik->k", s, values)


def _add_parts(
    hessian: np.ndarray,
    X: Any,
    curvatures: np.ndarray,
    standardization: Standardization,
    columns: np.ndarray,
) -> None:
    """Add the second derivatives of some rows by each problem's own columns."""
    for k, own in enumerate(columns):
        bent = np.flatnonzero(curvatures[k] > _FLAT * curvatures[k].max(initial=0.0))
        some = Standardization(*(array[own] for array in standardization))
        rows = X if len(bent) == X.shape[0] else X[bent]
        _add_hessian(
            hessian[k : k + 1], rows[:, own], curvatures[k : k + 1, bent], some
        )


def _add_hessian(
    hessian: np.ndarray,
    X: Any,
    curvatures: np.ndarray,
    standardization: Standardization,
) -> None:
    """Add the second derivatives of some rows; curvatures are (n_asked, n_samples)."""
    for rows, start in _dense_chunks(X):
        columns = np.ones((rows.shape[0], rows.shape[1] + 1))
        columns[:, :-1] = (rows - standardization.centre) / standardization.scale
        for total, all_curvatures in zip(hessian, curvatures, strict=True):
            curvature = all_curvatures[start : start + len(columns)]
            # Where a loss is flat, or as good as that, there is nothing to add.
            bent = np.flatnonzero(curvature > _FLAT * curvature.max(initial=0.0))
            part = columns if 2 * len(bent) > len(columns) else columns[bent]
            weight = curvature if part is columns else curvature[bent]
            total += (part.T * weight) @ part


def _dense_chunks(X: Any) -> Iterator[tuple[np.ndarray, int]]:
    """Some rows at a time as an array, and the first one's position."""
    size = max(1, _DENSE_ELEMENTS // max(1, X.shape[1]))
    for start in range(0, X.shape[0], size):
        rows = row_slice(X, start, min(start + size, X.shape[0]))
        yield rows.toarray() if sparse.issparse(rows) else rows, start
