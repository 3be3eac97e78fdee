"""What scikit-learn's estimators of the same objective reach with their defaults."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LogisticRegression,
    SGDClassifier,
    SGDRegressor,
)

from .objectives import Objective


def value_of(
    peer: Any, X: Any, y: np.ndarray, sample_weight: Any, objective: Objective
) -> float:
    """Objective of a fitted peer; without end where it fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            peer.fit(X, y, sample_weight=sample_weight)
        except ValueError:  # SGD has left the range of floating-point numbers
            return np.inf
    return objective.value(peer.coef_, peer.intercept_)


def sgd_classifier(loss: str, penalty: str, alpha: float, l1_ratio: float) -> Any:
    """SGDClassifier."""
    return SGDClassifier(
        loss=loss, penalty=penalty, alpha=alpha, l1_ratio=l1_ratio, random_state=0
    )


def sgd_regressor(loss: str, penalty: str, alpha: float, l1_ratio: float) -> Any:
    """SGDRegressor."""
    return SGDRegressor(
        loss=loss, penalty=penalty, alpha=alpha, l1_ratio=l1_ratio, random_state=0
    )


def logistic_regression(n: float, alpha: float, l1_ratio: float) -> Any:
    """LogisticRegression for rows whose weights sum to `n`; saga where L1 wants it."""
    params = {"C": 1 / (alpha * n), "random_state": 0}
    if l1_ratio == 0:
        return LogisticRegression(**params)
    if LogisticRegression().penalty == "l2":  # before scikit-learn 1.8
        params["penalty"] = "elasticnet"
    return LogisticRegression(solver="saga", l1_ratio=l1_ratio, **params)


def lasso(alpha: float, l1_ratio: float) -> Any:
    """Lasso or ElasticNet."""
    if l1_ratio == 1:
        return Lasso(alpha=alpha)
    return ElasticNet(alpha=alpha, l1_ratio=l1_ratio)
