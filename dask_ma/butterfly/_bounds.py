"""Bounds of the steps of `partial_fit`, which nothing takes back.

With losses whose slope has no bound, steps longer than twice the inverse of the largest
curvature make the next ones longer still. A call begins with steps shorter than that
for about the curvature of a batch of its rows. Where a batch has more, its step ends at
its least loss on the line that it follows.

Features far from zero have most of their curvature in common, the direction of their
mean, and steps that it allows are short for all others. Of dense rows such features are
taken about their mean: the step is that of a model of ``x - m``, whose intercept is
that of `x` plus the product of coefficients and `m`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dask_ma.butterfly._params import ButterflyParams, Moments
from dask_ma.comm import Group, allreduce
from dask_ma.kernels import descend, make_loss
from dask_ma.kernels.losses import (
    SquaredEpsilonInsensitive,
    SquaredError,
    SquaredHinge,
)
from dask_ma.supervised import Piece, Problem

# Losses whose slope has no bound: steps too long for them make the next ones longer
# still. Those of the others add up at most, and shorter ones were worse on text.
_WITHOUT_BOUND = SquaredError, SquaredHinge, SquaredEpsilonInsensitive
# Times the inverse of the largest curvature that steps begin with, at most. Beyond 2
# they run away; where rows are noisy, shorter ones bring less of that along.
_LENGTH = 1.25
# Rows of a rank that the largest curvature is found from, at most about, and products
# of all pairs of them with a vector that it takes.
_N_ROWS, _N_PRODUCTS = 256, 8
# A feature is far from zero if the square of its mean is this part of its mean square,
# and so much more with few rows, whose mean may be far away by chance.
_FAR, _FAR_BY_CHANCE = 0.25, 4.0
# Part of the mean square that rounding may leave of a variance of 0.
_ROUNDING = 1e-11


def has_bounds(params: ButterflyParams) -> bool:
    """Whether the steps of a fit are to be bounded."""
    return params.limits_steps and isinstance(make_loss(params.loss), _WITHOUT_BOUND)


@np.errstate(over="ignore", invalid="ignore")
def center_of(moments: Moments, params: ButterflyParams) -> np.ndarray | None:
    """Means of the features that are far from zero, 0 for others; None without any.

    Sparse rows have no sums that they follow from.
    """
    if len(moments.sums) < 3 or not params.fit_intercept:
        return None
    _, squares, sums = moments.sums
    part = _FAR + _FAR_BY_CHANCE / moments.total  # weights have a mean of 1
    is_far = sums**2 > part * squares * moments.total
    return np.where(is_far, sums / moments.total, 0) if is_far.any() else None


@np.errstate(over="ignore", invalid="ignore")
def about(moments: Moments, center: np.ndarray | None) -> Moments:
    """The moments of the features less some means, where these are not 0."""
    if center is None:
        return moments
    counts, squares, sums = moments.sums
    spread = squares - center * (2 * sums - center * moments.total)
    spread = np.where(spread > _ROUNDING * squares, spread, 0)
    is_moved = center != 0
    counts = np.where(is_moved, moments.total, counts)
    squares = np.where(is_moved, spread, squares)
    return moments._replace(sums=np.stack([counts, squares]))


@np.errstate(over="ignore", invalid="ignore")
def bounded_length(
    group: Group,
    problem: Problem,
    latest: Moments,
    preconditioner: np.ndarray | None,
    center: np.ndarray | None,
    params: ButterflyParams,
    size: int,
) -> float:
    """About the longest steps that do not run away on batches; a collective call.

    The largest eigenvalue of the curvature on `size` rows, a random draw of all, is
    about the square of the sum of the root of that on all and of the root of the trace
    over `size`; so it is on the rows that it is found from. The trace is a bound.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        The rows.
    latest : Moments
        Those of the rows, about `center`.
    preconditioner, center : ndarray of shape (n_features,), or None
    params : ButterflyParams
        Parameters of the fit.
    size : int
        Rows of a batch.

    Returns
    -------
    length : float
        The same on all ranks; infinite where steps are shorter anyway.
    """
    squares, smoothness = latest.sums[1], make_loss(params.loss).smoothness
    total = squares.sum() if preconditioner is None else squares @ preconditioner
    # The intercept has a 1.
    trace = float(total) / latest.total + params.fit_intercept
    if not trace * smoothness * params.eta0 > _LENGTH * math.sqrt(params.t):
        return math.inf
    n_rows = _n_picked(problem)
    own = _largest_eigenvalue(problem, preconditioner, center, params.fit_intercept)
    root = math.sqrt(own) - math.sqrt(trace / n_rows) if n_rows else 0.0
    root = float(allreduce(group, np.array([max(root, 0.0)]), "max")[0])
    on_batch = (root + math.sqrt(trace / size)) ** 2
    return max(_LENGTH / on_batch, 1 / trace) / smoothness


def _stride(problem: Problem) -> int:
    """Rows from one to the next of those that the curvature is found from."""
    return max(1, -(-problem.shard.n_rows // _N_ROWS))


def _n_picked(problem: Problem) -> int:
    """How many these are."""
    return sum(-(-len(block.y) // _stride(problem)) for block in problem.shard.blocks)


def _largest_eigenvalue(
    problem: Problem,
    preconditioner: np.ndarray | None,
    center: np.ndarray | None,
    fit_intercept: bool,
) -> float:
    """That of ``H X^T X / n`` on some rows of this rank, from below."""
    stride = _stride(problem)
    parts, roots = [], []
    for block in problem.shard.read():
        X, weight = block.X, block.sample_weight
        # A copy, since rows of a file may go.
        parts.append(X[::stride].copy() if stride > 1 else X)
        weight = np.ones(len(block.y)) if weight is None else weight
        roots.append(np.sqrt(weight[::stride], dtype=np.float64))
    total = sum(float(root @ root) for root in roots)
    if not total > 0:
        return 0.0
    H = 1.0 if preconditioner is None else preconditioner
    m = np.zeros(problem.shard.n_features) if center is None else center
    vector = np.random.default_rng(0).normal(size=sum(map(len, roots)))
    # The mean has most of the curvature where features are far from zero.
    vector, value = vector / len(vector) ** 0.5 + 1, 0.0
    ends = np.cumsum([len(root) for root in roots])[:-1]
    for _ in range(_N_PRODUCTS):
        vector /= math.sqrt(vector @ vector)
        scaled = [v * r for v, r in zip(np.split(vector, ends), roots, strict=True)]
        sums = sum(float(v.sum()) for v in scaled)
        gradient = sum(X.T @ v for X, v in zip(parts, scaled, strict=True))
        gradient = H * (gradient - m * sums)
        shift = sums * fit_intercept - m @ gradient
        image = [r * (X @ gradient + shift) for X, r in zip(parts, roots, strict=True)]
        before, vector = vector, np.concatenate(image)
        value = float(before @ vector)
        if not value > 0:
            break
    return value / total


def bounded_change(
    weights: np.ndarray,
    batch: Sequence[Piece],
    slopes: Sequence[np.ndarray],
    length: float,
    gradient_scale: float,
    preconditioner: np.ndarray | None,
    center: np.ndarray | None,
    params: ButterflyParams,
    factor: np.ndarray | float = 1.0,
) -> np.ndarray:
    """What a step changes, no longer than has the least loss of the batch on its line.

    Parameters
    ----------
    weights : ndarray of shape (n_features + 1, n_problems)
        Before the step; only their shape and type are looked at.
    batch, slopes : sequence of Piece, of ndarray of shape (n_rows, n_problems)
        Rows of the batch, and the derivatives of their losses by the predictions.
    length : float
        Of the step.
    gradient_scale : float
        What turns the sum over the batch into the gradient.
    preconditioner, center : ndarray of shape (n_features,), or None
    params : ButterflyParams
        Parameters of the fit.
    factor : ndarray of shape (n_problems,) or float, default=1.0
        What weights of rows are multiplied by at most.

    Returns
    -------
    change : ndarray of the shape of `weights`
    """
    change, fit_intercept = np.zeros_like(weights), params.fit_intercept
    for piece, of_piece in zip(batch, slopes, strict=True):
        descend(
            change,
            piece.X,
            of_piece,
            gradient_scale,
            preconditioner,
            fit_intercept=fit_intercept,
        )
    if center is not None:
        scaled = center if preconditioner is None else center * preconditioner
        change[:-1] -= scaled[:, np.newaxis].astype(change.dtype) * change[-1]
        change[-1] -= center.astype(change.dtype) @ change[:-1]
    lengths = np.full(weights.shape[1], length)
    slope, curvature = np.zeros((2, weights.shape[1]))
    for piece, of_piece in zip(batch, slopes, strict=True):
        moves = (piece.X @ change[:-1] + change[-1]).astype(np.float64)
        slope -= np.einsum("ij,ij->j", of_piece, moves)
        weight = piece.sample_weight
        weight = np.ones(len(moves)) if weight is None else weight
        curvature += np.einsum("i,ij,ij->j", weight, moves, moves)
    curvature *= make_loss(params.loss).smoothness * factor
    is_over = lengths * curvature > slope
    np.divide(slope, curvature, out=lengths, where=is_over & (curvature > 0))
    change *= lengths.astype(change.dtype)
    return change
