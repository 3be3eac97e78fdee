"""The estimators of linear models, with the parameters that they come with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dask_ma import (
    ButterflySGDClassifier,
    ButterflySGDRegressor,
    MASGDClassifier,
    MASGDRegressor,
    SchMPLasso,
    SchMPLogisticRegression,
    SFBLogisticRegression,
)

from . import peers


@dataclass(frozen=True)
class Contestant:
    """An estimator with a penalty.

    Attributes
    ----------
    name, penalty : str
        What the tables call it.
    task : {"classification", "regression"}
    loss : str
        As in `objectives`: "softmax" has all classes in one problem.
    l1_ratio : float
        Of the objective, whatever the estimator calls its penalty.
    make : callable
        Makes the estimator, with defaults but for the penalty.
    peer : callable
        Makes scikit-learn's; called with the sum of the weights, `alpha` and the share
        of L1.
    """

    name: str
    penalty: str
    task: str
    loss: str
    l1_ratio: float
    make: Callable[..., Any] = field(compare=False)
    peer: Callable[[float, float, float], Any] = field(compare=False)

    def __str__(self) -> str:
        return f"{self.name} {self.penalty}"

    def alpha(self, total: float) -> float:
        """Weight of the penalty that comes with it, for weights of that sum."""
        alpha = self.make().alpha
        return 1 / total if alpha == "auto" else alpha


RATIOS = {"l2": 0.0, "l1": 1.0, "elasticnet": 0.15}


def _sgd(
    name: str, task: str, loss: str, estimator: Any, peer: Any
) -> list[Contestant]:
    """Those that choose the penalty by its name, as SGDClassifier does."""

    def make_peer(penalty: str) -> Callable[[float, float, float], Any]:
        return lambda n, alpha, ratio: peer(loss, penalty, alpha, ratio)

    return [
        Contestant(
            name,
            penalty,
            task,
            loss,
            ratio,
            partial(estimator, penalty=penalty),
            make_peer(penalty),
        )
        for penalty, ratio in RATIOS.items()
    ]


def _schmp(
    name: str, task: str, loss: str, estimator: Any, peer: Any
) -> list[Contestant]:
    """Those that choose the penalty by its share of L1."""
    return [
        Contestant(
            name, penalty, task, loss, ratio, partial(estimator, l1_ratio=ratio), peer
        )
        for penalty, ratio in {"l1": 1.0, "elasticnet": 0.5}.items()
    ]


def _sfb() -> list[Contestant]:
    """The multinomial one, with the penalties that there are."""
    offered = [
        option
        for options in SFBLogisticRegression._parameter_constraints["penalty"]
        for option in getattr(options, "options", [])
    ]
    return [
        Contestant(
            "SFBLogisticRegression",
            penalty,
            "classification",
            "softmax",
            ratio,
            partial(SFBLogisticRegression, penalty=penalty),
            peers.logistic_regression,
        )
        for penalty, ratio in RATIOS.items()
        if penalty in offered
    ]


CONTESTANTS = [
    *_sgd(
        "MASGDClassifier",
        "classification",
        "hinge",
        MASGDClassifier,
        peers.sgd_classifier,
    ),
    *_sgd(
        "MASGDClassifier log_loss",
        "classification",
        "log_loss",
        partial(MASGDClassifier, loss="log_loss"),
        peers.sgd_classifier,
    ),
    *_sgd(
        "MASGDRegressor",
        "regression",
        "squared_error",
        MASGDRegressor,
        peers.sgd_regressor,
    ),
    *_sfb(),
    Contestant(
        "ButterflySGDClassifier",
        "l2",
        "classification",
        "log_loss",
        0.0,
        ButterflySGDClassifier,
        lambda n, alpha, ratio: peers.sgd_classifier("log_loss", "l2", alpha, ratio),
    ),
    Contestant(
        "ButterflySGDRegressor",
        "l2",
        "regression",
        "squared_error",
        0.0,
        ButterflySGDRegressor,
        lambda n, alpha, ratio: peers.sgd_regressor(
            "squared_error", "l2", alpha, ratio
        ),
    ),
    *_schmp(
        "SchMPLasso",
        "regression",
        "squared_error",
        SchMPLasso,
        lambda n, alpha, ratio: peers.lasso(alpha, ratio),
    ),
    *_schmp(
        "SchMPLogisticRegression",
        "classification",
        "softmax",
        SchMPLogisticRegression,
        peers.logistic_regression,
    ),
]
