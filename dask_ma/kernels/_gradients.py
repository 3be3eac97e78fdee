"""Sums of losses and of their gradients over a block of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.kernels._objective import (
    _check_shapes,
    one_vs_rest_targets,
    positive_factors,
)
from dask_ma.kernels._rows import row_slice, transposed
from dask_ma.kernels.losses import Loss, loss_slopes, loss_values

# Bounds of a chunk: 512 KiB of float64 predictions, and 8 MiB of elements of X, which
# are copied where X is float32 or only some of its rows are wanted.
_CHUNK_PREDICTIONS = 2**16
_CHUNK_ELEMENTS = 2**20


class GradientSums(NamedTuple):
    """Weighted sums over rows, all of float64.

    Attributes
    ----------
    losses : ndarray of shape (n_problems,)
        ``sum_i s_ik loss(y_ik, p_ik)`` with ``p_ik = x_i w_k + b_k``.
    coef : ndarray of shape (n_problems, n_features)
        Its derivatives by the coefficients.
    intercept : ndarray of shape (n_problems,)
        Its derivatives by the intercepts.
    weight : float
        Sum of the samples' own weights.
    """

    losses: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray
    weight: float


def gradient_sums(
    X: Any,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
    coef: np.ndarray,
    intercept: np.ndarray,
    *,
    loss: str | Loss,
    epsilon: float = 0.1,
    one_vs_rest: bool = False,
    positive_weight: np.ndarray | None = None,
    rows: np.ndarray | None = None,
) -> GradientSums:
    """Sums of losses and of their gradients over a block, in one pass.

    Parameters
    ----------
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        Rows of the block; read in chunks of rows and never made dense. A chunk is
        copied if X is float32, so that the sums are as precise as float64, or if `rows`
        are given.
    y : ndarray of shape (n_samples,)
        Targets of the one problem; with `one_vs_rest`, class codes as
        :func:`one_vs_rest_targets` takes them.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the samples; None weighs each by 1.
    coef : ndarray of shape (n_problems, n_features)
        Coefficients.
    intercept : ndarray of shape (n_problems,)
        Intercepts.
    loss : str or Loss
        One of ``LOSSES``, or another loss.
    epsilon : float, default=0.1
        Passed on to :func:`loss_slopes`.
    one_vs_rest : bool, default=False
        Whether `y` holds class codes.
    positive_weight : ndarray of shape (n_problems,) or None, default=None
        What the weights of each problem's own class are multiplied by, with
        `one_vs_rest`, as :func:`positive_factors` has it; None multiplies by 1.
    rows : ndarray of int or None, default=None
        Positions of the rows that count; None for all of them.

    Returns
    -------
    GradientSums

    Raises
    ------
    ValueError
        If shapes disagree, or several problems come without `one_vs_rest`.
    """
    _check_shapes(X, y, sample_weight, coef, intercept, one_vs_rest)
    n_problems = len(coef)
    # For one problem all is vectors: their products are faster than those of matrices
    # of one column.
    columns = coef[0] if n_problems == 1 else np.ascontiguousarray(coef.T)
    columns = columns.astype(np.float64, copy=False)
    losses, slope_sums, weight = np.zeros(n_problems), np.zeros(n_problems), 0.0
    gradient = np.zeros(columns.shape)
    for chunk, where in _chunks(X, n_problems, rows):
        p = chunk @ columns
        p += intercept
        targets = one_vs_rest_targets(y[where], n_problems) if one_vs_rest else y[where]
        factors = None
        if positive_weight is not None:
            factors = positive_factors(targets, positive_weight).reshape(p.shape)
        targets = targets.reshape(p.shape)
        values = loss_values(loss, targets, p, epsilon)
        slopes = loss_slopes(loss, targets, p, epsilon)
        if factors is not None:
            values *= factors
            slopes *= factors
        if sample_weight is None:
            weight += len(p)
        else:
            s = sample_weight[where].astype(np.float64, copy=False)
            weight += float(s.sum())
            s = s.reshape(-1, *[1] * (p.ndim - 1))
            values *= s
            slopes *= s
        losses += values.sum(axis=0)
        slope_sums += slopes.sum(axis=0)
        gradient += transposed(chunk) @ slopes
    return GradientSums(losses, gradient.T.reshape(coef.shape), slope_sums, weight)


def _chunks(
    X: Any, n_problems: int, rows: np.ndarray | None
) -> Iterator[tuple[Any, Any]]:
    """Some rows of X at a time as float64, and where they lie in the block."""
    n_rows = X.shape[0] if rows is None else len(rows)
    size = _chunk_size(X, n_problems)
    for start in range(0, n_rows, size):
        stop = min(start + size, n_rows)
        where: Any = slice(start, stop)
        if rows is None:
            chunk = row_slice(X, start, stop)
        else:
            where = rows[where]
            chunk = X[where]
        yield chunk.astype(np.float64, copy=False), where


def _chunk_size(X: Any, n_problems: int) -> int:
    """Rows of a chunk."""
    n_rows, n_features = X.shape
    n_stored = X.nnz if sparse.issparse(X) else X.size
    # The product of a chunk is as large as the model, and cheap to add up where a chunk
    # has as many elements as there are features, at least.
    n_elements = max(_CHUNK_ELEMENTS, n_features)
    by_elements = n_elements * n_rows // max(1, n_stored)
    return max(1, min(_CHUNK_PREDICTIONS // n_problems, by_elements))
