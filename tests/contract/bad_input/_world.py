"""The estimators and the containers that each kind of bad input is tried with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from scipy import sparse

from dask_ma import (
    MALDA,
    ButterflySGDClassifier,
    ButterflySGDRegressor,
    MASGDClassifier,
    MASGDRegressor,
    MPCAClassifier,
    MPCARegressor,
    SchMPLasso,
    SchMPLassoCV,
    SchMPLDA,
    SchMPLogisticRegression,
    SFBDictionaryLearning,
    SFBLogisticRegression,
    SFBMetricLearner,
)

N, P, ROWS = 24, 3, 6  # rows, columns, rows of a block
NAMES = ["a", "b", "c"]

CONTAINERS = ("numpy", "csr", "array", "frame")
LAZY = ("array", "frame")
MEMORY = ("numpy", "csr")

_SGD = {"max_iter": 2, "tol": None, "random_state": 0, "n_ranks": 2}
# A method without trial fits, which take ten times as long as the one that follows.
_TOPICS = {
    "n_components": 2,
    "learning_method": "batch",
    "max_iter": 2,
    "random_state": 0,
}
# Without stages of the documents, which take longer than what follows.
_GIBBS = {"n_components": 2, "init": "random", "max_iter": 2, "random_state": 0}
_ATOMS = {
    "n_components": 2,
    "alpha": 0.1,
    "max_iter": 2,
    "batch_size": 8,
    "random_state": 0,
}
# The strategy by which the same fit gives the same network.
_NETWORK = {"hidden_layer_sizes": (4,), "strategy": "synchronous", "batch_size": 4}

ESTIMATORS: dict[str, Callable[..., Any]] = {
    "ButterflySGDClassifier": lambda **p: ButterflySGDClassifier(
        **{**_SGD, "batch_size": 4, **p}
    ),
    "ButterflySGDRegressor": lambda **p: ButterflySGDRegressor(
        **{**_SGD, "batch_size": 4, **p}
    ),
    "MALDA": lambda **p: MALDA(**{**_TOPICS, "n_ranks": 2, **p}),
    "MASGDClassifier": lambda **p: MASGDClassifier(**{**_SGD, "loss": "log_loss", **p}),
    "MASGDRegressor": lambda **p: MASGDRegressor(**{**_SGD, **p}),
    "MPCAClassifier": lambda **p: MPCAClassifier(**{**_SGD, **_NETWORK, **p}),
    "MPCARegressor": lambda **p: MPCARegressor(**{**_SGD, **_NETWORK, **p}),
    "SFBDictionaryLearning": lambda **p: SFBDictionaryLearning(
        **{**_ATOMS, "n_ranks": 2, **p}
    ),
    "SFBLogisticRegression": lambda **p: SFBLogisticRegression(
        **{**_SGD, "batch_size": 4, "communication": "factors", **p}
    ),
    "SchMPLDA": lambda **p: SchMPLDA(**{**_GIBBS, "n_ranks": 2, **p}),
    "SFBMetricLearner": lambda **p: SFBMetricLearner(
        **{**_SGD, "n_components": 2, "batch_size": 8, **p}
    ),
    "SchMPLasso": lambda **p: SchMPLasso(**{"alpha": 0.01, "n_ranks": 2, **p}),
    "SchMPLassoCV": lambda **p: SchMPLassoCV(
        **{"cv": 2, "alphas": 3, "n_ranks": 2, **p}
    ),
    "SchMPLogisticRegression": lambda **p: SchMPLogisticRegression(
        **{"alpha": 0.01, "n_ranks": 2, **p}
    ),
}
REGRESSORS = (
    "ButterflySGDRegressor",
    "MASGDRegressor",
    "MPCARegressor",
    "SchMPLasso",
    "SchMPLassoCV",
)
TOPICS = ("MALDA", "SchMPLDA")
ATOMS = ("SFBDictionaryLearning",)
METRICS = ("SFBMetricLearner",)
TRANSFORMERS = (*TOPICS, *ATOMS)
CLASSIFIERS = tuple(set(ESTIMATORS) - {*REGRESSORS, *TRANSFORMERS, *METRICS})
SUPERVISED = (*CLASSIFIERS, *REGRESSORS)
NETWORKS = ("MPCAClassifier", "MPCARegressor")


def good_rows() -> np.ndarray:
    """Counts, so that topic models take them, too; no row and no column is empty."""
    X = np.random.default_rng(0).poisson(1.5, (N, P)).astype(float)
    X[:, 0] += 1
    return X


def good_labels() -> np.ndarray:
    """Two classes, both in each block."""
    return (np.arange(N) % 2 ^ (good_rows()[:, 1] > 1)).astype(int)


def good_targets() -> np.ndarray:
    """A linear target with some noise."""
    noise = np.random.default_rng(1).normal(size=N)
    return good_rows() @ [1.0, -0.5, 0.2] + 0.1 * noise


@dataclass(frozen=True)
class Box:
    """An estimator by its name, and a kind of container for its data."""

    estimator: str
    kind: str

    @property
    def is_lazy(self) -> bool:
        """Whether the container is a Dask collection."""
        return self.kind in LAZY

    @cached_property
    def good_y(self) -> np.ndarray | None:
        """Labels or targets that the estimator takes."""
        if self.estimator in TRANSFORMERS:
            return None
        return good_targets() if self.estimator in REGRESSORS else good_labels()

    def rows(self, X: Any, rows: int = ROWS) -> Any:
        """An array as the rows of this kind of container."""
        if self.kind == "numpy":
            return X
        if self.kind == "csr":
            return sparse.csr_matrix(X)
        if self.kind == "array":
            return da.from_array(X, chunks=(rows, *X.shape[1:]), asarray=False)
        frame = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X, columns=NAMES)
        return dd.from_pandas(frame, npartitions=N // rows)

    def column(self, values: Any, rows: int = ROWS) -> Any:
        """A vector in the container that goes with the rows."""
        if values is None or not self.is_lazy:
            return values
        if self.kind == "array":
            values = np.asarray(values)
            return da.from_array(values, chunks=(rows, *values.shape[1:]))
        return dd.from_pandas(pd.Series(values), npartitions=N // rows)


def learned(estimator: Any) -> dict[str, np.ndarray]:
    """What a fit has learned, as arrays."""
    names = ("coef_", "intercept_", "components_", "coefs_", "intercepts_", "classes_")
    found: dict[str, np.ndarray] = {}
    for name in names:
        value = getattr(estimator, name, None)
        if isinstance(value, list):
            found |= {f"{name}[{i}]": part for i, part in enumerate(value)}
        elif value is not None:
            found[name] = np.asarray(value)
    return found
