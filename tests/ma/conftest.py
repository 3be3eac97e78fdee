"""Small problems, and slow references that share no code with the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client
from distributed.client import (
    _del_global_client,
    _global_clients,
    _set_global_client,
)
from scipy import sparse, special


@pytest.fixture(scope="session", autouse=True)
def _shared_client(_inproc_cluster: Client) -> None:
    """In-process workers use the client of the tests for what tasks do.

    Otherwise each makes a client of its own, which becomes the default of this process
    and outlives the cluster.
    """
    _set_global_client(_inproc_cluster)
    _inproc_cluster.run(lambda dask_worker: dask_worker._get_client())
    _drop_default_clients()


@pytest.fixture(autouse=True)
def _no_default_client() -> Iterator[None]:
    """No client is there unless a test has one."""
    _drop_default_clients()
    yield
    _drop_default_clients()


def _drop_default_clients() -> None:
    """Forget the default clients, and that Dask is to compute with them."""
    for client in list(_global_clients.values()):
        _del_global_client(client)
        dask.config.config.pop("scheduler", None)


@pytest.fixture
def cluster(inproc_client: Client) -> Iterator[Client]:
    """The current client: four one-thread workers in this process."""
    with inproc_client.as_current():
        yield inproc_client


@pytest.fixture
def processes(process_client: Client) -> Iterator[Client]:
    """The current client: four one-thread worker processes."""
    with process_client.as_current():
        yield process_client


Data = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="session")
def binary() -> Data:
    """120 rows of 6 features, two classes with some noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 6)) * (rng.random((120, 6)) < 0.7)
    return X, (X[:, 0] - X[:, 1] + 0.3 * rng.normal(size=120) > 0).astype(int)


@pytest.fixture(scope="session")
def multi() -> Data:
    """120 rows of 6 features, four classes."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 4, 120)
    return rng.normal(size=(120, 6)) + 1.5 * np.eye(4, 6)[y], y


@pytest.fixture(scope="session")
def regression() -> Data:
    """120 rows of 6 features, a linear target with some noise."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(120, 6))
    return X, X @ np.arange(6) / 3 + 1 + 0.1 * rng.normal(size=120)


@pytest.fixture(scope="session")
def weights() -> np.ndarray:
    """Positive weights of 120 rows."""
    return np.random.default_rng(3).uniform(0.2, 3, 120)


_FORMULAS: dict[str, Callable[..., np.ndarray]] = {
    "hinge": lambda y, p, eps: np.maximum(0, 1 - y * p),
    "squared_hinge": lambda y, p, eps: np.maximum(0, 1 - y * p) ** 2,
    "perceptron": lambda y, p, eps: np.maximum(0, -y * p),
    "log_loss": lambda y, p, eps: -special.log_expit(y * p),
    "modified_huber": lambda y, p, eps: np.where(
        y * p >= -1, np.maximum(0, 1 - y * p) ** 2, -4 * y * p
    ),
    "squared_error": lambda y, p, eps: (y - p) ** 2 / 2,
    "huber": lambda y, p, eps: special.huber(eps, y - p),
    "epsilon_insensitive": lambda y, p, eps: np.maximum(0, abs(y - p) - eps),
    "squared_epsilon_insensitive": lambda y, p, eps: np.maximum(0, abs(y - p) - eps)
    ** 2,
}


def _targets(y: np.ndarray) -> list[np.ndarray]:
    """Targets -1 and 1 of each problem of one class against the rest."""
    classes = np.unique(y)
    positives = classes[1:] if len(classes) == 2 else classes
    return [np.where(y == label, 1.0, -1.0) for label in positives]


@pytest.fixture(scope="session")
def objective() -> Callable[..., float]:
    """Objective of a fitted estimator, row by row from the formulas."""

    def evaluate(
        estimator: Any, X: Any, y: np.ndarray, weight: np.ndarray | None = None
    ) -> float:
        X = X.toarray() if sparse.issparse(X) else np.asarray(X)
        is_classifier = hasattr(estimator, "classes_")
        targets = _targets(np.asarray(y)) if is_classifier else [np.asarray(y)]
        weight = np.ones(len(y)) if weight is None else weight
        penalties = {
            None: lambda w: 0.0,
            "l2": lambda w: w @ w / 2,
            "l1": lambda w: abs(w).sum(),
        }
        ratio = estimator.l1_ratio
        penalties["elasticnet"] = lambda w: (
            ratio * penalties["l1"](w) + (1 - ratio) * penalties["l2"](w)
        )
        values = []
        for w, b, target in zip(
            np.atleast_2d(estimator.coef_), estimator.intercept_, targets, strict=True
        ):
            losses = _FORMULAS[estimator.loss](target, X @ w + b, estimator.epsilon)
            values.append(
                np.average(losses, weights=weight)
                + estimator.alpha * penalties[estimator.penalty](w)
            )
        return float(np.mean(values))

    return evaluate


@pytest.fixture(scope="session")
def average_by_hand() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Model averaging without the package: one scikit-learn estimator per rank."""

    def run(
        twin: Callable[[int], Any],
        shards: list[tuple[Any, ...]],
        n_rounds: int,
        pace: float = 1.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercepts after some rounds of one pass each.

        `twin` makes the scikit-learn estimator of a rank; a shard is X, y, and either
        None or weights whose mean over all shards is 1. With every row the schedule of
        the learning rate goes on by `pace`.
        """
        solvers = [twin(rank) for rank in range(len(shards))]
        is_classifier = hasattr(solvers[0], "class_weight")
        labels = np.unique(np.concatenate([shard[1] for shard in shards]))
        classes = {"classes": labels} if is_classifier else {}
        shares = [len(y) if s is None else s.sum() for _, y, s in shards]
        merged = {}
        for n_before in range(n_rounds):
            for solver, (X, y, s) in zip(solvers, shards, strict=True):
                for name, value in merged.items():
                    setattr(solver, name, value.copy())
                solver.t_ = 1 + pace * n_before * len(y)
                solver.partial_fit(X, y, sample_weight=s, **classes)
            for name in ("coef_", "intercept_"):
                own = [getattr(solver, name) for solver in solvers]
                # The mean of one is exact.
                mean = own[0] if len(own) == 1 else np.average(own, 0, shares)
                merged[name] = mean.astype(own[0].dtype)
        return merged["coef_"], merged["intercept_"]

    return run
