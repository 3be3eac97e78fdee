"""Codes of rows that no penalty is in: so many atoms at most, or large products."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.kernels import row_slice

_BLOCK_BYTES = 2**19  # products of some rows and all atoms
_LEAST_ROWS = 32
#: What `transform` knows besides the lasso.
OTHER_CODES = ("omp", "threshold")


def threshold_codes(
    X: Any, atoms: np.ndarray, alpha: float, *, positive: bool = False
) -> np.ndarray:
    """Products of rows and atoms, each drawn towards 0 by the same amount.

    Parameters
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
    atoms : ndarray of shape (n_atoms, n_features)
    alpha : float
        The amount.
    positive : bool, default=False
        Whether products below it count as 0, however far.

    Returns
    -------
    codes : ndarray of shape (n_rows, n_atoms)
    """
    codes = np.asarray(X @ atoms.T.astype(X.dtype, copy=False))
    if positive:
        return np.maximum(codes - codes.dtype.type(alpha), 0)
    codes -= np.clip(codes, -alpha, alpha)
    return codes


def pursued_codes(X: Any, atoms: np.ndarray, n_nonzero: int) -> np.ndarray:
    """Least squares on so many atoms, chosen one by one: orthogonal matching pursuit.

    Next comes the atom that makes the smallest angle with what is left of the row.

    Parameters
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
        CSR is never made dense.
    atoms : ndarray of shape (n_atoms, n_features)
        Of any length.
    n_nonzero : int
        Most atoms of a row, at least 1.

    Returns
    -------
    codes : ndarray of shape (n_rows, n_atoms)
        In the type of the rows. Rows that need fewer atoms have fewer.
    """
    atoms = np.ascontiguousarray(atoms, dtype=X.dtype)
    lengths = np.sqrt(np.einsum("ij,ij->i", atoms, atoms))
    lengths[lengths == 0] = 1
    atoms = atoms / lengths[:, np.newaxis]
    gram = atoms @ atoms.T
    n_rows, n_atoms = X.shape[0], len(atoms)
    codes = np.zeros((n_rows, n_atoms), dtype=X.dtype)
    size = max(_LEAST_ROWS, _BLOCK_BYTES // max(1, n_atoms * X.dtype.itemsize))
    n_nonzero = min(n_nonzero, n_atoms, atoms.shape[1])
    for start in range(0, n_rows, size):
        stop = min(start + size, n_rows)
        products = np.asarray(row_slice(X, start, stop) @ atoms.T)
        _pursue(products, gram, n_nonzero, codes[start:stop])
    codes /= lengths
    return codes


def _pursue(
    products: np.ndarray, gram: np.ndarray, n_nonzero: int, codes: np.ndarray
) -> None:
    """Fill in the codes of some rows, from their products with atoms of length 1."""
    eps = np.finfo(products.dtype).eps
    least = 100 * eps * np.abs(products).max(axis=1, initial=0.0)
    active = np.flatnonzero(np.abs(products).max(axis=1, initial=0.0) > 0)
    chosen = np.zeros((len(active), n_nonzero), dtype=np.int64)
    inverse = np.zeros((len(active), n_nonzero, n_nonzero), dtype=products.dtype)
    rest = products[active]
    for n in range(n_nonzero):
        atom = np.abs(rest).argmax(axis=1)
        row = np.arange(len(active))
        column = gram[atom[:, np.newaxis], chosen[:, :n]]
        along = np.einsum("rij,rj->ri", inverse[:, :n, :n], column)
        left = gram[atom, atom] - np.einsum("ri,ri->r", along, column)
        # There is nothing left of the row, or of the atom beside those chosen.
        is_open = (np.abs(rest[row, atom]) > least[active]) & (left > 100 * eps)
        active, chosen, inverse = active[is_open], chosen[is_open], inverse[is_open]
        if not len(active):
            return
        chosen[:, n] = atom[is_open]
        _extend(inverse, n, along[is_open], left[is_open])
        rows = active[:, np.newaxis]
        of_chosen = products[rows, chosen[:, : n + 1]]
        values = np.einsum("rij,rj->ri", inverse[:, : n + 1, : n + 1], of_chosen)
        codes[rows, chosen[:, : n + 1]] = values
        rest = products[active] - codes[active] @ gram
        np.put_along_axis(rest, chosen[:, : n + 1], 0, axis=1)


def _extend(inverse: np.ndarray, n: int, along: np.ndarray, left: np.ndarray) -> None:
    """Inverses of Gram matrices with one atom more, the number `n`, in place."""
    scaled = along / left[:, np.newaxis]
    inverse[:, :n, :n] += along[:, :, np.newaxis] * scaled[:, np.newaxis]
    inverse[:, :n, n] = inverse[:, n, :n] = -scaled
    inverse[:, n, n] = 1 / left
