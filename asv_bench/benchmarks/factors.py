"""Sufficient factor broadcasting: whole fits, bytes of an iteration, topologies."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from dask_ma import SFBLogisticRegression
from dask_ma.datasets import load_clinc150
from dask_ma.kernels import log_loss_sum
from dask_ma.sfb.topology import Topology
from dask_ma.sfb.topology._search import best_links

from . import WithCluster, parameterized
from ._data import persist

ALPHA = 1e-4
EXCESS = 0.01  # of the objective, of the optimum
MOST = 200  # passes that are tried


def load_intents(n_rows: int = 15_000) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Tf-idf of queries in random order, and codes of 150 intents."""
    texts, labels = load_clinc150("train")
    X = TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(texts)
    order = np.random.default_rng(0).permutation(len(labels))[:n_rows]
    return X[order], np.unique(labels, return_inverse=True)[1][order]


def optimum(X: Any, y: np.ndarray) -> float:
    """The least objective, from below."""
    model = SFBLogisticRegression(alpha=ALPHA, solver="sdca", tol=1e-5, max_iter=200)
    model.fit(X, y)
    last = model.history_[-1]
    return float(last["objective"] - last["dual_gap"])


def objective(model: Any, X: Any, y: np.ndarray) -> float:
    """Mean loss plus penalty of a fitted model."""
    loss = log_loss_sum(X @ model.coef_.T + model.intercept_, y)
    return float(loss / len(y) + ALPHA / 2 * np.vdot(model.coef_, model.coef_))


def make_model(solver: str, n_rows: int, max_iter: int) -> Any:
    """An estimator that makes so many passes, or iterations."""
    if solver in ("sgd", "sdca"):
        return SFBLogisticRegression(
            alpha=ALPHA, solver=solver, max_iter=max_iter, tol=None, random_state=0
        )
    return LogisticRegression(
        C=1 / (ALPHA * n_rows), solver=solver, max_iter=max_iter, tol=0, random_state=0
    )


@parameterized(solver=["sgd", "sdca", "lbfgs", "newton-cg", "saga"])
class Fit:
    """One rank, or scikit-learn, until the objective is 1 % above the optimum.

    Passes, or iterations, are counted before.
    """

    timeout = 300

    def setup(self, solver: str) -> None:
        self.X, self.y = load_intents(3_000)
        self.best = optimum(self.X, self.y)
        self.n_iter = 1
        while self._excess(solver) > EXCESS:
            self.n_iter += 1
            if self.n_iter == MOST:
                raise NotImplementedError(f"{solver} takes {MOST} passes or more")

    def time_fit(self, solver: str) -> None:
        self._fit(solver)

    def track_iterations(self, solver: str) -> float:
        return self.n_iter

    def _excess(self, solver: str) -> float:
        return objective(self._fit(solver), self.X, self.y) / self.best - 1

    def _fit(self, solver: str) -> Any:
        model = make_model(solver, len(self.y), self.n_iter)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return model.fit(self.X, self.y)


@parameterized(l1_ratio=[0.15, 0.9])
class ElasticNet:
    """One rank, by default parameters, to a duality gap."""

    timeout = 300

    def setup(self, l1_ratio: float) -> None:
        self.X, self.y = load_intents(3_000)
        self.model = SFBLogisticRegression(
            "elasticnet",
            alpha=ALPHA,
            l1_ratio=l1_ratio,
            random_state=0,
        )

    def time_fit(self, l1_ratio: float) -> None:
        self._fit()

    def track_passes(self, l1_ratio: float) -> float:
        return self._fit().n_iter_

    def track_gap(self, l1_ratio: float) -> float:
        """Of the objective, at most."""
        model = self._fit()
        return model.dual_gap_ / model.history_[-1]["objective"]

    def _fit(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return self.model.fit(self.X, self.y)


@parameterized(ranks=[1, 2, 4])
class Ranks:
    """Passes of gradient descent, with the ranks as threads of this process."""

    def setup(self, ranks: int) -> None:
        self.X, self.y = load_intents()
        self.model = SFBLogisticRegression(
            alpha=ALPHA,
            solver="sgd",
            max_iter=3,
            tol=None,
            n_ranks=ranks,
            random_state=0,
        )

    def time_fit(self, ranks: int) -> None:
        self.model.fit(self.X, self.y)

    def peakmem_fit(self, ranks: int) -> None:
        self.model.fit(self.X, self.y)


@parameterized(communication=["factors", "full_matrix", "server"])
class Communication(WithCluster):
    """Ranks on worker processes that send factors or matrices."""

    timeout = 300

    def setup(self, communication: str) -> None:
        X, y = load_intents()
        self.open(4)
        self.n_steps = -(-(-(-len(y) // 4)) // 64)
        self.X, self.y = persist(X, y, self.client)
        self.model = SFBLogisticRegression(
            alpha=ALPHA,
            solver="sgd",
            max_iter=2,
            tol=None,
            communication=communication,
            random_state=0,
        )

    def time_fit(self, communication: str) -> None:
        self.model.fit(self.X, self.y)

    def track_bytes_per_iteration(self, communication: str) -> float:
        """Sent by all ranks together, in the second pass."""
        return self.model.fit(self.X, self.y).history_[-1]["bytes_sent"] / self.n_steps

    track_bytes_per_iteration.unit = "bytes"


@parameterized(ranks=[8, 12, 64], peers=[2, 4])
class Topologies:
    """The search for links; ``Topology.optimal`` remembers what it has found."""

    def time_search(self, ranks: int, peers: int) -> None:
        best_links(ranks, peers)

    def track_mean_distance(self, ranks: int, peers: int) -> float:
        total = Topology.optimal(ranks, peers).total_distance
        return total / (ranks * (ranks - 1))
