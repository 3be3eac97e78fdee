"""Rows of a matrix, and its transpose, without a copy; linear functions of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

# Columns of a transpose that are written at a time: more would not stay in the cache.
_COLUMNS = 128
# 2^16 float64 predictions are 512 KiB: the few temporaries of a loss stay in cache
_CHUNK_PREDICTIONS = 2**16


def row_slice(X: Any, start: int, stop: int) -> Any:
    """Rows ``start:stop`` of `X`; data and column indices stay shared.

    Parameters
    ----------
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        The matrix.
    start, stop : int
        Row range, ``0 <= start <= stop <= n_samples``.

    Returns
    -------
    ndarray, csr_matrix or csr_array of shape (stop - start, n_features)
        The type of `X`. A CSR result owns a new row pointer only.

    Raises
    ------
    ValueError
        If the range does not lie within the rows of `X`.
    """
    if not 0 <= start <= stop <= X.shape[0]:
        raise ValueError(
            f"start and stop must lie in order within 0 and {X.shape[0]} rows, "
            f"got {start} and {stop}"
        )
    if not sparse.issparse(X):
        return X[start:stop]
    return _csr_row_slice(X, start, stop)


def _csr_row_slice(X: Any, start: int, stop: int) -> Any:
    """The CSR case: slicing and the constructor of SciPy both copy the entries."""
    first, last = X.indptr[start], X.indptr[stop]
    rows = type(X)((stop - start, X.shape[1]), dtype=X.dtype)
    rows.data = X.data[first:last]
    rows.indices = X.indices[first:last]
    rows.indptr = np.subtract(X.indptr[start : stop + 1], first)
    return rows


def transposed_copy(array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """A C-contiguous copy of the transpose, which takes less time than by NumPy alone.

    Parameters
    ----------
    array : ndarray of shape (n_rows, n_columns)
    out : ndarray of shape (n_columns, n_rows), default=None
        Where to; None makes one.

    Returns
    -------
    out : ndarray of shape (n_columns, n_rows)
    """
    if out is None:
        out = np.empty(array.shape[::-1], dtype=array.dtype)
    for start in range(0, len(array), _COLUMNS):
        rows = slice(start, start + _COLUMNS)
        out[:, rows] = array[rows].T
    return out


def transposed(X: Any) -> Any:
    """The transpose of `X`, which shares all memory with it.

    Parameters
    ----------
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        The matrix.

    Returns
    -------
    ndarray, csc_matrix or csc_array of shape (n_features, n_samples)
        That of rows from :func:`row_slice` would be a copy with SciPy, whose
        constructor frees what is a small view of large arrays.
    """
    if not sparse.issparse(X):
        return X.T
    kind = sparse.csc_array if isinstance(X, sparse.sparray) else sparse.csc_matrix
    columns = kind(X.shape[::-1], dtype=X.dtype)
    columns.data, columns.indices, columns.indptr = X.data, X.indices, X.indptr
    return columns


def chunked_predictions(
    X: Any, coef: np.ndarray, intercept: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    """Values of the linear functions, some rows at a time.

    Parameters
    ----------
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        Rows; never copied or made dense.
    coef : ndarray of shape (n_problems, n_features)
        Coefficients, of the type of `X` for best speed.
    intercept : ndarray of shape (n_problems,)
        Intercepts.

    Yields
    ------
    rows : slice
        Which rows.
    p : ndarray of float64, shape (n_rows,) or (n_rows, n_problems)
        ``X[rows] @ coef.T + intercept``; one-dimensional for one problem.
    """
    n_problems = len(coef)
    # SciPy would copy a transposed view for every chunk
    columns = coef[0] if n_problems == 1 else np.ascontiguousarray(coef.T)
    size = max(1, _CHUNK_PREDICTIONS // n_problems)
    for start in range(0, X.shape[0], size):
        stop = min(start + size, X.shape[0])
        p = np.asarray(row_slice(X, start, stop) @ columns, dtype=np.float64)
        p += intercept
        yield slice(start, stop), p
