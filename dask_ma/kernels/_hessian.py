"""Second derivatives of the multinomial log loss."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.kernels._rows import row_slice

_CHUNK = 2**21  # numbers at a time


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
    hessian = np.zeros((n_variables, n_variables))
    size = max(1, _CHUNK // max(1, n_variables))
    for start in range(0, n_rows, size):
        rows = slice(start, min(start + size, n_rows))
        picked = _columns(row_slice(X, rows.start, rows.stop), features)
        p = probabilities[rows].astype(np.float64)
        weight = np.ones(len(p)) if sample_weight is None else sample_weight[rows]
        root = np.sqrt(weight.astype(np.float64))[:, np.newaxis]
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


def _columns(X: Any, features: np.ndarray) -> np.ndarray:
    """Columns of X, and of ones, in float64."""
    is_feature = features < X.shape[1]
    picked = X[:, features[is_feature]]
    columns = np.ones((X.shape[0], len(features)))
    columns[:, is_feature] = picked.toarray() if sparse.issparse(picked) else picked
    return columns
