"""Sparse linear models by scheduled model parallelism: whole fits, paths, schedules."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SchMPLasso, SchMPLogisticRegression, losses
from dask_ma.schmp import CoordinateDescent, Schedule, run, schedules

from . import WithCluster, parameterized
from ._data import load_classification, peak_rss, persist, reset_peak_rss

SCHEDULES = {
    "cyclic": schedules.Cyclic,
    "random": schedules.Random,
    "priority": schedules.Priority,
    "dynamic": schedules.Dynamic,
}


def make_wide(
    rows: int = 200, columns: int = 10_000, correlation: float = 0.7, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Dense rows with blocks of 50 columns that are correlated, and targets."""
    rng = np.random.default_rng(seed)
    common = np.repeat(rng.standard_normal((rows, columns // 50)), 50, axis=1)
    own = rng.standard_normal((rows, columns))
    X = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
    coef = np.zeros(columns)
    coef[rng.choice(columns, 50, replace=False)] = rng.standard_normal(50)
    return X, X @ coef + rng.standard_normal(rows)


def largest_alpha(X: np.ndarray, y: np.ndarray) -> float:
    """Smallest weight of the penalty with which all coefficients are zero."""
    return float(np.abs(X.T @ (y - y.mean())).max()) / len(y)


@parameterized(layout=["rows", "columns"], ranks=[1, 2])
class Wide:
    """Lasso with many more columns than rows, with the ranks as threads."""

    def setup(self, layout: str, ranks: int) -> None:
        self.X, self.y = make_wide()
        self.model = SchMPLasso(
            largest_alpha(self.X, self.y) / 20, tol=1e-6, layout=layout, n_ranks=ranks
        )

    def time_fit(self, layout: str, ranks: int) -> None:
        self.model.fit(self.X, self.y)

    def peakmem_fit(self, layout: str, ranks: int) -> None:
        self.model.fit(self.X, self.y)

    def track_touched(self, layout: str, ranks: int) -> float:
        """Elements of the data read, over all elements."""
        history = self.model.fit(self.X, self.y).history_
        return sum(record["n_touched"] for record in history) / self.X.size


class Path:
    """Twenty weights of the penalty, each from the model of the last."""

    def setup(self) -> None:
        self.X, self.y = make_wide()

    def time_path(self) -> None:
        SchMPLasso.path(self.X, self.y, eps=0.01, alphas=20)


@parameterized(ranks=[1, 2])
class Text:
    """Lasso and logistic regression on sparse rows, with the ranks as threads."""

    def setup(self, ranks: int) -> None:
        self.X, self.y = load_classification()
        alpha = largest_alpha(self.X, self.y)
        self.lasso = SchMPLasso(alpha / 20, n_ranks=ranks)
        # At zero the slope of the logistic loss is half of that of the squared one.
        self.classifier = SchMPLogisticRegression(alpha / 40, n_ranks=ranks)

    def time_lasso(self, ranks: int) -> None:
        self.lasso.fit(self.X, self.y)

    def time_logistic(self, ranks: int) -> None:
        self.classifier.fit(self.X, self.y)

    def peakmem_logistic(self, ranks: int) -> None:
        self.classifier.fit(self.X, self.y)

    def track_accuracy(self, ranks: int) -> float:
        return self.classifier.fit(self.X, self.y).score(self.X, self.y)


@parameterized(workers=[1, 2])
class SparseProcesses(WithCluster):
    """Lasso on rows that lie in the memory of single-thread worker processes."""

    timeout = 300

    def setup(self, workers: int) -> None:
        X, y = load_classification()
        self.open(workers)
        self.X, self.y = persist(X, y, self.client)
        self.model = SchMPLasso(largest_alpha(X, y) / 20)
        self.data_bytes = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes

    def time_fit(self, workers: int) -> None:
        self.model.fit(self.X, self.y)

    def track_peak_rss_growth(self, workers: int) -> float:
        """Most memory that a fit adds to a worker, over the bytes of its shard.

        The fit before it has loaded the modules.
        """
        self.model.fit(self.X, self.y)
        before = self.client.run(reset_peak_rss)
        self.model.fit(self.X, self.y)
        after = self.client.run(peak_rss)
        growth = max(after[worker] - before[worker] for worker in before)
        return growth / (self.data_bytes / workers)


def make_tall() -> tuple[np.ndarray, np.ndarray]:
    """Rows with which every schedule converges."""
    return make_wide(1_000, 1_000, correlation=0.0)


def make_program(
    schedule: Schedule, alpha: float, n_features: int
) -> CoordinateDescent:
    """Coordinate descent for the Lasso."""
    return CoordinateDescent(
        losses.SquaredError(),
        schedule,
        np.full(n_features, alpha),
        np.zeros(n_features),
    )


@parameterized(schedule=list(SCHEDULES), n_candidates=[16, 64])
class Iterations:
    """A thousand iterations of coordinate descent on one rank, by the schedule."""

    def setup(self, schedule: str, n_candidates: int) -> None:
        self.X, self.y = make_tall()
        alpha = largest_alpha(self.X, self.y) / 5
        self.program = make_program(
            SCHEDULES[schedule](n_candidates), alpha, self.X.shape[1]
        )

    def time_run(self, schedule: str, n_candidates: int) -> None:
        run(self.program, self.X, self.y, n_iterations=1_000, random_state=0)


@parameterized(schedule=["cyclic", "dynamic"], depth=[1, 3])
class IterationProcesses(WithCluster):
    """Iterations of coordinate descent over two worker processes."""

    timeout = 300

    def setup(self, schedule: str, depth: int) -> None:
        X, y = make_tall()
        self.open(2)
        self.X, self.y = persist(X, y, self.client)
        self.program = make_program(
            SCHEDULES[schedule](16), largest_alpha(X, y) / 5, X.shape[1]
        )

    def track_rate(self, schedule: str, depth: int) -> float:
        """Iterations per second, between the reports of the first and the last."""
        history = run(
            self.program,
            self.X,
            self.y,
            n_iterations=2_000,
            pipeline_depth=depth,
            report_every=500,
            random_state=0,
        ).history
        first, last = history[0], history[-1]
        iterations = last["iteration"] - first["iteration"]
        return iterations / (last["time"] - first["time"])

    track_rate.unit = "1/s"


@parameterized(schedule=list(SCHEDULES))
class Estimator:
    """The schedules as parameters of SchMPLasso, to a duality gap."""

    def setup(self, schedule: str) -> None:
        self.X, self.y = make_tall()
        self.model = SchMPLasso(
            largest_alpha(self.X, self.y) / 5,
            tol=1e-3,
            schedule=SCHEDULES[schedule](16),
            max_iter=30,
            polish=False,
            random_state=0,
        )

    def time_fit(self, schedule: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.model.fit(self.X, self.y)
