"""Objective of linear models on a block of rows: losses, gradients, penalties."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.kernels._rows import chunked_predictions, row_slice, transposed
from dask_ma.kernels.losses import Loss, loss_slopes, loss_values

# Bounds of a chunk: 512 KiB of float64 predictions, and 8 MiB of elements of X, which
# are copied where X is float32 or only some of its rows are wanted.
_CHUNK_PREDICTIONS = 2**16
_CHUNK_ELEMENTS = 2**20


def _half_squared_norm(coef: np.ndarray) -> float:
    """||w||^2 / 2, summed in float64 without a float64 copy."""
    flat = np.ravel(coef)
    return 0.5 * float(np.einsum("i,i->", flat, flat, dtype=np.float64))


def _l1_norm(coef: np.ndarray) -> float:
    """||w||_1, summed in float64."""
    return float(np.abs(coef).sum(dtype=np.float64))


def _elasticnet(coef: np.ndarray, l1_ratio: float) -> float:
    """(1 - l1_ratio) ||w||^2 / 2 + l1_ratio ||w||_1."""
    return (1 - l1_ratio) * _half_squared_norm(coef) + l1_ratio * _l1_norm(coef)


PENALTIES: Mapping[str | None, Callable[[np.ndarray, float], float]] = MappingProxyType(
    {
        None: lambda coef, l1_ratio: 0.0,
        "l2": lambda coef, l1_ratio: _half_squared_norm(coef),
        "l1": lambda coef, l1_ratio: _l1_norm(coef),
        "elasticnet": _elasticnet,
    }
)


def penalty_value(
    penalty: str | None, coef: np.ndarray, l1_ratio: float = 0.15
) -> float:
    """Penalty of the coefficients, without the factor alpha.

    Parameters
    ----------
    penalty : {None, "l2", "l1", "elasticnet"}
        ``||w||^2 / 2``, ``||w||_1`` or their mixture; None is 0.
    coef : ndarray of any shape
        Coefficients without the intercept, which no penalty of this package touches.
        Several rows (one-vs-rest) give the sum over the rows.
    l1_ratio : float, default=0.15
        Share of the L1 norm; only "elasticnet" reads it.

    Returns
    -------
    float
        Summed in float64.

    Raises
    ------
    ValueError
        If `penalty` is not known.
    """
    if penalty not in PENALTIES:
        raise ValueError(
            f"penalty must be None, 'l2', 'l1' or 'elasticnet', got {penalty!r}"
        )
    return PENALTIES[penalty](coef, l1_ratio)


def one_vs_rest_targets(
    codes: np.ndarray,
    n_problems: int,
    dtype: Any = np.float64,
    problems: Any = slice(None),
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
    problems : ndarray of int of shape (n_asked,), optional
        Which of them are asked for; by default all.

    Returns
    -------
    ndarray of shape (n_samples, n_asked)
        +1 where the sample is of the problem's class, else -1.
    """
    positive = np.arange(n_problems) if n_problems > 1 else np.array([1])
    own = positive[problems]
    targets = (np.asarray(codes)[:, np.newaxis] == own).astype(dtype)
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


class GradientSums(NamedTuple):
    """Weighted sums over rows, all of float64.

    Attributes
    ----------
    losses : ndarray of shape (n_problems,)
        ``sum_i s_ik loss(y_ik, p_ik)`` with ``p_ik = x_i w_k + b_k``.
    coef : ndarray of shape (n_problems, n_features)
        Its derivatives by the coefficients.
    intercept : ndarray of shape (n_problems,)
        Its derivatives by the intercepts.
    weight : float
        Sum of the samples' own weights.
    """

    losses: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray
    weight: float


def gradient_sums(
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
    rows: np.ndarray | None = None,
) -> GradientSums:
    """Sums of losses and of their gradients over a block, in one pass.

    Parameters
    ----------
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        Rows of the block; read in chunks of rows and never made dense. A chunk is
        copied if X is float32, so that the sums are as precise as float64, or if `rows`
        are given.
    y : ndarray of shape (n_samples,)
        Targets of the one problem; with `one_vs_rest`, class codes as
        :func:`one_vs_rest_targets` takes them.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the samples; None weighs each by 1.
    coef : ndarray of shape (n_problems, n_features)
        Coefficients.
    intercept : ndarray of shape (n_problems,)
        Intercepts.
    loss : str or Loss
        One of ``LOSSES``, or another loss.
    epsilon : float, default=0.1
        Passed on to :func:`loss_slopes`.
    one_vs_rest : bool, default=False
        Whether `y` holds class codes.
    positive_weight : ndarray of shape (n_problems,) or None, default=None
        What the weights of each problem's own class are multiplied by, with
        `one_vs_rest`, as :func:`positive_factors` has it; None multiplies by 1.
    rows : ndarray of int or None, default=None
        Positions of the rows that count; None for all of them.

    Returns
    -------
    GradientSums

    Raises
    ------
    ValueError
        If shapes disagree, or several problems come without `one_vs_rest`.
    """
    _check_shapes(X, y, sample_weight, coef, intercept, one_vs_rest)
    n_problems = len(coef)
    # For one problem all is vectors: their products are faster than those of matrices
    # of one column.
    columns = coef[0] if n_problems == 1 else np.ascontiguousarray(coef.T)
    columns = columns.astype(np.float64, copy=False)
    losses, slope_sums, weight = np.zeros(n_problems), np.zeros(n_problems), 0.0
    gradient = np.zeros(columns.shape)
    for chunk, where in _chunks(X, n_problems, rows):
        p = chunk @ columns
        p += intercept
        targets = one_vs_rest_targets(y[where], n_problems) if one_vs_rest else y[where]
        factors = None
        if positive_weight is not None:
            factors = positive_factors(targets, positive_weight).reshape(p.shape)
        targets = targets.reshape(p.shape)
        values = loss_values(loss, targets, p, epsilon)
        slopes = loss_slopes(loss, targets, p, epsilon)
        if factors is not None:
            values *= factors
            slopes *= factors
        if sample_weight is None:
            weight += len(p)
        else:
            s = sample_weight[where].astype(np.float64, copy=False)
            weight += float(s.sum())
            s = s.reshape(-1, *[1] * (p.ndim - 1))
            values *= s
            slopes *= s
        losses += values.sum(axis=0)
        slope_sums += slopes.sum(axis=0)
        gradient += transposed(chunk) @ slopes
    return GradientSums(losses, gradient.T.reshape(coef.shape), slope_sums, weight)


def _chunks(
    X: Any, n_problems: int, rows: np.ndarray | None
) -> Iterator[tuple[Any, Any]]:
    """Some rows of X at a time as float64, and where they lie in the block."""
    n_rows = X.shape[0] if rows is None else len(rows)
    size = _chunk_size(X, n_problems)
    for start in range(0, n_rows, size):
        stop = min(start + size, n_rows)
        where: Any = slice(start, stop)
        if rows is None:
            chunk = row_slice(X, start, stop)
        else:
            where = rows[where]
            chunk = X[where]
        yield chunk.astype(np.float64, copy=False), where


def _chunk_size(X: Any, n_problems: int) -> int:
    """Rows of a chunk."""
    n_rows, n_features = X.shape
    n_stored = X.nnz if sparse.issparse(X) else X.size
    # The product of a chunk is as large as the model, and cheap to add up where a chunk
    # has as many elements as there are features, at least.
    n_elements = max(_CHUNK_ELEMENTS, n_features)
    by_elements = n_elements * n_rows // max(1, n_stored)
    return max(1, min(_CHUNK_PREDICTIONS // n_problems, by_elements))
