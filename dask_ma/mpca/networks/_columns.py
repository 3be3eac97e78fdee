"""Weights and rows of a network that knows some columns of its rows alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.linear import UsedColumns

#: Columns, below which a network is that of all of them, as scikit-learn's.
FEWEST_COLUMNS = 2**12


def places_of(columns: UsedColumns) -> np.ndarray:
    """Number of the input for each column of the rows; -1 for none.

    Parameters
    ----------
    columns : UsedColumns
        Not all of them.

    Returns
    -------
    places : ndarray of int32, shape (n_features,)
    """
    places = np.full(columns.n_features, -1, dtype=np.int32)
    places[columns.numbers] = np.arange(len(numbers_of(columns)), dtype=np.int32)
    return places


def numbers_of(columns: UsedColumns) -> np.ndarray:
    """Numbers of the columns that a network knows, if these are not all."""
    assert columns.numbers is not None
    return columns.numbers


def used_part(X: Any, columns: UsedColumns, places: np.ndarray) -> Any:
    """The columns of rows that a network knows; what is in the others is left out.

    Parameters
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
    columns : UsedColumns
        Not all of them.
    places : ndarray of int32, shape (n_features,)
        As :func:`places_of` gives them.

    Returns
    -------
    X : ndarray or CSR of shape (n_rows, n_used)
        The values of a CSR are shared where all its columns are known.
    """
    numbers = numbers_of(columns)
    if not sparse.issparse(X):
        return X[:, numbers]
    data, indices, indptr = X.data, places[X.indices], X.indptr
    is_known = indices >= 0
    if not is_known.all():
        counts = np.zeros(len(data) + 1, dtype=indptr.dtype)
        np.cumsum(is_known, out=counts[1:])
        data, indices, indptr = data[is_known], indices[is_known], counts[indptr]
    # The constructor of SciPy would look at all of it once more.
    part = type(X)((X.shape[0], len(numbers)), dtype=X.dtype)
    part.data, part.indices, part.indptr = data, indices, indptr
    return part


def widened_weights(columns: UsedColumns, used: np.ndarray) -> np.ndarray:
    """Weights of all columns from those of the columns that a network knows.

    Parameters
    ----------
    columns : UsedColumns
    used : ndarray of shape (n_used, n_units)

    Returns
    -------
    weights : ndarray of shape (n_features, n_units)
        `used` itself where all columns are used; otherwise the others have 0.
    """
    if columns.numbers is None:
        return used
    weights = np.zeros((columns.n_features, used.shape[1]), used.dtype)
    weights[columns.numbers] = used
    return weights
