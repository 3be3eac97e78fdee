"""Lower bounds of an objective by Fenchel's dual.

For any `u` with ``sum_i p_i u_i = 0`` the objective is nowhere below
``-sum_i p_i loss*(u_i) - R*(X' (p u))``: a proof that a model is near the optimum, with
nothing taken on trust from the solver that found it.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from .objectives import Problem


def lower_bound(problem: Problem, slopes: np.ndarray) -> float:
    """A value below which the objective cannot fall.

    Parameters
    ----------
    problem : Problem
    slopes : ndarray of shape (n_rows, n_outputs)
        Derivatives of the losses at a model; the nearer that is to the optimum, the
        better the bound. Those of an inexact model are moved to where they are
        feasible.
    """
    slopes = _balance(problem, slopes)
    centered = problem.X - problem.parts @ problem.X
    pull = np.abs((problem.parts[:, None] * slopes).T @ centered)
    l1 = problem.alpha * problem.l1_ratio
    l2 = problem.alpha * (1 - problem.l1_ratio)
    if l2 > 0:
        penalty = (np.maximum(0, pull - l1) ** 2).sum() / (2 * l2)
    else:
        # Slopes times a number below 1 stay where the conjugate of a loss is finite.
        slopes = slopes * min(1.0, l1 / max(pull.max(), np.finfo(float).tiny))
        penalty = 0.0
    return float(-(problem.parts @ _conjugates(problem, slopes)) - penalty)


def _balance(problem: Problem, slopes: np.ndarray) -> np.ndarray:
    """Slopes whose weighted sum is zero, as an intercept without penalty wants it."""
    parts, y = problem.parts, problem.y
    if problem.loss == "squared_error":
        return slopes - parts @ slopes
    if problem.loss == "softmax":
        return _balance_classes(problem, slopes)
    # Both sides of the margin pull alike: the stronger one gives way.
    limit = np.clip(-y * slopes[:, 0], 0, 1)
    sums = {side: parts[y == side] @ limit[y == side] for side in (-1, 1)}
    common = min(sums.values())
    shares = {side: common / max(sums[side], np.finfo(float).tiny) for side in sums}
    shrink = np.where(y == 1, shares[1], shares[-1])
    return (-y * limit * shrink)[:, None]


def _balance_classes(problem: Problem, slopes: np.ndarray) -> np.ndarray:
    """The same for probabilities less the labels, which stay probabilities."""
    labels = np.eye(problem.n_outputs)[problem.y]
    chances = np.clip(slopes + labels, 0, None)
    sums = chances.sum(axis=1, keepdims=True)
    chances = np.where(sums > 0, chances / np.where(sums > 0, sums, 1), labels)
    shares = problem.parts @ labels
    excess = problem.parts @ chances - shares
    share = min(0.5, max(0.0, np.max(excess / (shares + excess))))
    if share > 0:
        mixed = shares - (1 - share) / share * excess
        chances = (1 - share) * chances + share * np.clip(mixed, 0, None)
    return chances - labels


def _conjugates(problem: Problem, slopes: np.ndarray) -> np.ndarray:
    """Conjugate of the loss of each row, at feasible slopes."""
    y = problem.y
    if problem.loss == "softmax":
        labels = np.eye(problem.n_outputs)[y]
        return -special.entr(np.clip(slopes + labels, 0, 1)).sum(axis=1)
    slopes = slopes[:, 0]
    if problem.loss == "squared_error":
        return slopes**2 / 2 + slopes * y
    limit = np.clip(-y * slopes, 0, 1)
    if problem.loss == "hinge":
        return -limit
    return -special.entr(limit) - special.entr(1 - limit)
