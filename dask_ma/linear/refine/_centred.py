"""Rows with the centre of their columns taken away, which sparse ones keep beside."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.kernels import moment_sums

_CHUNK = 2**20  # elements of columns that are made dense at a time


class CentredRows:
    """Products of rows whose columns have been centred.

    Parameters
    ----------
    X : ndarray or csr_array of float64, shape (n_rows, n_features)
        Rows as they are.
    centre : ndarray of shape (n_features,)
        What is taken away from each.
    """

    def __init__(self, X: Any, centre: np.ndarray) -> None:
        self._X, self._centre = X, centre
        if not sparse.issparse(X):
            self._X, self._centre = X - centre, np.zeros_like(centre)

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return int(self._X.shape[1])

    @property
    def shifted(self) -> Any:
        """The rows, of sparse ones without anything taken away."""
        return self._X

    def squares(self) -> np.ndarray:
        """Squared lengths of the rows, of shape (n_rows,)."""
        X, centre = self._X, self._centre
        if not sparse.issparse(X):
            return np.asarray(np.einsum("ij,ij->i", X, X))
        squares = np.asarray(X.multiply(X).sum(axis=1)).ravel()
        squares += centre @ centre - 2 * (X @ centre)
        return np.maximum(squares, 0.0)

    def part(self, chosen: np.ndarray) -> CentredRows:
        """Some of the rows, with the same taken away."""
        part = copy(self)
        part._X = self._X[chosen]
        part.__dict__.pop("_split", None)
        return part

    @cached_property
    def _split(self) -> tuple[Any, np.ndarray, Any, np.ndarray]:
        """Sparse columns and what is taken away from them, then the same of others."""
        # Of columns far from zero all digits would be lost before the centre is taken
        # away, and of those that are dense by a quarter products take less time dense.
        X, centre = self._X, self._centre
        mean, mean_square = moment_sums(X, None) / X.shape[0]
        is_far = (2 * mean**2 > mean_square) & (centre != 0)
        is_far |= 4 * np.bincount(X.indices, minlength=X.shape[1]) > X.shape[0]
        distant, rest = np.flatnonzero(is_far), np.flatnonzero(~is_far)
        far = X.tocsc()[:, distant].tocsr()
        return X[:, rest], centre[rest], far, centre[distant]

    def products(self, chosen: np.ndarray | None = None) -> np.ndarray:
        """Products of all pairs of rows, or of some.

        Parameters
        ----------
        chosen : ndarray of int, shape (n_chosen,), default=None
            Which rows; None is all.

        Returns
        -------
        products : ndarray of shape (n_chosen, n_chosen)
        """
        if not sparse.issparse(self._X):
            rows = self._X if chosen is None else self._X[chosen]
            return np.asarray(rows @ rows.T)
        near, near_centre, far, far_centre = self._split
        if chosen is not None:
            near = near[chosen]
            far = far[chosen] if far.shape[1] else far
        along = near @ near_centre
        products = np.asarray((near @ near.T).toarray())
        products -= along + along[:, np.newaxis]
        products += near_centre @ near_centre
        if not far.shape[1]:
            return products
        far, width = far.tocsc(), max(1, _CHUNK // far.shape[0])
        for start in range(0, far.shape[1], width):
            some = slice(start, start + width)
            centred = far[:, some].toarray() - far_centre[some]
            products += centred @ centred.T
        return products

    def sum(self, shares: np.ndarray, chosen: np.ndarray | None = None) -> np.ndarray:
        """Sum of rows, each times its share.

        Parameters
        ----------
        shares : ndarray of shape (n_chosen,)
            Their shares.
        chosen : ndarray of int, shape (n_chosen,), default=None
            Which rows; None is all.

        Returns
        -------
        coef : ndarray of shape (n_features,)
        """
        rows = self._X if chosen is None else self._X[chosen]
        total = np.asarray(rows.T @ shares)
        total -= shares.sum() * self._centre
        return total

    def values(self, coef: np.ndarray) -> np.ndarray:
        """Products of all rows with coefficients.

        Parameters
        ----------
        coef : ndarray of shape (n_features,)

        Returns
        -------
        values : ndarray of shape (n_rows,)
        """
        values: np.ndarray = self._X @ coef
        values -= self._centre @ coef
        return values
