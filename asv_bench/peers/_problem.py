"""The training problem that all peers solve, and the objective that judges them."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import SGDClassifier
from sklearn.svm import LinearSVC


class Problem(NamedTuple):
    """A linear support vector machine on sparse rows.

    Attributes
    ----------
    features : csr_matrix of shape (n_rows, n_columns)
    labels : ndarray of shape (n_rows,)
        -1.0 or +1.0.
    alpha : float
        Weight of the L2 penalty.
    """

    features: sparse.csr_matrix
    labels: np.ndarray
    alpha: float

    def objective(self, weights: np.ndarray, intercept: float) -> float:
        """Mean hinge loss + alpha / 2 * squared norm of the weights."""
        margins = self.labels * (self.features @ weights + intercept)
        loss = np.maximum(0.0, 1.0 - margins).mean()
        return float(loss + 0.5 * self.alpha * (weights @ weights))

    def objective_of(self, model: object) -> float:
        """Objective of a fitted estimator with `coef_` and `intercept_`."""
        return self.objective(
            np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])
        )


class Curve(NamedTuple):
    """What one solver reached, and when.

    Attributes
    ----------
    name : str
    unit : str
        What `steps` counts: rounds, epochs or iterations.
    steps, seconds, objectives : list
        One entry per observation; seconds of training only.
    """

    name: str
    unit: str
    steps: list[int]
    seconds: list[float]
    objectives: list[float]

    def seconds_to(self, target: float) -> float | None:
        """Time of the first observation at or below `target`, None if there is none."""
        for seconds, objective in zip(self.seconds, self.objectives):
            if objective <= target:
                return seconds
        return None


def best_known(problem: Problem, seed: int) -> float:
    """Lowest objective of several solvers run for much longer than the contestants.

    LIBLINEAR solves a problem that also penalises the intercept; any point that a
    solver returns is judged by the same objective, so each is an upper bound.
    """
    models = [
        SGDClassifier(
            alpha=problem.alpha,
            average=average,
            max_iter=60,
            tol=None,
            random_state=seed,
        )
        for average in (False, True)
    ]
    models.append(
        LinearSVC(
            loss="hinge",
            C=1.0 / (problem.alpha * len(problem.labels)),
            tol=1e-2,
            max_iter=200,
            random_state=seed,
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for model in models:
            model.fit(problem.features, problem.labels)
    return min(problem.objective_of(model) for model in models)
