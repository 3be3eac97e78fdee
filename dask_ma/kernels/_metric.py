"""Losses of squared distances: of all pairs of a batch, of single pairs, of triplets.

A loss gives weights, its derivatives by the squared distances ``|z_i - z_j|^2``. The
gradient by the rows follows from the weights by two products of matrices.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

#: How steep the logistic loss is, for squared distances about the margin.
SHARPNESS = 3.0
_CHUNK = 2**20  # elements at a time


class MetricLoss(NamedTuple):
    """A loss of distances, by its name and numbers.

    Attributes
    ----------
    name : {"nca", "hinge", "logistic", "triplet"}
    margin : float
        Squared distance above 0 that divides similar from dissimilar rows.
    push : float
        Weight of dissimilar pairs in "hinge".
    """

    name: str
    margin: float = 1.0
    push: float = 1.0


def squared_distances(A: Any, B: Any) -> np.ndarray:
    """Squared Euclidean distances of rows.

    Parameters
    ----------
    A : ndarray or CSR of shape (m, k)
    B : ndarray or CSR of shape (n, k)
        Sparse if `A` is.

    Returns
    -------
    distances : ndarray of shape (m, n)
        Not negative.
    """
    products = A @ B.T
    distances = products.toarray() if sparse.issparse(products) else products
    distances *= -2
    distances += square_lengths(A)[:, np.newaxis]
    distances += square_lengths(B)
    return np.maximum(distances, 0, out=distances)


def square_lengths(rows: Any) -> np.ndarray:
    """Squared length of each row.

    Parameters
    ----------
    rows : ndarray or CSR of shape (n, k)

    Returns
    -------
    squares : ndarray of shape (n,)
    """
    if sparse.issparse(rows):
        return np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
    squares: np.ndarray = np.einsum("ik,ik->i", rows, rows)
    return squares


def batch_weights(
    distances: np.ndarray,
    same: np.ndarray,
    own: np.ndarray,
    loss: MetricLoss,
    row_weights: np.ndarray | None = None,
) -> tuple[np.ndarray, float]:
    """Loss of rows among all rows of a batch, and its derivatives by the distances.

    Parameters
    ----------
    distances : ndarray of shape (m, n)
        Squared distances of rows to all rows of the batch; changed.
    same : ndarray of bool of shape (m, n)
        Whether two rows are of one class.
    own : ndarray of int of shape (m,)
        Column of each row itself, which is no pair.
    loss : MetricLoss
    row_weights : ndarray of shape (m,), default=None
        What the losses of the rows are multiplied by; None is 1.

    Returns
    -------
    weights : ndarray of shape (m, n)
    value : float
        Sum over the rows. A row without another of its class has none, and neither has
        one without a row of another class, unless the loss is "nca".
    """
    weights, values = _row_weights(distances, same, own, loss)
    if row_weights is not None:
        weights *= row_weights[:, np.newaxis]
        values *= row_weights
    return weights, float(values.sum(dtype=np.float64))


def _row_weights(
    distances: np.ndarray, same: np.ndarray, own: np.ndarray, loss: MetricLoss
) -> tuple[np.ndarray, np.ndarray]:
    """Derivatives, and the loss of each row."""
    rows = np.arange(len(own))
    same[rows, own] = False
    if loss.name == "nca":
        return _nca_weights(distances, same, rows, own)
    other = ~same
    other[rows, own] = False
    counts = same.sum(axis=1), other.sum(axis=1)
    whole = (counts[0] > 0) & (counts[1] > 0)
    shares = [
        np.where(whole, 1 / np.maximum(count, 1), 0).astype(distances.dtype)
        for count in counts
    ]
    if loss.name == "triplet":
        return _triplet_weights(distances, same, other, shares, loss.margin)
    pull = shares[0][:, np.newaxis] * same
    push = shares[1][:, np.newaxis] * other
    value_of_pull, slope_of_pull = pair_losses(distances, True, loss)
    value_of_push, slope_of_push = pair_losses(distances, False, loss)
    values = np.einsum("ij,ij->i", pull, value_of_pull)
    values += np.einsum("ij,ij->i", push, value_of_push)
    return pull * slope_of_pull + push * slope_of_push, values


def _nca_weights(
    distances: np.ndarray, same: np.ndarray, rows: np.ndarray, own: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Minus the logarithm of the probability that a neighbour is of the same class."""
    distances[rows, own] = np.inf
    kept = np.where(same, distances, np.inf)
    nearest, nearest_kept = distances.min(axis=1), kept.min(axis=1)
    whole = np.isfinite(nearest_kept)
    # Whatever the other distances are, neither of the two sums is 0.
    soft = _soft(distances, np.where(np.isfinite(nearest), nearest, 0))
    soft_kept = _soft(kept, np.where(whole, nearest_kept, 0))
    totals, totals_kept = soft.sum(axis=1), soft_kept.sum(axis=1)
    values = np.zeros(len(rows), dtype=distances.dtype)
    values[whole] = np.log(totals[whole]) - np.log(totals_kept[whole])
    values[whole] += nearest_kept[whole] - nearest[whole]
    soft *= np.where(whole, 1 / np.where(totals > 0, totals, 1), 0)[:, np.newaxis]
    soft_kept /= np.where(totals_kept > 0, totals_kept, 1)[:, np.newaxis]
    soft_kept -= soft
    weights: np.ndarray = soft_kept.astype(distances.dtype, copy=False)
    return weights, values


