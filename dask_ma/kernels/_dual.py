"""Dual ascent for multinomial logistic regression, a mini-batch at a time.

The problem is, with ``N = sum_i s_i``, ::

    min_{W, b}  1/N sum_i s_i loss_i(W x_i + b) + alpha/2 ||W||^2

Each row has a probability vector `q_i`; with ``a_i = q_i - e_{y_i}`` and
``scale = 1 / (alpha N)``, the dual is ::

    max_q  D(q) = 1/N sum_i s_i entropy(q_i) - alpha/2 ||W(q)||^2,
    W(q) = -scale sum_i s_i a_i x_i^T,   subject to  sum_i s_i a_i = 0

The intercept is the multiplier of the constraint. An augmented Lagrangian holds it near
a centre: ``b = centre - kappa^2 scale sum_i s_i a_i``, as if every row had one feature
more, `kappa`. That adds ``kappa^2`` to all products of rows, and nothing else here
knows of it. To set the centre to `b` after each pass makes the constraint hold in the
end. The ascent is of ``D(q) + centre . r / N - kappa^2 scale / (2 N) ||r||^2``, where
`r` is the sum of the constraint.

This is stochastic dual coordinate ascent (Shalev-Shwartz and Zhang, 2013) with one
vector per row, and with the safe addition of Ma et al. (CoCoA+, 2015) where ranks work
at the same time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.kernels.losses import log_softmax

# Rows of a block often disagree, so that their products cancel in part. Their bounds
# count this fraction of the products; the step is made shorter in the rare case where
# that is too little.
_OVERLAP = 0.3
# How far the gain of a step may be from that of an exact one, relative to it.
_TOLERANCE = 0.5
_MAX_NEWTON = 50


def row_products(X: Any, kappa2: float = 0.0) -> np.ndarray:
    """Products of all pairs of rows, with those of the intercept.

    Parameters
    ----------
    X : ndarray, csr_matrix or csr_array of shape (n_rows, n_features)
        Rows of a mini-batch.
    kappa2 : float, default=0.0
        Square of the feature that stands for the intercept; 0 without an intercept.

    Returns
    -------
    ndarray of the dtype of `X`, shape (n_rows, n_rows)
        ``X @ X.T + kappa2``.
    """
    products = X @ X.T
    if sparse.issparse(products):
        products = products.toarray()
    products += products.dtype.type(kappa2)
    return products


def dual_steps(
    margins: np.ndarray,
    gram: np.ndarray,
    dual: np.ndarray,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
    *,
    scale: float,
    n_parallel: float = 1.0,
    block_size: int = 32,
    n_sweeps: int = 1,
) -> np.ndarray:
    """Raise the dual over the rows of a mini-batch.

    The rows are taken in blocks, one block after the other; the rows of one block move
    at once, and later blocks see what earlier ones have done. Each row makes a
    proximal step, ``max_p entropy(p) + p . m - c/2 ||p - q||^2``, where `c` bounds the
    products with the other rows of the block. The dual never falls, but for rounding.

    Parameters
    ----------
    margins : ndarray of float32 or float64, shape (n_rows, n_columns)
        Finite predictions ``X @ W.T + b``. One column stands for two classes.
    gram : ndarray of shape (n_rows, n_rows)
        What :func:`row_products` gives.
    dual : ndarray of shape (n_rows, n_columns), of the dtype of `margins`
        The probability vectors `q_i`, changed in place. Any start will do; one-hot
        targets belong to ``W = 0``.
    y : ndarray of int, shape (n_rows,)
        Codes of the classes. They are in `margins` already, by way of `W`: the steps
        need them no more, and only their number is checked.
    sample_weight : ndarray of shape (n_rows,) or None
        Weights of the rows, not negative; None weighs each by 1.
    scale : float
        ``1 / (alpha * N)``, above 0.
    n_parallel : float, default=1.0
        Ranks whose changes are added to the same `W`. The number of ranks is safe for
        any data: the dual rises by what all ranks expect together, at least. A smaller
        number is a bet that their rows have little in common.
    block_size : int, default=32
        Rows of a block.
    n_sweeps : int, default=1
        How often to go over the rows.

    Returns
    -------
    ndarray of the shape and dtype of `margins`
        The factor `U`: ``s_i`` times the change of ``q_i``. The caller applies
        ``W -= scale * U.T @ X`` and ``b -= scale * kappa2 * U.sum(axis=0)``.

    Raises
    ------
    ValueError
        If shapes disagree.
    """
    _check_shapes(margins, gram, dual, y, sample_weight)
    if margins.shape[1] > 1:
        q, m, products = dual, margins.copy(), gram
    else:
        # The same problem with two columns, which move in opposite directions.
        q = np.concatenate([1 - dual, dual], axis=1)
        m, products = margins * np.array([-0.5, 0.5], margins.dtype), gram / 2
    curvature = products * margins.dtype.type(scale * n_parallel)
    if sample_weight is None:
        s = np.ones((len(m), 1), m.dtype)
    else:
        s = sample_weight.astype(m.dtype, copy=False)[:, np.newaxis]
    changes = _sweep(m, curvature, q, s, block_size, n_sweeps)
    if q is not dual:
        dual[:] = q[:, 1:]
    return changes[:, -margins.shape[1] :]


def _check_shapes(
    margins: np.ndarray,
    gram: np.ndarray,
    dual: np.ndarray,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
) -> None:
    """Raise ValueError if the arrays of a batch do not fit together."""
    n_rows = len(margins)
    found = [gram.shape, dual.shape, y.shape]
    expected = [(n_rows, n_rows), margins.shape, (n_rows,)]
    if sample_weight is not None:
        found.append(sample_weight.shape)
        expected.append((n_rows,))
    if found != expected:
        raise ValueError(
            f"gram, dual, y and sample_weight must have the shapes {expected} to go "
            f"with margins of shape {margins.shape}, got {found}"
        )


def _sweep(
    margins: np.ndarray,
    curvature: np.ndarray,
    q: np.ndarray,
    s: np.ndarray,
    block_size: int,
    n_sweeps: int,
) -> np.ndarray:
    """Move block after block, `margins` and `q` in place; the weighted changes."""
    n_rows = len(q)
    changes = np.zeros_like(q)
    for sweep in range(n_sweeps):
        for start in range(0, n_rows, block_size):
            block = slice(start, min(start + block_size, n_rows))
            u = _move_block(margins[block], curvature[block, block], q[block], s[block])
            changes[block] += u
            # In the last sweep nobody reads the margins of rows that are done.
            rest = slice(block.stop if sweep == n_sweeps - 1 else 0, n_rows)
            margins[rest] -= curvature[rest, block] @ u
    return changes


def _move_block(
    m: np.ndarray, curvature: np.ndarray, q: np.ndarray, s: np.ndarray
) -> np.ndarray:
    """Move the rows of a block at once, `q` in place; the weighted changes."""
    c = np.abs(curvature) @ s
    c *= _OVERLAP
    c += (1 - _OVERLAP) * curvature.diagonal()[:, np.newaxis] * s
    move, gains = _proximal_moves(m, q, c)
    u = move * s
    # Along the move the dual gains step * linear - step^2 * quadratic / 2, at least.
    linear = float(gains @ s[:, 0])
    quadratic = float(np.vdot(u, curvature @ u))
    if quadratic > linear:
        step = m.dtype.type(linear / quadratic)
        move *= step
        u *= step
    q += move
    return u


def _proximal_moves(
    m: np.ndarray, q: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Steps to ``argmax_p entropy(p) + p.m - c/2 ||p - q||^2`` by row, and gains."""
    # Newton's method on v = log p - m, where v = c (q - p) up to a constant at the
    # solution. Near the optimum of the whole problem one iteration is enough.
    log_start, p = log_softmax(m)
    v = np.zeros(1, m.dtype)
    # One `c`, not negative, for each row of `m` and `q`: a column.
    cq = c * q
    noise = m.shape[1] * np.finfo(m.dtype).eps ** 2
    for _ in range(_MAX_NEWTON):
        v = v + _newton_step(p, cq, c, v)
        log_p = log_start + v
        if log_p.max() > 0:
            # No probability is above 1: from there on Newton comes down fast.
            np.minimum(log_p, 0, out=log_p)
            v = log_p - log_start
        p = np.exp(log_p, out=log_p)
        totals = p.sum(axis=1, keepdims=True)
        p /= totals
        move = p - q
        squares = np.einsum("ij,ij->i", move, move)
        # Lower bounds of entropy(p) - entropy(q) + (p - q).m, not negative.
        # The entropy is strongly concave: entropy(q) is below its tangent at p by
        # half of the squared norm, in the 1-norm, at least.
        gains = squares - np.einsum("ij,ij->i", move, v)
        # At the solution both are equal: less is too far, more is not far enough.
        exact = squares * (1 + c[:, 0])
        good = np.abs(gains - exact) <= _TOLERANCE * exact
        if (good | (squares <= noise)).all():
            break
        v -= np.log(totals)
    move[gains <= 0] = 0
    return move, np.maximum(gains, 0, out=gains)


def _newton_step(
    p: np.ndarray, cq: np.ndarray, c: np.ndarray, v: np.ndarray
) -> np.ndarray:
    """Change of `v` towards ``v = c (q - p) - constant`` with ``sum_k p_k = 1``."""
    slopes = c * p
    step = cq - slopes
    step -= v
    slopes += 1
    weights = p / slopes
    constant = np.einsum("ij,ij->i", weights, step) / weights.sum(axis=1)
    step -= constant[:, np.newaxis]
    step /= slopes
    return step
