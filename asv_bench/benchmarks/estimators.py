"""Whole fits of the public estimators."""

from __future__ import annotations

import numpy as np

from dask_ma import ButterflySGDClassifier, MASGDClassifier, MASGDRegressor

from . import WithCluster, parameterized
from ._data import load_classification, peak_rss, persist, reset_peak_rss


class SmallFit:
    """Fit on 1,000 x 20 NumPy data without a client: the cost of the machinery."""

    def setup(self) -> None:
        rng = np.random.default_rng(0)
        self.X = rng.standard_normal((1_000, 20))
        self.y = self.X @ rng.standard_normal(20)

    def time_classifier(self) -> None:
        MASGDClassifier(random_state=0).fit(self.X, self.y > 0)

    def time_regressor(self) -> None:
        MASGDRegressor(random_state=0).fit(self.X, self.y)


@parameterized(loss=["hinge", "log_loss"], ranks=[1, 2, 4])
class InProcess:
    """Fit on SciPy rows, with the ranks as threads of this process."""

    def setup(self, loss: str, ranks: int) -> None:
        self.X, self.y = load_classification()
        self.model = MASGDClassifier(
            loss=loss,
            alpha=1e-5,
            max_iter=10,
            tol=None,
            n_ranks=ranks,
            random_state=0,
        )

    def time_fit(self, loss: str, ranks: int) -> None:
        self.model.fit(self.X, self.y)

    def peakmem_fit(self, loss: str, ranks: int) -> None:
        self.model.fit(self.X, self.y)

    def track_objective(self, loss: str, ranks: int) -> float:
        return self.model.fit(self.X, self.y).history_[-1]["objective"]

    def track_accuracy(self, loss: str, ranks: int) -> float:
        return self.model.fit(self.X, self.y).score(self.X, self.y)


@parameterized(workers=[1, 2])
class WorkerProcesses(WithCluster):
    """Fit on rows that lie in the memory of single-thread worker processes."""

    timeout = 300

    def setup(self, workers: int) -> None:
        X, y = load_classification()
        self.open(workers)
        self.X, self.y = persist(X, y, self.client)
        self.model = MASGDClassifier(alpha=1e-5, max_iter=10, tol=None, random_state=0)
        self.data_bytes = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes

    def time_fit(self, workers: int) -> None:
        self.model.fit(self.X, self.y)

    def track_objective(self, workers: int) -> float:
        return self.model.fit(self.X, self.y).history_[-1]["objective"]

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


@parameterized(mixing=["butterfly", "allreduce"], workers=[2, 4])
class ButterflyProcesses(WithCluster):
    """Butterfly mixing, and its complete counterpart, on worker processes."""

    timeout = 300

    def setup(self, mixing: str, workers: int) -> None:
        X, y = load_classification()
        self.open(workers)
        self.X, self.y = persist(X, y, self.client)
        self.model = ButterflySGDClassifier(
            alpha=1e-5,
            mixing=mixing,
            batch_size=256,
            max_iter=2,
            tol=None,
            random_state=0,
        )

    def time_fit(self, mixing: str, workers: int) -> None:
        self.model.fit(self.X, self.y)

    def track_objective(self, mixing: str, workers: int) -> float:
        return self.model.fit(self.X, self.y).history_[-1]["objective"]

    def track_bytes_per_step(self, mixing: str, workers: int) -> float:
        record = self.model.fit(self.X, self.y).history_[-1]
        return record["bytes_sent"] / record["n_steps"]

    track_bytes_per_step.unit = "bytes"
