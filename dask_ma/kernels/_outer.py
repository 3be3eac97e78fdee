"""Updates of a matrix by products of factors, where only some of its rows change.

The matrix lies transposed, with a row for each feature: a sparse factor names the rows
that change, and each of them is contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import blas

from dask_ma.kernels._optimizers import BLOCK
from dask_ma.kernels._rows import row_slice

try:  # not public: SciPy multiplies sparse and dense matrices by them
    from scipy.sparse._sparsetools import csc_matvecs as _add_sparse_product
    from scipy.sparse._sparsetools import csr_matvecs as _add_by_rows
except ImportError:  # pragma: no cover
    _add_sparse_product = None

# Sorting the indices of few elements costs less than a look at each feature.
_SORT_COST = 16
# Products of elements with outputs, and bytes of a matrix, from which on it is worth
# sorting that each row of the matrix is read once.
_MANY_PRODUCTS, _LARGE = 7e6, 2**25
# Outputs from which on it is. Few features make up most of what texts consist of, and
# their rows stay in the cache anyway: with fewer outputs, to sort takes longer.
_FEWEST_OUTPUTS = 100
# Some rows of a matrix that stay in the cache with what is taken off them.
_CHUNK_BYTES = 2**20


def used_columns(v: Any) -> np.ndarray:
    """Sorted columns of a sparse matrix that have elements.

    Parameters
    ----------
    v : CSR or CSC of shape (n_rows, n_features)

    Returns
    -------
    columns : ndarray of int64
    """
    n_features = v.shape[1]
    if v.format == "csc":
        return np.flatnonzero(np.diff(v.indptr))
    if v.nnz * _SORT_COST < n_features:
        return np.unique(v.indices).astype(np.int64)
    used = np.zeros(n_features, dtype=bool)
    used[v.indices] = True
    return np.flatnonzero(used)


def by_features(v: Any, matrix: np.ndarray) -> Any:
    """Rows of few elements, sorted by features where a matrix is then read less often.

    A large matrix does not stay in the cache from one row to the next that has the same
    feature. Products are the same to the bit, if the indices of rows are sorted.

    Parameters
    ----------
    v : ndarray or CSR of shape (n_rows, n_features)
    matrix : ndarray of shape (n_features, n_outputs)
        What they are multiplied with, or change.

    Returns
    -------
    v : ndarray, CSR or CSC of shape (n_rows, n_features)
    """
    if not sparse.issparse(v):
        return v
    n_features, n_outputs = matrix.shape
    is_worth_it = is_worth_sorting(v.nnz, n_features, n_outputs, matrix.itemsize)
    return v.tocsc() if is_worth_it else v


def is_worth_sorting(
    n_elements: int, n_features: int, n_outputs: int, itemsize: int
) -> bool:
    """Whether :func:`by_features` sorts so many elements that are not zero.

    Parameters
    ----------
    n_elements : int
    n_features, n_outputs, itemsize : int
        Shape of the matrix, and bytes of an element.

    Returns
    -------
    is_worth_it : bool
    """
    is_large = n_features * n_outputs * itemsize >= _LARGE
    is_large = is_large and n_outputs >= _FEWEST_OUTPUTS
    return is_large and n_elements * n_outputs >= _MANY_PRODUCTS


def product_square(u: np.ndarray, v: Any) -> float:
    """Squared Frobenius norm of ``v.T @ u``.

    Parameters
    ----------
    u : ndarray of shape (n_pairs, n_outputs)
    v : ndarray or CSR of shape (n_pairs, n_features)

    Returns
    -------
    square : float
        Summed in float64.
    """
    if not sparse.issparse(v):
        if len(u) < v.shape[1]:
            # The products of all pairs of rows are fewer numbers.
            return float(np.vdot(u @ u.T, (v @ v.T).astype(np.float64)))
        product = v.T @ u
        return float(np.einsum("ij,ij->", product, product, dtype=np.float64))
    columns, transpose = _transposed(v, used_columns(v))
    size, square = _rows_at_a_time(u), 0.0
    for start in range(0, len(columns), size):
        stop = min(start + size, len(columns))
        product = row_slice(transpose, start, stop) @ u
        square += float(np.einsum("ij,ij->", product, product, dtype=np.float64))
    return square


def gram_square(u: np.ndarray, pieces: Iterable[np.ndarray]) -> float:
    """What :func:`product_square` gives for dense rows, by the products of all pairs.

    Parameters
    ----------
    u : ndarray of shape (n_pairs, n_outputs)
    pieces : iterable of ndarray of shape (n_pairs, n)
        The rows, some features at a time.

    Returns
    -------
    square : float
        Summed in float64.
    """
    gram = np.zeros((len(u), len(u)))
    for v in pieces:
        gram += v @ v.T
    return float(np.vdot(u @ u.T, gram))


def square_sum(matrix: np.ndarray, other: np.ndarray | None = None) -> float:
    """Squared Frobenius norm of a matrix, or of what it differs from another by.

    Parameters
    ----------
    matrix : ndarray of shape (n_features, n_outputs)
    other : ndarray of shape (n_features, n_outputs), default=None

    Returns
    -------
    square : float
        Some rows at a time are summed in their type, these sums in float64.
    """
    size, square = _rows_at_a_time(matrix), 0.0
    for start in range(0, len(matrix), size):
        part = matrix[start : start + size]
        if other is not None:
            part = part - other[start : start + size]
        square += float(np.vdot(part, part))
    return square


def product_of(u: np.ndarray, v: Any, dtype: Any) -> np.ndarray:
    """Product ``v.T @ u`` as a matrix by itself.

    Other threads, as those that carry messages, go on meanwhile: they have to wait for
    what :func:`subtract_product` does with dense factors.

    Parameters
    ----------
    u : ndarray of shape (n_pairs, n_outputs)
    v : ndarray or CSR of shape (n_pairs, n_features)
    dtype : dtype
        Of the result.

    Returns
    -------
    product : ndarray of shape (n_features, n_outputs)
    """
    if sparse.issparse(v):
        product = np.zeros((v.shape[1], u.shape[1]), dtype=dtype)
        subtract_product(product, u, v, -1.0)
        return product
    u, v = (part.astype(dtype, copy=False) for part in (u, v))
    return np.asarray(v.T @ u)


def subtract_product(matrix: np.ndarray, u: np.ndarray, v: Any, scale: float) -> None:
    """Subtract ``scale * v.T @ u`` from a matrix, in place.

    No second matrix of its size is made, unless it is not C-contiguous.

    Parameters
    ----------
    matrix : ndarray of shape (n_features, n_outputs)
        Changed in place.
    u : ndarray of shape (n_pairs, n_outputs)
    v : ndarray, CSR or CSC of shape (n_pairs, n_features)
    scale : float
    """
    if not len(u):
        return
    if not matrix.flags.c_contiguous:  # BLAS would change a copy
        copy = np.ascontiguousarray(matrix)
        subtract_product(copy, u, v, scale)
        matrix[:] = copy
        return
    dtype = matrix.dtype
    if sparse.issparse(v):
        _add_sparse(matrix, u * dtype.type(-scale), v)
    elif matrix.shape[1] == 1:
        # A product with a vector, which is quicker in NumPy.
        matrix -= v.T @ (u * dtype.type(scale))
    else:
        multiply = blas.get_blas_funcs("gemm", dtype=dtype)
        u, v = (np.ascontiguousarray(part, dtype=dtype) for part in (u, v))
        # In the eyes of BLAS all of them are transposed.
        multiply(-scale, u.T, v.T, 1, matrix.T, trans_b=1, overwrite_c=1)


def subtract_scaled(matrix: np.ndarray, total: np.ndarray, scale: float) -> None:
    """Subtract ``scale * total`` from a matrix, in place, a few rows at a time.

    Parameters
    ----------
    matrix : ndarray of shape (n_features, n_outputs)
        Changed in place.
    total : ndarray of shape (n_features, n_outputs)
    scale : float
    """
    size = max(1, BLOCK // max(1, matrix.shape[1]))
    for start in range(0, len(matrix), size):
        part = slice(start, start + size)
        matrix[part] -= total[part] * matrix.dtype.type(scale)


def _add_sparse(matrix: np.ndarray, u: np.ndarray, v: Any) -> None:
    """Add ``v.T @ u``, of which `v` is sparse."""
    if _add_sparse_product is not None:
        dtype, v = matrix.dtype, by_features(v, matrix)
        u, values = (part.astype(dtype, copy=False) for part in (u, v.data))
        # The rows of `v` are the columns of its transpose.
        shape = v.shape[1], v.shape[0], matrix.shape[1]
        parts = v.indptr, v.indices, values
        add = _add_by_rows if v.format == "csc" else _add_sparse_product
        add(*shape, *parts, u.ravel(), matrix.reshape(-1))
        return
    v = v.tocsr()  # it may have been sorted
    columns, transpose = _transposed(v, used_columns(v))
    size = _rows_at_a_time(matrix)
    for start in range(0, len(columns), size):
        part = columns[start : start + size]
        change = row_slice(transpose, start, start + len(part)) @ u
        # Rows of the matrix are read and written once; the rest stays in the cache.
        np.add(matrix[part], change, out=change)
        matrix[part] = change


def _transposed(v: Any, columns: np.ndarray) -> tuple[np.ndarray, Any]:
    """Columns that are used, and the transpose with a row for each of them."""
    places = np.searchsorted(columns, v.indices)
    # The rows of `v` are the columns of its transpose.
    transpose = sparse.csc_array(
        (v.data, places, v.indptr), shape=(len(columns), v.shape[0])
    )
    return columns, transpose.tocsr()


def _rows_at_a_time(values: np.ndarray) -> int:
    """Rows that stay in the cache."""
    return max(1, _CHUNK_BYTES // max(1, values.shape[1] * values.itemsize))
