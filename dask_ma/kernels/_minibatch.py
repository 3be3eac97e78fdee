"""One step of mini-batch SGD on a linear model.

The weights of all problems are one array of shape (n_features + 1, n_problems), the
last row being the intercepts: what a rank sends to another is one contiguous array, and
a column of a row of X meets its weights side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.kernels._objective import positive_factors
from dask_ma.kernels._places import wide
from dask_ma.kernels._rows import transposed
from dask_ma.kernels.losses import Loss, loss_slopes

# To add at scattered places costs this many times as much, per element, as the passes
# over an array that a dense gradient takes.
_SCATTER_COST = 6
# Up to so many non-zeros, counting them into bins costs less than SciPy's transpose.
_FEW_NONZEROS = 6_000
# Elements of which something of their own is made at a time. Of sparse rows that is
# several arrays, whose memory a fit that begins has to get from the system first.
_AT_ONCE, _SPARSE_AT_ONCE = 1 << 18, 1 << 15

#: What :func:`preconditioner_diagonal` can make.
PRECONDITIONERS = ("bounded", "jacobi", "frequency")


def batch_slopes(
    weights: np.ndarray,
    X: Any,
    targets: np.ndarray,
    sample_weight: np.ndarray | None,
    *,
    loss: str | Loss,
    epsilon: float = 0.1,
    positive_weight: np.ndarray | None = None,
) -> np.ndarray:
    """Derivatives of the losses of a batch by the predictions.

    Parameters
    ----------
    weights : ndarray of shape (n_features + 1, n_problems), C-contiguous
        Coefficients and, in the last row, intercepts.
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        Rows of the batch, of the dtype of `weights`.
    targets : ndarray of shape (n_samples, n_problems), or (n_samples,) for one problem
        -1 or +1 for the margin losses, any numbers for the others.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the rows; None weighs each by 1.
    loss : str or Loss
        One of ``LOSSES``, or another loss; see :func:`loss_slopes` for its derivative
        at a kink.
    epsilon : float, default=0.1
        Width of huber and of the epsilon-insensitive losses; no other loss reads it.
    positive_weight : ndarray of shape (n_problems,) or None, default=None
        What the weights of the rows with the target +1 are multiplied by in each
        problem, as :func:`positive_factors` has it; None multiplies by 1.

    Returns
    -------
    ndarray of shape (n_samples, n_problems), of the dtype of `weights`
        ``s_ik`` times the derivative of ``loss(y_ik, p_ik)`` by ``p_ik``.
    """
    n_problems = weights.shape[1]
    # SciPy and BLAS are faster with a vector than with a matrix of one column.
    coef = weights[:-1, 0] if n_problems == 1 else weights[:-1]
    predictions = (X @ coef).reshape(-1, n_problems)
    predictions += weights[-1]
    targets = targets.reshape(predictions.shape)
    slopes = loss_slopes(loss, targets, predictions, epsilon)
    if sample_weight is not None:
        slopes *= sample_weight[:, np.newaxis]
    if positive_weight is not None:
        slopes *= positive_factors(targets, positive_weight)
    return slopes.astype(weights.dtype, copy=False)


def descend(
    weights: np.ndarray,
    X: Any,
    slopes: np.ndarray,
    step_size: float,
    preconditioner: np.ndarray | None,
    *,
    fit_intercept: bool,
) -> None:
    """Step against the gradient of a batch, in place: w -= step_size * H * X^T r.

    Where the batch is much sparser than the model, its cost follows the non-zeros of
    the batch, else the number of features.

    Parameters
    ----------
    weights : ndarray of shape (n_features + 1, n_problems), C-contiguous
        Changed in place.
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        Rows of the batch.
    slopes : ndarray of shape (n_samples, n_problems)
        What :func:`batch_slopes` has found for them; in the literature, `r`.
    step_size : float
        Length of the step, with whatever turns the sum over the batch into a mean.
    preconditioner : ndarray of shape (n_features,) or None
        Diagonal of `H`; None is 1 everywhere. It is 1 for the intercept.
    fit_intercept : bool
        Whether the intercepts take part.
    """
    slopes = slopes * weights.dtype.type(step_size)
    if fit_intercept:
        weights[-1] -= slopes.sum(axis=0)
    if sparse.issparse(X) and _SCATTER_COST * X.nnz < X.shape[1]:
        _scatter(weights, X, slopes, preconditioner)
        return
    gradient = _gradient(X, slopes)
    if preconditioner is not None:
        gradient *= preconditioner[:, np.newaxis]
    weights[:-1] -= gradient


def _scatter(
    weights: np.ndarray, X: Any, slopes: np.ndarray, preconditioner: np.ndarray | None
) -> None:
    """Subtract the gradient entry by entry."""
    n_problems = weights.shape[1]
    values = X.data if preconditioner is None else X.data * preconditioner[X.indices]
    entries = values[:, np.newaxis] * np.repeat(slopes, np.diff(X.indptr), axis=0)
    places = np.multiply(X.indices, n_problems, dtype=np.intp)
    places = places[:, np.newaxis] + np.arange(n_problems)
    np.subtract.at(weights.reshape(-1), places.reshape(-1), entries.reshape(-1))


def _gradient(X: Any, slopes: np.ndarray) -> np.ndarray:
    """X^T r, of shape (n_features, n_problems)."""
    if slopes.shape[1] > 1:
        return transposed(X) @ slopes
    column = slopes[:, 0]
    if not sparse.issparse(X) or X.nnz > _FEW_NONZEROS:
        return (transposed(X) @ column)[:, np.newaxis]
    entries = X.data * np.repeat(column, np.diff(X.indptr))
    sums = np.bincount(X.indices, entries, X.shape[1])
    return sums.astype(slopes.dtype, copy=False)[:, np.newaxis]


def shrink(
    weights: np.ndarray, amount: float, preconditioner: np.ndarray | None
) -> None:
    """Proximal step of the L2 penalty, in place: w /= 1 + amount * H.

    Unlike ``w -= amount * H * w`` it cannot overshoot, however large the
    preconditioner of a rare feature is; its fixed points are the same.

    Parameters
    ----------
    weights : ndarray of shape (n_features + 1, n_problems)
        Changed in place, but for the intercepts in the last row.
    amount : float
        Step size times the weight of the penalty, not negative.
    preconditioner : ndarray of shape (n_features,) or None
        Diagonal of `H`; None is 1 everywhere.
    """
    if amount == 0:
        return
    if preconditioner is None:
        weights[:-1] *= weights.dtype.type(1 / (1 + amount))
        return
    divisor = preconditioner * weights.dtype.type(amount)
    divisor += 1
    weights[:-1] /= divisor[:, np.newaxis]


def project(weights: np.ndarray, radius: float) -> None:
    """Pull the coefficients of each problem into a ball, in place.

    The projection of Pegasos: w *= min(1, radius / ||w||). With
    ``radius = 1 / sqrt(alpha)`` the ball holds the solution of the linear SVM.

    Parameters
    ----------
    weights : ndarray of shape (n_features + 1, n_problems)
        Changed in place, but for the intercepts in the last row.
    radius : float
        Radius of the ball, above 0; infinity leaves the weights as they are.
    """
    if np.isinf(radius):
        return
    coef = weights[:-1]
    norms = np.sqrt(np.einsum("ij,ij->j", coef, coef))
    if (norms > radius).any():
        coef *= np.minimum(1, radius / np.maximum(norms, radius))


def feature_moments(
    X: Any, sample_weight: np.ndarray | None, sums: np.ndarray | None = None
) -> np.ndarray:
    """How often each feature is not zero, and the sum of its squares.

    Sparse rows are followed by their elements: a block of few rows costs little however
    many features there are, if `sums` is given.

    Parameters
    ----------
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        Rows. A zero that is stored is a zero.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the rows; None weighs each by 1.
    sums : ndarray of float64, shape (2, n_features), default=None
        Moments of other rows, to which these are added in place; None begins at 0.

    Returns
    -------
    ndarray of float64, shape (2, n_features)
        Weight of the rows that have the feature; weighted sum of its squares, infinite
        where it overflows. It is `sums` where that is given.
    """
    moments = np.zeros((2, X.shape[1])) if sums is None else sums
    weight = None
    if sample_weight is not None:
        weight = sample_weight.astype(np.float64)
    with np.errstate(over="ignore"):
        if sparse.issparse(X):
            _add_sparse_moments(moments, X, weight)
        else:
            weight = np.ones(X.shape[0]) if weight is None else weight
            _add_dense_moments(moments, X, weight)
    return moments


def feature_sums(X: Any, sample_weight: np.ndarray | None) -> np.ndarray:
    """Sum of each feature over rows.

    Parameters
    ----------
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        Rows.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the rows; None weighs each by 1.

    Returns
    -------
    ndarray of float64, shape (n_features,)
    """
    weight = np.ones(X.shape[0]) if sample_weight is None else sample_weight
    if sparse.issparse(X):
        return transposed(X) @ weight.astype(np.float64)
    return np.einsum("i,ij->j", weight, X, dtype=np.float64)


def _add_sparse_moments(moments: np.ndarray, X: Any, weight: np.ndarray | None) -> None:
    """Moments of the features of sparse rows, some elements at a time."""
    for first, last in _runs_of_rows(X.indptr, _SPARSE_AT_ONCE):
        part = slice(X.indptr[first], X.indptr[last])
        columns, values = wide(X.indices[part]), X.data[part].astype(np.float64)
        counts, squares = (values != 0).astype(np.float64), values**2
        if weight is not None:
            lengths = np.diff(X.indptr[first : last + 1])
            weights = np.repeat(weight[first:last], lengths)
            counts, squares = weights * counts, weights * squares
        np.add.at(moments[0], columns, counts)
        np.add.at(moments[1], columns, squares)


def _add_dense_moments(moments: np.ndarray, X: np.ndarray, weight: np.ndarray) -> None:
    """Moments of the features of dense rows, some rows at a time."""
    step = max(1, _AT_ONCE // max(1, X.shape[1]))
    for start in range(0, X.shape[0], step):
        part, weights = X[start : start + step], weight[start : start + step]
        moments[0] += weights @ (part != 0)
        moments[1] += np.einsum("i,ij,ij->j", weights, part, part, dtype=np.float64)


def _runs_of_rows(indptr: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """First and last row, excluded, of runs with some elements, or of one row."""
    first = 0
    while first < len(indptr) - 1:
        beyond = np.searchsorted(indptr, indptr[first] + most, side="right") - 1
        last = max(int(beyond), first + 1)
        yield first, last
        first = last


def preconditioner_diagonal(
    moments: np.ndarray, total: float, kind: str, batch_size: int
) -> np.ndarray:
    """How much longer the steps of each feature are than those of the intercept.

    With `f_j` the fraction of the rows in which feature `j` is not zero, and `s_j` the
    mean of its square over those rows, ``f_j * s_j`` is the diagonal of the matrix
    ``X^T X / n``, the second derivative of a quadratic loss. With its inverse the steps
    do not depend on the scale of a feature.

    Parameters
    ----------
    moments : ndarray of shape (2, n_features)
        What :func:`feature_moments` gives, summed over all data.
    total : float
        Weight of all rows, above 0.
    kind : {"bounded", "jacobi", "frequency"}
        "jacobi": ``1 / (f_j s_j)``. "bounded": ``1 / (max(f_j, 1 / batch_size) s_j)``;
        a feature that is rarer than once in a batch appears once in those batches where
        it appears at all, and beyond the bound its weight would leap by more than one
        row can justify. "frequency": ``1 / f_j``, which leaves the scales of the
        features as they are.
    batch_size : int
        Rows of a batch; only "bounded" reads it.

    Returns
    -------
    ndarray of float64, shape (n_features,)
        Not negative; 1 for a feature that no row has, whose gradient is 0.

    Raises
    ------
    ValueError
        If `kind` is not known.
    """
    if kind not in PRECONDITIONERS:
        raise ValueError(f"kind must be one of {list(PRECONDITIONERS)}, got {kind!r}")
    counts, squares = moments
    smallest = 1 / batch_size if kind == "bounded" else 0
    frequencies = np.clip(counts / total, smallest, 1)
    diagonal = np.ones(len(counts))
    if kind == "frequency":
        return np.divide(1, frequencies, out=diagonal, where=squares > 0)
    # The mean square is squares / counts.
    return np.divide(counts, frequencies * squares, out=diagonal, where=squares > 0)
