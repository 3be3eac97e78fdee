"""Whole fits of the public estimators."""

from __future__ import annotations

import dask.array as da
import numpy as np
from dask import delayed
from scipy import sparse

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


@parameterized(blocks=[1, 20, 100], penalty=["l2", "l1"])
class WideBlocks:
    """Passes over 20 non-zeros in each of 20,000 rows and 2,000,000 columns.

    A pass over many blocks is to cost at most 1.5 times what one over a single one
    does: `track_pass` of 100 blocks against that of 1.
    """

    def setup(self, blocks: int, penalty: str) -> None:
        rng = np.random.default_rng(0)
        shape, stored = (20_000, 2_000_000), 20
        columns = rng.integers(0, shape[1], shape[0] * stored).astype(np.int32)
        starts = np.arange(0, len(columns) + 1, stored, dtype=np.int32)
        X = sparse.csr_matrix((np.ones(len(columns)), columns, starts), shape=shape)
        X.sum_duplicates()
        rows = shape[0] // blocks
        meta = sparse.csr_matrix((0, shape[1]))
        self.X = da.concatenate(
            [
                da.from_delayed(delayed(X[a : a + rows]), (rows, shape[1]), meta=meta)
                for a in range(0, shape[0], rows)
            ]
        )
        self.y = da.from_array(rng.integers(0, 2, shape[0]), chunks=rows)
        self.model = MASGDClassifier(
            penalty=penalty,
            learning_rate="optimal",
            local_epochs=1,
            max_iter=5,
            tol=None,
            n_ranks=1,
            random_state=0,
        )

    def track_pass(self, blocks: int, penalty: str) -> float:
        """Least seconds that a pass has computed."""
        history = self.model.fit(self.X, self.y).history_
        return min(record["seconds_computing"] for record in history)

    def peakmem_fit(self, blocks: int, penalty: str) -> None:
        self.model.fit(self.X, self.y)


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
            mixing_period=1,
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
