"""Columns of a block of rows: products and sums without dense copies of sparse data."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

# Stored elements per column from which slices are faster to gather than positions are
# to work out (measured with 8 to 256 columns).
_LONG = 200
_CHUNK = 1 << 20  # elements of a dense block that are squared at once
_STORED = 1 << 16  # stored elements of a sparse one


class ColumnEntries(NamedTuple):
    """Stored elements of some columns, one column after the other.

    Attributes
    ----------
    values : ndarray of shape (n_entries,)
    rows : ndarray of int of shape (n_entries,)
    bounds : ndarray of int64 of shape (n_columns + 1,)
        Column `i` is ``bounds[i]:bounds[i + 1]``.
    """

    values: np.ndarray
    rows: np.ndarray
    bounds: np.ndarray


def column_store(X: Any) -> Any:
    """Lay a block of rows out so that its columns can be read fast.

    Parameters
    ----------
    X : ndarray or sparse matrix or array of shape (n_rows, n_columns)
        Block of rows.

    Returns
    -------
    ndarray in Fortran order, or CSC, of shape (n_rows, n_columns)
        Same dtype, and same type of indices. A dense array that is in Fortran order
        already is returned as it is; otherwise the result is a copy: from rows in C
        order, columns are read ten times slower.
    """
    return X.tocsc() if sparse.issparse(X) else np.asfortranarray(X)


def take_columns(X: Any, index: np.ndarray) -> Any:
    """Some columns of a column store.

    Parameters
    ----------
    X : ndarray or CSC of shape (n_rows, n_columns)
        As :func:`column_store` gives it.
    index : ndarray of int of shape (k,)
        Columns wanted, from 0 to ``n_columns - 1``.

    Returns
    -------
    ndarray of float64 or CSC of float64 of shape (n_rows, k)
    """
    if not sparse.issparse(X):
        return X.T[index].T.astype(np.float64, copy=False)
    entries = column_entries(X, index)
    taken = type(X)((X.shape[0], len(index)), dtype=np.float64)
    taken.data = entries.values.astype(np.float64, copy=False)
    taken.indices = entries.rows
    taken.indptr = entries.bounds.astype(entries.rows.dtype)
    return taken


def column_entries(X: Any, index: np.ndarray) -> ColumnEntries:
    """Stored elements of some columns of a sparse column store.

    Parameters
    ----------
    X : CSC of shape (n_rows, n_columns)
        As :func:`column_store` gives it.
    index : ndarray of int of shape (k,)
        Columns wanted.

    Returns
    -------
    entries : ColumnEntries
    """
    starts = X.indptr[index].astype(np.int64)
    stops = X.indptr[np.asarray(index) + 1].astype(np.int64)
    bounds = np.zeros(len(starts) + 1, dtype=np.int64)
    np.cumsum(stops - starts, out=bounds[1:])
    if bounds[-1] > _LONG * len(starts):
        runs = [slice(a, b) for a, b in zip(starts.tolist(), stops.tolist())]
        values = np.concatenate([X.data[run] for run in runs])
        return ColumnEntries(
            values, np.concatenate([X.indices[r] for r in runs]), bounds
        )
    positions = np.repeat(starts - bounds[:-1], stops - starts)
    positions += np.arange(bounds[-1])
    return ColumnEntries(X.data[positions], X.indices[positions], bounds)


def segment_sums(values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Sums of consecutive runs of rows.

    Parameters
    ----------
    values : ndarray of shape (n,) or (n, K)
        What to add up.
    bounds : ndarray of int of shape (k + 1,)
        Run `i` is ``bounds[i]:bounds[i + 1]``; together they cover `values`.

    Returns
    -------
    sums : ndarray of float64 of shape (k,) or (k, K)
        Zero for empty runs.
    """
    sums = np.zeros((len(bounds) - 1, *values.shape[1:]))
    filled = np.flatnonzero(np.diff(bounds))
    if len(filled):
        # reduceat has no notion of an empty run.
        sums[filled] = np.add.reduceat(
            values, bounds[:-1][filled], axis=0, dtype=np.float64
        )
    return sums


def column_products(X: Any, index: np.ndarray, r: np.ndarray) -> np.ndarray:
    """``X[:, index].T @ r``.

    Parameters
    ----------
    X : ndarray or CSC of shape (n_rows, n_columns)
        As :func:`column_store` gives it.
    index : ndarray of int of shape (k,)
        Columns wanted.
    r : ndarray of float64 of shape (n_rows,) or (n_rows, K)
        What they are multiplied with.

    Returns
    -------
    products : ndarray of float64 of shape (k,) or (k, K)
    """
    if not sparse.issparse(X):
        return X.T[index] @ r
    values, rows, bounds = column_entries(X, index)
    return segment_sums(_scaled(values, r[rows]), bounds)