def _soft(distances: np.ndarray, nearest: np.ndarray) -> np.ndarray:
    """Exponentials of minus what distances are above the nearest."""
    above = nearest[:, np.newaxis] - distances
    return np.exp(above, out=above)


def _triplet_weights(
    distances: np.ndarray,
    same: np.ndarray,
    other: np.ndarray,
    shares: list[np.ndarray],
    margin: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the triplets of each row of how far they are from the margin."""
    # Of the sorted distances to rows of other classes, those below a bound are the
    # first ones: all triplets of a row take no more than sorting.
    weights = np.zeros_like(distances)
    values = np.zeros(len(distances))
    for row in np.flatnonzero(shares[0] > 0):
        share = float(shares[0][row]) * float(shares[1][row])
        near, far = np.flatnonzero(same[row]), np.flatnonzero(other[row])
        bounds = distances[row, near].astype(np.float64) + margin
        beyond = np.sort(distances[row, far].astype(np.float64))
        n_below = np.searchsorted(beyond, bounds)
        sums = np.concatenate([[0.0], np.cumsum(beyond)])[n_below]
        values[row] = share * float((n_below * bounds - sums).sum())
        weights[row, near] = share * n_below
        ordered = np.sort(bounds)
        above = np.searchsorted(ordered, distances[row, far], side="right")
        weights[row, far] = -share * (len(near) - above)
    return weights, values


def pair_losses(
    distances: np.ndarray, similar: bool | np.ndarray, loss: MetricLoss
) -> tuple[np.ndarray, np.ndarray]:
    """Losses of single pairs, and their derivatives by the squared distances.

    Parameters
    ----------
    distances : ndarray of any shape
        Squared distances.
    similar : bool or ndarray of bool
        Whether the pairs are similar.
    loss : MetricLoss
        "hinge" or "logistic".

    Returns
    -------
    values, slopes : ndarray of the shape of `distances`
    """
    if loss.name == "logistic":
        sign = np.where(similar, 1.0, -1.0).astype(distances.dtype)
        steep = distances.dtype.type(SHARPNESS)
        excess = steep * sign * (distances - distances.dtype.type(loss.margin))
        values = np.logaddexp(0, excess) / steep
        return values, sign / (1 + np.exp(-np.clip(excess, -80, 80)))
    missing = distances.dtype.type(loss.margin) - distances
    push = distances.dtype.type(loss.push)
    values = np.where(similar, distances, push * np.maximum(missing, 0))
    slopes = np.where(similar, distances.dtype.type(1), -push * (missing > 0))
    return values, slopes.astype(distances.dtype, copy=False)


def triplet_losses(
    near: np.ndarray, far: np.ndarray, margin: float
) -> tuple[np.ndarray, np.ndarray]:
    """Losses of triplets, and their derivatives by the first of the squared distances.

    Parameters
    ----------
    near, far : ndarray of shape (n,)
        Squared distances of the first rows to the second and to the third ones.
    margin : float
        By how much the second should be larger.

    Returns
    -------
    values, slopes : ndarray of shape (n,)
        The derivatives by `far` are minus `slopes`.
    """
    missing = near - far + near.dtype.type(margin)
    return np.maximum(missing, 0), (missing > 0).astype(near.dtype)


def distance_gradient(
    weights: np.ndarray, own_rows: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient of ``sum_ij weights_ij |a_i - b_j|^2`` by both sides.

    Parameters
    ----------
    weights : ndarray of shape (m, n)
    own_rows : ndarray of shape (m, k)
        The `a`.
    rows : ndarray of shape (n, k)
        The `b`.

    Returns
    -------
    of_own : ndarray of shape (m, k)
    of_rows : ndarray of shape (n, k)
    """
    of_own = weights.sum(axis=1)[:, np.newaxis] * own_rows
    of_own -= weights @ rows
    of_rows = weights.sum(axis=0)[:, np.newaxis] * rows
    of_rows -= weights.T @ own_rows
    of_own *= 2
    of_rows *= 2
    return of_own, of_rows


def scale_columns(X: Any, factors: np.ndarray) -> Any:
    """Multiply each column by a number.

    Parameters
    ----------
    X : ndarray or CSR of shape (n, k)
    factors : ndarray of shape (k,)

    Returns
    -------
    Z : ndarray or CSR of shape (n, k)
        Sparse if `X` is; it shares the pattern of `X`.
    """
    if not sparse.issparse(X):
        return np.asarray(X * factors)
    parts = X.data * factors[X.indices], X.indices, X.indptr
    return type(X)(parts, shape=X.shape)


def feature_slopes(weights: np.ndarray, own_rows: Any, rows: Any) -> np.ndarray:
    """Sum over pairs of rows of their weighted squared differences, by features.

    It is the derivative of ``sum_ij weights_ij d_ij`` by the weights `m` of features in
    ``d_ij = sum_k m_k (a_ik - b_jk)^2``.

    Parameters
    ----------
    weights : ndarray of shape (m, n)
    own_rows : ndarray or CSR of shape (m, k)
        The `a`.
    rows : ndarray or CSR of shape (n, k)
        The `b`; sparse if `own_rows` are.

    Returns
    -------
    slopes : ndarray of shape (k,)
    """
    if not sparse.issparse(rows):
        slopes = weights.sum(axis=1) @ own_rows**2 + weights.sum(axis=0) @ rows**2
        slopes -= 2 * np.einsum("ik,ik->k", own_rows, weights @ rows)
        return np.asarray(slopes)
    slopes = weights.sum(axis=1) @ own_rows.power(2)
    slopes += weights.sum(axis=0) @ rows.power(2)
    size = max(1, _CHUNK // max(1, rows.shape[1]))
    for start in range(0, own_rows.shape[0], size):
        part = slice(start, start + size)
        crossed = own_rows[part].multiply(weights[part] @ rows)
        slopes -= 2 * np.asarray(crossed.sum(axis=0)).ravel()
    return np.asarray(slopes)


def neighbour_hits(
    Z: Any, codes: np.ndarray, others: Any, labels: np.ndarray,
    own: np.ndarray, n_neighbors: int = 3,
) -> int:  # fmt: skip
    """Rows that most of their nearest neighbours name rightly, leaving each row out.

    Parameters
    ----------
    Z : ndarray or CSR of shape (m, k)
    codes : ndarray of int of shape (m,)
        Classes of the rows.
    others : ndarray or CSR of shape (n, k)
        Among which neighbours are looked for.
    labels : ndarray of int of shape (n,)
    own : ndarray of int of shape (m,)
        Which of `others` each row is.
    n_neighbors : int, default=3

    Returns
    -------
    n_hits : int
        Of classes that as many neighbours have, that of the nearest is named.
    """
    n_rows = Z.shape[0]
    if not n_rows:
        return 0
    distances = squared_distances(Z, others)
    distances[np.arange(n_rows), own] = np.inf
    n_neighbors = min(n_neighbors, others.shape[0] - 1)
    near = np.argpartition(distances, n_neighbors - 1, axis=1)[:, :n_neighbors]
    order = np.argsort(np.take_along_axis(distances, near, axis=1), axis=1)
    found = labels[np.take_along_axis(near, order, axis=1)]
    votes = (found[:, :, np.newaxis] == found[:, np.newaxis, :]).sum(axis=2)
    named = found[np.arange(n_rows), votes.argmax(axis=1)]
    return int((named == codes).sum())
