"""Sums of losses over a block of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.kernels._predictions import chunked_predictions
from dask_ma.kernels.losses import Loss, loss_values


def one_vs_rest_targets(
    codes: np.ndarray, n_problems: int, dtype: Any = np.float64
) -> np.ndarray:
    """Class codes as targets of `n_problems` binary problems.

    Parameters
    ----------
    codes : ndarray of int, shape (n_samples,)
        Positions of the labels in the sorted classes.
    n_problems : int
        1 for two classes (code 1 is the positive class), else the number of classes
        (problem k sets class k against the rest).
    dtype : dtype, default=float64
        Type of the result.

    Returns
    -------
    ndarray of shape (n_samples, n_problems)
        +1 where the sample is of the problem's class, else -1.
    """
    positive = np.arange(n_problems) if n_problems > 1 else np.array([1])
    targets = (np.asarray(codes)[:, np.newaxis] == positive).astype(dtype)
    targets *= 2
    targets -= 1
    return targets


def positive_factors(targets: np.ndarray, positive_weight: np.ndarray) -> np.ndarray:
    """What the weights of samples are multiplied by in each binary problem.

    Parameters
    ----------
    targets : ndarray of shape (n_samples, n_problems)
        -1 or +1.
    positive_weight : ndarray of shape (n_problems,)
        Weights of the targets +1; those of -1 are 1.

    Returns
    -------
    ndarray of shape (n_samples, n_problems), of the dtype of `positive_weight`

    Raises
    ------
    ValueError
        If there is not one weight per problem.
    """
    if np.shape(positive_weight) != targets.shape[1:] or targets.ndim != 2:
        raise ValueError(
            "positive_weight must have one weight per problem, for targets of shape "
            f"(n_samples, n_problems); got weights of shape "
            f"{np.shape(positive_weight)} and targets of shape {targets.shape}"
        )
    return np.where(targets > 0, positive_weight, positive_weight.dtype.type(1))


def loss_sums(
    X: Any,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
    coef: np.ndarray,
    intercept: np.ndarray,
    *,
    loss: str | Loss,
    epsilon: float = 0.1,
    one_vs_rest: bool = False,
    positive_weight: np.ndarray | None = None,
) -> np.ndarray:
    """Weighted sum of losses over a block, one per problem.

    Parameters
    ----------
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        Rows of the block; read in row chunks, never copied or made dense.
    y : ndarray of shape (n_samples,)
        Targets of the one problem; with `one_vs_rest`, class codes as
        `one_vs_rest_targets` takes them.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the samples; None weighs each by 1.
    coef : ndarray of shape (n_problems, n_features)
        Coefficients, of the type of `X` for best speed.
    intercept : ndarray of shape (n_problems,)
        Intercepts.
    loss : str or Loss
        One of ``LOSSES``, or another loss.
    epsilon : float, default=0.1
        Passed on to `loss_values`.
    one_vs_rest : bool, default=False
        Whether `y` holds class codes.
    positive_weight : ndarray of shape (n_problems,) or None, default=None
        What the weights of each problem's own class are multiplied by, with
        `one_vs_rest`, as :func:`positive_factors` has it; None multiplies by 1.

    Returns
    -------
    ndarray of float64, shape (n_problems,)
        ``sum_i s_ik loss(y_ik, x_i w_k + b_k)``.

    Raises
    ------
    ValueError
        If shapes disagree, or several problems come without `one_vs_rest`.
    """
    _check_shapes(X, y, sample_weight, coef, intercept, one_vs_rest)
    n_problems = len(coef)
    total = np.zeros(n_problems)
    for rows, p in chunked_predictions(X, coef, intercept):
        targets = one_vs_rest_targets(y[rows], n_problems) if one_vs_rest else y[rows]
        values = loss_values(loss, targets.reshape(p.shape), p, epsilon)
        if positive_weight is not None:
            values *= positive_factors(targets, positive_weight).reshape(p.shape)
        if sample_weight is None:
            total += values.sum(axis=0)
        else:
            total += sample_weight[rows].astype(np.float64, copy=False) @ values
    return total


def _check_shapes(
    X: Any,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
    coef: np.ndarray,
    intercept: np.ndarray,
    one_vs_rest: bool,
) -> None:
    """Refuse shapes that would broadcast to a wrong sum."""
    if sparse.issparse(X) and X.format != "csr":
        raise ValueError(f"X must be CSR or dense, got {X.format}; use X.tocsr()")
    n_samples, n_features = X.shape
    n_problems = len(coef)
    expected = {
        "y": (y, (n_samples,)),
        "coef": (coef, (n_problems, n_features)),
        "intercept": (intercept, (n_problems,)),
    }
    if sample_weight is not None:
        expected["sample_weight"] = (sample_weight, (n_samples,))
    for name, (array, shape) in expected.items():
        if np.shape(array) != shape:
            raise ValueError(
                f"{name} must have shape {shape} for X of shape {X.shape} and "
                f"{n_problems} problems, got {np.shape(array)}"
            )
    if n_problems > 1 and not one_vs_rest:
        raise ValueError(
            f"coef has {n_problems} rows, one per class; pass class codes as y and "
            "one_vs_rest=True"
        )