def columns_dot(X: Any, index: np.ndarray, values: np.ndarray) -> np.ndarray:
    """``X[:, index] @ values``.

    Parameters
    ----------
    X : ndarray or CSC of shape (n_rows, n_columns)
        As :func:`column_store` gives it.
    index : ndarray of int of shape (k,)
        Columns wanted.
    values : ndarray of float64 of shape (k,) or (k, K)
        What each column is multiplied with.

    Returns
    -------
    products : ndarray of float64 of shape (n_rows,) or (n_rows, K)
    """
    products = np.zeros((X.shape[0], *values.shape[1:]))
    add_columns(products, X, index, values)
    return products


def add_columns(
    out: np.ndarray,
    X: Any,
    index: np.ndarray,
    values: np.ndarray,
    weight: np.ndarray | None = None,
) -> None:
    """Add ``weight * (X[:, index] @ values)`` to `out`, in place.

    Sparse columns cost their stored elements alone, not the number of rows.

    Parameters
    ----------
    out : ndarray of float64 of shape (n_rows,) or (n_rows, K)
        What is added to.
    X : ndarray or CSC of shape (n_rows, n_columns)
        As :func:`column_store` gives it.
    index : ndarray of int of shape (k,)
        Columns wanted; one may be named twice.
    values : ndarray of float64 of shape (k,) or (k, K)
        What each column is multiplied with.
    weight : ndarray of shape (n_rows,), default=None
        Factor of each row; None stands for 1.
    """
    if not sparse.issparse(X):
        products = X.T[index].T @ values
        out += products if weight is None else _scaled(weight, products)
        return
    entries, rows, bounds = column_entries(X, index)
    if weight is not None:
        entries = entries * weight[rows]
    factors = np.repeat(values, np.diff(bounds), axis=0)
    np.add.at(out, rows, _scaled(entries, factors))


def column_sums(X: Any, weight: np.ndarray | None = None) -> np.ndarray:
    """Sums of the columns, ``sum_i weight_i x_ij``.

    Parameters
    ----------
    X : ndarray or sparse matrix or array of shape (n_rows, n_columns)
        Rows.
    weight : ndarray of shape (n_rows,), default=None
        Weights of the rows; None stands for 1.

    Returns
    -------
    sums : ndarray of float64 of shape (n_columns,)
    """
    ones = np.ones(X.shape[0]) if weight is None else weight.astype(np.float64)
    return np.asarray(X.T @ ones, dtype=np.float64).ravel()


def column_squares(
    X: Any, weight: np.ndarray | None = None, center: np.ndarray | None = None
) -> np.ndarray:
    """Weighted sums of squares of the columns, ``sum_i weight_i (x_ij - center_j)^2``.

    Parameters
    ----------
    X : ndarray or sparse matrix or array of shape (n_rows, n_columns)
        Rows; for sparse rows what is not stored counts as 0.
    weight : ndarray of shape (n_rows,), default=None
        Weights of the rows; None stands for 1.
    center : ndarray of shape (n_columns,), default=None
        What is taken from each column; None stands for 0.

    Returns
    -------
    squares : ndarray of float64 of shape (n_columns,)
        Not negative. For sparse rows with a center they come as a difference, and have
        errors of some 1e-16 of the sums of squares without it.
    """
    if sparse.issparse(X):
        return _sparse_squares(X, weight, center)
    squares = np.zeros(X.shape[1])
    step = max(1, _CHUNK // max(1, X.shape[1]))
    for start in range(0, X.shape[0], step):
        rows = X[start : start + step].astype(np.float64)
        if center is not None:
            rows -= center
        rows *= rows
        chunk = None if weight is None else weight[start : start + step]
        squares += rows.sum(axis=0) if chunk is None else chunk @ rows
        del rows  # or two chunks are there at a time
    return squares


def _sparse_squares(
    X: Any, weight: np.ndarray | None, center: np.ndarray | None
) -> np.ndarray:
    """The sparse case of :func:`column_squares`."""
    ones = np.ones(X.shape[0]) if weight is None else weight.astype(np.float64)
    squares = np.zeros(X.shape[1])
    by_column = X.format == "csc"
    # Some columns, or rows, at a time: the squares of all would be a copy of X.
    n_slices = X.shape[1] if by_column else X.shape[0]
    step = _STORED if by_column else max(_STORED, X.shape[1])
    bounds = np.searchsorted(X.indptr, np.arange(0, X.nnz, step)[1:])
    for start, stop in pairwise(np.unique([0, *bounds, n_slices])):
        some = slice(X.indptr[start], X.indptr[stop])
        squared = X.data[some].astype(np.float64)
        squared *= squared
        starts = X.indptr[start : stop + 1] - X.indptr[start]
        if by_column:
            squared *= ones[X.indices[some]]
            squares[start:stop] = segment_sums(squared, starts)
        else:
            squared *= np.repeat(ones[start:stop], np.diff(starts))
            squares += np.bincount(X.indices[some], squared, minlength=len(squares))
    if center is not None:
        sums = column_sums(X, weight)
        squares += center * (center * ones.sum() - 2 * sums)
    return np.maximum(squares, 0.0)


def _scaled(factors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Each row times its factor."""
    return factors * rows if rows.ndim == 1 else factors[:, np.newaxis] * rows
