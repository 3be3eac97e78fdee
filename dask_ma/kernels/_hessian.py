"""Second derivatives of the multinomial log loss."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.kernels._gram import weighted_gram
from dask_ma.kernels._rows import row_slice

_CHUNK = 2**21  # numbers at a time
# Elements of the columns that are stored: above it, products of dense ones are quicker.
_THIN = 0.05


def softmax_hessian(
    X: Any,
    probabilities: np.ndarray,
    sample_weight: np.ndarray | None,
    features: np.ndarray,
    outputs: np.ndarray,
) -> np.ndarray:
    """Second derivatives of the weighted sum of the losses by some coefficients.

    Variable `j` is the coefficient of the feature ``features[j]`` for the output
    ``outputs[j]``. The feature ``n_features`` stands for the intercept.

    Parameters
    ----------
    X : ndarray or CSR of shape (n_samples, n_features)
        Rows.
    probabilities : ndarray of shape (n_samples, n_outputs)
        What :func:`softmax` gives.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the rows; None weighs each by 1.
    features, outputs : ndarray of int of shape (n_variables,)

    Returns
    -------
    hessian : ndarray of float64 of shape (n_variables, n_variables)
        Symmetric.
    """
    n_rows, n_variables = X.shape[0], len(features)
    if sparse.issparse(X) and probabilities.shape[1] == 1:
        return _of_one_output(X, probabilities[:, 0], sample_weight, features)
    if sparse.issparse(X):
        n_stored = _n_stored(X, features)
        if n_stored <= _THIN * n_rows * n_variables:
            numbers = probabilities, sample_weight
            return _of_thin_columns(X, *numbers, features, outputs, n_stored)
    hessian = np.zeros((n_variables, n_variables))
    size = max(1, _CHUNK // max(1, n_variables))
    for start in range(0, n_rows, size):
        rows = slice(start, min(start + size, n_rows))
        picked = _columns(row_slice(X, rows.start, rows.stop), features)
        p = probabilities[rows].astype(np.float64)
        root = _roots(sample_weight, rows, len(p))[:, np.newaxis]
        if p.shape[1] == 1:
            picked *= root * np.sqrt(p * (1 - p))
            hessian += picked.T @ picked
            continue
        picked *= root
        blocks = []
        for output in np.unique(outputs):
            own = np.flatnonzero(outputs == output)
            q = p[:, output, np.newaxis]
            part = picked[:, own] * np.sqrt(q * (1 - q))
            blocks.append((np.ix_(own, own), part.T @ part))
        picked *= p[:, outputs]
        product = picked.T @ picked
        # Of certain classes the difference of p and its square would be rounding.
        for place, block in blocks:
            product[place] = -block
        hessian -= product
    return hessian


def _of_one_output(
    X: Any, p: np.ndarray, weight: np.ndarray | None, features: np.ndarray
) -> np.ndarray:
    """The Hessian of one output and sparse rows."""
    p = p.astype(np.float64)
    p *= 1 - p
    if weight is not None:
        p *= weight
    is_feature = features < X.shape[1]
    picked = sparse.csr_array(X[:, features[is_feature]])
    hessian = np.full((len(features), len(features)), p.sum())
    hessian[np.ix_(is_feature, is_feature)] = weighted_gram(picked, p)
    border = (picked.T @ p)[:, np.newaxis]
    hessian[np.ix_(is_feature, ~is_feature)] = border
    hessian[np.ix_(~is_feature, is_feature)] = border.T
    return hessian


def _columns(X: Any, features: np.ndarray) -> np.ndarray:
    """Columns of X, and of ones, in float64."""
    is_feature = features < X.shape[1]
    picked = X[:, features[is_feature]]
    columns = np.ones((X.shape[0], len(features)))
    columns[:, is_feature] = picked.toarray() if sparse.issparse(picked) else picked
    return columns


def _roots(weight: np.ndarray | None, rows: slice, n_rows: int) -> np.ndarray:
    """Roots of the weights of some rows."""
    if weight is None:
        return np.ones(n_rows)
    return np.sqrt(weight[rows].astype(np.float64))


def _n_stored(X: Any, features: np.ndarray) -> int:
    """Stored elements of some columns, each as often as it is named."""
    stored = np.bincount(X.indices, minlength=X.shape[1])
    return int(stored[features[features < X.shape[1]]].sum())


def _of_thin_columns(
    X: Any,
    probabilities: np.ndarray,
    sample_weight: np.ndarray | None,
    features: np.ndarray,
    outputs: np.ndarray,
    n_stored: int,
) -> np.ndarray:
    """The Hessian by products of sparse columns, but for the intercepts."""
    n_rows, n_variables = X.shape[0], len(features)
    # Those of an output stand together, the intercepts behind all others.
    order = np.lexsort((outputs, features == X.shape[1]))
    outputs = outputs[order]
    n_sparse = int(np.count_nonzero(features < X.shape[1]))
    features = features[order[:n_sparse]]
    found = np.zeros((n_variables, n_variables))
    n_numbers = n_stored + n_rows * (n_variables - n_sparse)
    size = max(1, n_rows * _CHUNK // max(1, n_numbers))
    for start in range(0, n_rows, size):
        rows = slice(start, min(start + size, n_rows))
        p = probabilities[rows].astype(np.float64, copy=False)
        root = _roots(sample_weight, rows, len(p))
        picked = sparse.csr_array(row_slice(X, rows.start, rows.stop)[:, features])
        _add_thin(found, picked, p, root, outputs)
    hessian = np.empty_like(found)
    hessian[np.ix_(order, order)] = found
    return hessian


def _add_thin(
    found: np.ndarray,
    picked: Any,
    p: np.ndarray,
    root: np.ndarray,
    outputs: np.ndarray,
) -> None:
    """Add what some rows have of the Hessian, the intercepts in its last rows."""
    n = picked.shape[1]
    rows = np.repeat(np.arange(len(p)), np.diff(picked.indptr))
    own = p[rows, outputs[picked.indices]]
    values = picked.data * root[rows]
    curved = values * own * (1 - own)
    scaled = _with_data(picked, values * own)
    ones = root[:, np.newaxis] * p[:, outputs[n:]]
    product = np.empty_like(found)
    product[:n, :n] = (scaled.T @ scaled).toarray()
    product[:n, n:] = scaled.T @ ones
    product[n:, n:] = ones.T @ ones
    # Of certain classes the difference of p and its square would be rounding.
    columns = _with_data(picked, values * np.sqrt(own * (1 - own))).tocsc()
    for output in np.unique(outputs[:n]):
        block = slice(*np.searchsorted(outputs[:n], [output, output + 1]))
        part = columns[:, block]
        product[block, block] = -(part.T @ part).toarray()
    sums = np.bincount(picked.indices, curved * root[rows], minlength=n)
    sums = np.append(sums, root**2 @ (p * (1 - p))[:, outputs[n:]])
    is_same = outputs[:, np.newaxis] == outputs[n:]
    product[:, n:][is_same] = -np.broadcast_to(sums[:, np.newaxis], is_same.shape)[
        is_same
    ]
    product[n:, :n] = product[:n, n:].T
    found -= product


def _with_data(matrix: Any, data: np.ndarray) -> Any:
    """A CSR matrix with other values in the same places."""
    arrays = (data, matrix.indices, matrix.indptr)
    return sparse.csr_array(arrays, shape=matrix.shape)
