"""Fewer pairs of factors for nearly the same update.

The update ``u.T @ v`` of `K` pairs may have a lower rank than `K`: rows come up twice,
there are more rows than outputs, or slopes are alike. Its best approximation of rank
`r` (Eckart and Young) is that by its largest singular values, which `r` pairs hold.

With ``u.T = Q R`` (`Q` orthonormal), the update is ``Q B`` with ``B = R v``, and its
singular values are those of `B`. The Gram matrix ``B B.T`` is small, and comes from
sparse rows without making them dense. It settles most cases; only where a tight
tolerance may pay off is `B` decomposed itself, since squares lose half of the digits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.sfb.model._factors import Factors

_EPS = float(np.finfo(np.float64).eps)


class Compressed(NamedTuple):
    """Pairs of factors whose sparse `v` all have their elements in the same columns.

    The columns are named once, not once for each pair as in CSR.

    Attributes
    ----------
    u : ndarray of shape (n_pairs, n_outputs)
    block : ndarray of shape (n_pairs, n_columns)
        Elements of `v` in `columns`.
    columns : ndarray of int of shape (n_columns,)
        Ascending.
    n_features : int
        Columns of `v` altogether.
    """

    u: np.ndarray
    block: np.ndarray
    columns: np.ndarray
    n_features: int

    def expand(self) -> Factors:
        """The factors themselves.

        Returns
        -------
        factors : Factors
            With `v` as CSR. Its elements share memory with `block`.
        """
        n_pairs, n_columns = self.block.shape
        indices = np.tile(self.columns, n_pairs)
        is_small = self.block.size <= np.iinfo(indices.dtype).max
        dtype = indices.dtype if is_small else np.int64
        starts = np.arange(n_pairs + 1, dtype=dtype) * n_columns
        parts = np.ravel(self.block), indices, starts
        v = sparse.csr_array(parts, shape=(n_pairs, self.n_features))
        return Factors(self.u, v)


def message_bytes(factors: Factors | Compressed) -> int:
    """Bytes of the arrays of some factors.

    Parameters
    ----------
    factors : Factors or Compressed

    Returns
    -------
    n_bytes : int
    """
    if isinstance(factors, Compressed):
        return factors.u.nbytes + factors.block.nbytes + factors.columns.nbytes
    u, v = factors
    if not sparse.issparse(v):
        return int(u.nbytes + v.nbytes)
    return int(u.nbytes + v.data.nbytes + v.indices.nbytes + v.indptr.nbytes)


def compress(factors: Factors, tolerance: float) -> Factors | Compressed:
    """Fewer pairs whose product is nearly the same.

    The sender has to apply the result to its own matrix too, or the copies of the
    matrix drift apart.

    Parameters
    ----------
    factors : Factors
        `u` of shape (K, J) and `v` of shape (K, D), dense or CSR. They are not changed.
    tolerance : float
        Bound of the Frobenius norm of the error, relative to that of ``u.T @ v``; from
        0 to below 1. Rounding in the dtypes of the factors comes on top.

    Returns
    -------
    factors : Factors or Compressed
        The factors themselves where no fewer pairs do, or the message would not be
        smaller.
        Otherwise `r` pairs, `r` as small as the tolerance allows: Factors for a dense
        `v`, Compressed for a sparse one. An update of zeros has no pairs.

    Raises
    ------
    ValueError
        If `tolerance` is out of its range.
    """
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be from 0 to below 1, got {tolerance!r}")
    v, columns = _used_columns(factors.v)
    largest = _largest_rank(factors, columns)
    if largest < 0:
        return factors
    orthonormal, mix = np.linalg.qr(factors.u.T.astype(np.float64))
    basis = _basis(mix, v.astype(np.float64, copy=False), tolerance, largest)
    if basis is None:
        return factors
    u = np.ascontiguousarray((orthonormal @ basis).T, dtype=factors.u.dtype)
    block = np.ascontiguousarray((basis.T @ mix) @ v, dtype=v.dtype)
    if columns is None:
        return Factors(u, block)
    if not len(u):
        block, columns = block[:, :0], columns[:0]
    return Compressed(u, block, columns, factors.v.shape[1])


def _used_columns(v: Any) -> tuple[Any, np.ndarray | None]:
    """Columns of sparse rows that have elements, and their numbers, or dense rows."""
    if not sparse.issparse(v):
        return v, None
    columns, places = np.unique(v.indices, return_inverse=True)
    shape = (v.shape[0], len(columns))
    return sparse.csr_array((v.data, places, v.indptr), shape=shape), columns


def _largest_rank(factors: Factors, columns: np.ndarray | None) -> int:
    """Most pairs, fewer than now, that make a smaller message; -1 if not even none."""
    u, v = factors
    width = v.shape[1] if columns is None else len(columns)
    per_pair = u.shape[1] * u.itemsize + width * v.dtype.itemsize
    if not per_pair:
        return -1
    fixed = 0 if columns is None else columns.nbytes
    # The floor of a negative number is -1 or below.
    saved = message_bytes(factors) - fixed - 1
    return min(len(u) - 1, saved // per_pair)


def _basis(
    mix: np.ndarray, v: Any, tolerance: float, largest: int
) -> np.ndarray | None:
    """Leading left singular vectors of ``mix @ v``; None if too many are needed."""
    # `mix` (k, K) and `v` (K, n) are of float64; `tolerance` bounds the error of the
    # projection, relative to the norm.
    gram = _dense(v @ v.T)
    square = mix @ gram @ mix.T
    if not np.isfinite(square).all():
        return None
    values, vectors = np.linalg.eigh(square)
    squares, left = np.maximum(values[::-1], 0), vectors[:, ::-1]
    # Of the whole pairs, not of the update, in which they may cancel out.
    noise = 4 * _EPS * float(np.vdot(mix, mix) * np.trace(gram))
    if tolerance**2 * squares.sum() < 100 * noise:
        if _rank(squares, tolerance, noise) > largest:
            return None
        left, values, _ = np.linalg.svd(_dense(mix @ v), full_matrices=False)
        squares = values**2
    rank = _rank(squares, tolerance)
    return left[:, :rank] if rank <= largest else None


def _rank(squares: np.ndarray, tolerance: float, noise: float = 0.0) -> int:
    """How many of some squared singular values, the largest first, are needed."""
    # Added up from the smallest, so that small ones are not lost in the large ones.
    dropped = np.cumsum(squares[::-1])
    # Of the squared tolerance relative to the sum of all, and `noise` for each, by
    # which the values may be too large.
    allowed = tolerance**2 * dropped[-1:] + noise * np.arange(1, len(squares) + 1)
    return len(squares) - int(np.count_nonzero(dropped <= allowed))


def _dense(matrix: Any) -> np.ndarray:
    """A matrix as an array."""
    return matrix.toarray() if sparse.issparse(matrix) else np.asarray(matrix)
