"""Values of linear functions, in chunks that fit the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dask_ma.kernels._rows import row_slice

# 2^16 float64 predictions are 512 KiB: the few temporaries of a loss stay in cache
_CHUNK_PREDICTIONS = 2**16


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
