"""Weighted sums of the products of all pairs of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.kernels._rows import row_slice

_CHUNK = 2**21  # numbers at a time
# Elements that are stored, in parts of all: above it, products of dense rows are
# quicker.
_THIN = 0.06


def weighted_gram(X: Any, weight: np.ndarray | None = None) -> np.ndarray:
    """``X.T @ diag(weight) @ X``, in double precision.

    Parameters
    ----------
    X : ndarray or CSR of shape (n_samples, n_features)
        Rows.
    weight : ndarray of shape (n_samples,), default=None
        Not negative; None weighs each row by 1.

    Returns
    -------
    gram : ndarray of float64 of shape (n_features, n_features)
        Symmetric.
    """
    root = None if weight is None else np.sqrt(weight.astype(np.float64))
    if not sparse.issparse(X):
        return _of_dense(X, root)
    n_rows, n_features = X.shape
    if X.nnz <= _THIN * n_rows * n_features:
        data = X.data.astype(np.float64)
        if root is not None:
            data *= np.repeat(root, np.diff(X.indptr))
        rows = sparse.csr_array((data, X.indices, X.indptr), shape=X.shape)
        return np.asarray((rows.T @ rows).toarray())
    total, size = np.zeros((n_features, n_features)), max(1, _CHUNK // n_features)
    for start in range(0, n_rows, size):
        stop = min(start + size, n_rows)
        part = None if root is None else root[start:stop]
        total += _of_dense(row_slice(X, start, stop).toarray(), part)
    return total


def _of_dense(X: np.ndarray, root: np.ndarray | None) -> np.ndarray:
    """The same of rows that are to be multiplied by the roots of their weights."""
    X = X.astype(np.float64, copy=False)
    if root is not None:
        X = X * root[:, np.newaxis]
    return X.T @ X
