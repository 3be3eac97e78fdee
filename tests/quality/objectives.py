"""Objectives of linear models, from their formulas.

Nothing here comes from the package: these are the judges of its models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse, special

LOSSES = ("hinge", "log_loss", "softmax", "squared_error")


@dataclass(frozen=True, eq=False)
class Problem:
    """``sum_i p_i loss(y_i, z_i) + alpha (l1_ratio |W|_1 + (1 - l1_ratio) / 2 |W|^2)``.

    Attributes
    ----------
    X : ndarray of shape (n_rows, n_features)
    y : ndarray of shape (n_rows,)
        -1 and 1 for "hinge" and "log_loss", numbers of classes for "softmax", values
        for "squared_error", which is half of the square.
    parts : ndarray of shape (n_rows,)
        Weights of the rows, all above 0, whose sum is 1.
    loss : str
        One of `LOSSES`.
    alpha, l1_ratio : float
        Of the penalty; intercepts have none.
    """

    X: np.ndarray
    y: np.ndarray
    parts: np.ndarray
    loss: str
    alpha: float
    l1_ratio: float

    @property
    def n_outputs(self) -> int:
        """Rows of `W`: one per class with the softmax, otherwise one."""
        return int(self.y.max()) + 1 if self.loss == "softmax" else 1

    def value(self, coef: np.ndarray, intercept: np.ndarray) -> float:
        """Objective at coefficients of shape (n_outputs, n_features)."""
        with np.errstate(over="ignore", invalid="ignore"):
            losses = row_losses(self.loss, self.X @ coef.T + intercept, self.y)
            ridge = (1 - self.l1_ratio) / 2 * np.square(coef).sum()
            penalty = self.l1_ratio * np.abs(coef).sum() + ridge
            value = float(self.parts @ losses + self.alpha * penalty)
        return value if np.isfinite(value) else np.inf


def row_losses(loss: str, scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Loss of each row, for scores of shape (n_rows, n_outputs)."""
    if loss == "softmax":
        rows = np.arange(len(y))
        return special.logsumexp(scores, axis=1) - scores[rows, y]
    scores = scores[:, 0]
    if loss == "hinge":
        return np.maximum(0, 1 - y * scores)
    if loss == "log_loss":
        return np.logaddexp(0, -y * scores)
    return (y - scores) ** 2 / 2


@dataclass(frozen=True, eq=False)
class Objective:
    """Mean of the objectives of one problem or, one class against the rest, of some."""

    problems: Sequence[Problem]

    @property
    def untrained(self) -> float:
        """The objective without coefficients and intercepts."""
        values = [
            one.value(
                np.zeros((one.n_outputs, one.X.shape[1])), np.zeros(one.n_outputs)
            )
            for one in self.problems
        ]
        return float(np.mean(values))

    def value(self, coef: Any, intercept: Any) -> float:
        """Objective at what a fitted estimator calls `coef_` and `intercept_`."""
        coef, intercept = np.atleast_2d(coef), np.atleast_1d(intercept)
        if len(self.problems) == 1:
            return self.problems[0].value(coef, intercept)
        models = zip(coef[:, None], intercept[:, None], strict=True)
        return float(
            np.mean(
                [one.value(*m) for one, m in zip(self.problems, models, strict=True)]
            )
        )


def make_objective(
    X: Any,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
    loss: str,
    alpha: float,
    l1_ratio: float,
) -> Objective:
    """Objective of an estimator for these rows.

    "softmax" is all classes at once and, with two of them, "log_loss"; the other losses
    of classifiers set each class against the rest. Rows of weight 0 are left out.
    """
    X = X.toarray() if sparse.issparse(X) else np.asarray(X, dtype=float)
    weight = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight)
    if loss == "squared_error":
        targets = [np.asarray(y, dtype=float)]
    else:
        classes, number = np.unique(y, return_inverse=True)
        if len(classes) == 2:
            loss = "log_loss" if loss == "softmax" else loss
            targets = [np.where(number == 1, 1.0, -1.0)]
        elif loss == "softmax":
            targets = [number]
        else:
            targets = [np.where(number == k, 1.0, -1.0) for k in range(len(classes))]
    rows = weight > 0
    parts = weight[rows] / weight[rows].sum()
    return Objective(
        [Problem(X[rows], t[rows], parts, loss, alpha, l1_ratio) for t in targets]
    )
