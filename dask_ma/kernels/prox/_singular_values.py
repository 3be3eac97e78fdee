"""Lower the singular values of a matrix: the proximal operator of the trace norm."""

from __future__ import annotations

import numpy as np

# The error of a Gram matrix, relative to its largest eigenvalue, is a few times this.
_EPS = float(np.finfo(np.float64).eps)


def lower_singular_values(matrix: np.ndarray, threshold: float) -> np.ndarray:
    """Lower singular values by `threshold`, and not below zero.

    Parameters
    ----------
    matrix : ndarray of float32 or float64 of shape (n, m)
        Not changed.
    threshold : float
        Not negative.

    Returns
    -------
    lowered : ndarray of shape (n, m)
        A new array of the same dtype.

    Raises
    ------
    numpy.linalg.LinAlgError
        If an element of `matrix` is not finite.
    """
    if not matrix.size or not threshold:
        return matrix.copy()
    is_wide = matrix.shape[0] <= matrix.shape[1]
    wide = matrix if is_wide else matrix.T
    lowered = _lower_by_gram(wide, threshold)
    if lowered is None:
        lowered = _lower_by_svd(wide, threshold)
    return lowered if is_wide else lowered.T


def _lower_by_gram(wide: np.ndarray, threshold: float) -> np.ndarray | None:
    """Lower singular values by the smaller Gram matrix; None if not accurate."""
    # Several times faster than a decomposition of the matrix itself, but the squaring
    # costs digits of singular values that are small beside the largest one.
    square = np.matmul(wide, wide.T, dtype=np.float64)
    if not np.isfinite(square).all():
        return None
    values, vectors = np.linalg.eigh(square)
    # Below this, rounding alone could have lifted an eigenvalue over the threshold.
    is_clear = threshold**2 > 1000 * _EPS * values[-1]
    doubtful = values[values > threshold**2 / 2] if is_clear else values
    # The error is about eps * largest / smallest, which float32 bears sooner.
    least = 1e-6 if wide.dtype == np.float64 else 1e-11
    if doubtful.min(initial=np.inf) < least * values[-1]:
        return None
    kept = values > threshold**2
    factors = 1 - threshold / np.sqrt(values[kept])
    weights = (vectors[:, kept] * factors) @ vectors[:, kept].T
    return (weights @ wide).astype(wide.dtype, copy=False)


def _lower_by_svd(wide: np.ndarray, threshold: float) -> np.ndarray:
    """Lower singular values by a decomposition of the matrix itself."""
    left, values, right = np.linalg.svd(wide, full_matrices=False)
    kept = values > threshold
    lowered = (left[:, kept] * (values[kept] - threshold)) @ right[kept]
    return lowered.astype(wide.dtype, copy=False)
