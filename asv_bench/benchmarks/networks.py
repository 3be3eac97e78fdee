"""Neural networks: whole fits and single steps, next to scikit-learn's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from dask_ma import MPCAClassifier
from dask_ma.datasets import make_sparse_classification
from dask_ma.mpca.networks._anchors import ProximalTerm
from dask_ma.mpca.networks._mlp import MLPSpec

from . import WithCluster, parameterized
from ._data import peak_rss, reset_peak_rss

UNITS = (256, 128)
BATCH = 64
RATE = 1e-3


def make_images(n_rows: int = 10_000) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the size of small images, and the classes of a linear model."""
    rng = np.random.default_rng(0)
    X = rng.random((n_rows, 784), dtype=np.float32)
    return X, ((X - 0.5) @ rng.standard_normal((784, 10), dtype=np.float32)).argmax(
        axis=1
    )


def make_model(system: str, max_iter: int, **parameters: Any) -> Any:
    """A network of scikit-learn, or one with a strategy."""
    common = {
        "hidden_layer_sizes": UNITS,
        "batch_size": BATCH,
        "learning_rate_init": RATE,
        "max_iter": max_iter,
        "random_state": 0,
    }
    if system == "sklearn":
        return MLPClassifier(tol=0, n_iter_no_change=max_iter, **common)
    return MPCAClassifier(strategy=system, tol=None, **common, **parameters)


def fit(model: Any, X: np.ndarray, y: np.ndarray) -> Any:
    """Fit with one thread, as each rank has."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y)


@parameterized(system=["mpca", "synchronous", "sklearn"])
class Fit:
    """Epochs on one rank, or of scikit-learn, which make the same steps."""

    def setup(self, system: str) -> None:
        self.X, self.y = make_images()
        self.model = make_model(system, max_iter=3)

    def time_fit(self, system: str) -> None:
        fit(self.model, self.X, self.y)

    def peakmem_fit(self, system: str) -> None:
        fit(self.model, self.X, self.y)

    def track_accuracy(self, system: str) -> float:
        return fit(self.model, self.X, self.y).score(self.X, self.y)


@parameterized(strategy=["mpca", "synchronous", "easgd"], workers=[1, 2])
class WorkerProcesses(WithCluster):
    """Epochs of all ranks together, on single-thread worker processes."""

    timeout = 300

    def setup(self, strategy: str, workers: int) -> None:
        self.X, self.y = make_images()
        self.open(workers)
        self.model = make_model(strategy, max_iter=5)
        self.model.fit(self.X[:500], self.y[:500])  # loads the modules

    def time_fit(self, strategy: str, workers: int) -> None:
        self.model.fit(self.X, self.y)

    def track_accuracy(self, strategy: str, workers: int) -> float:
        return self.model.fit(self.X, self.y).score(self.X, self.y)

    def track_part_computing(self, strategy: str, workers: int) -> float:
        history = self.model.fit(self.X, self.y).history_
        computing = sum(record["seconds_computing"] for record in history)
        return computing / history[-1]["time"]

    def track_tau(self, strategy: str, workers: int) -> float:
        """Steps between two exchanges of the same values, in the last record."""
        return self.model.fit(self.X, self.y).history_[-1]["tau"]

    def track_peak_rss_growth(self, strategy: str, workers: int) -> float:
        """Most memory that a fit adds to a worker, in sizes of the model.

        Rows of a rank are among it.
        """
        values = MLPSpec(UNITS).layout(self.X.shape[1], 10).n_values
        before = self.client.run(reset_peak_rss)
        self.model.fit(self.X, self.y)
        after = self.client.run(peak_rss)
        growth = max(after[worker] - before[worker] for worker in before)
        return growth / (values * self.X.itemsize)


@parameterized(batch=[16, 64, 256], dtype=["float32", "float64"])
class Step:
    """One step on a batch: the kernel, and ``partial_fit`` of scikit-learn.

    scikit-learn's step includes its checks of the batch.
    """

    def setup(self, batch: int, dtype: str) -> None:
        X, y = make_images(1_000)
        self.X, self.y = X[:batch].astype(dtype), y[:batch]
        self.limits = threadpool_limits(1)
        spec = MLPSpec(UNITS)
        self.network = spec.build(784, 10, np.dtype(dtype), np.random.RandomState(0))
        self.theirs = MLPClassifier(UNITS, batch_size=batch, random_state=0)
        self.theirs.partial_fit(self.X, self.y, classes=np.arange(10))

    def teardown(self, batch: int, dtype: str) -> None:
        self.limits.restore_original_limits()

    def time_kernel(self, batch: int, dtype: str) -> None:
        self.network.step(self.X, self.y, None, learning_rate=RATE)

    def time_sklearn(self, batch: int, dtype: str) -> None:
        self.theirs.partial_fit(self.X, self.y)


class Words:
    """Some steps of Adam on rows of words, for the inputs of a batch and for all."""

    params = (25, 200)
    param_names = ("batch",)
    n_steps, n_words = 20, 30_000

    def setup(self, batch: int) -> None:
        X, y, _ = make_sparse_classification(
            self.n_steps * batch, self.n_words, n_nonzero=30, random_state=0
        )
        X, y = X.astype(np.float32).tocsr(), (y > 0).astype(float)
        parts = [slice(i * batch, (i + 1) * batch) for i in range(self.n_steps)]
        self.batches = [(X[part], y[part]) for part in parts]
        self.limits = threadpool_limits(1)
        first = np.random.RandomState(0)
        # Where the first moment is not gone before the second, no weight may wait.
        specs = MLPSpec(), MLPSpec(beta_1=0.99)
        self.few, self.all = (
            spec.build(self.n_words, 2, np.dtype(np.float32), first) for spec in specs
        )
        self.theirs = MLPClassifier(batch_size=batch, random_state=0)
        self.theirs.partial_fit(X, y, classes=[0.0, 1.0])

    def teardown(self, batch: int) -> None:
        self.limits.restore_original_limits()

    def time_inputs_of_batch(self, batch: int) -> None:
        for X, y in self.batches:
            self.few.step(X, y, None, learning_rate=RATE)
        self.few.read(0, self.few.n_values)

    def time_all_inputs(self, batch: int) -> None:
        for X, y in self.batches:
            self.all.step(X, y, None, learning_rate=RATE)

    def time_sklearn(self, batch: int) -> None:
        for X, y in self.batches:
            self.theirs.partial_fit(X, y)


class Penalty:
    """What a penalty on the distance from the joint model adds to a step."""

    def setup(self) -> None:
        X, y = make_images(1_000)
        self.X, self.y = X[:BATCH], y[:BATCH]
        self.limits = threadpool_limits(1)
        self.network = MLPSpec(UNITS).build(784, 10, X.dtype, np.random.RandomState(0))
        n_values = self.network.n_values
        self.network.set_anchor(0, self.network.read(0, n_values))
        self.terms = [ProximalTerm(0, n_values, 0.05)]

    def teardown(self) -> None:
        self.limits.restore_original_limits()

    def time_without(self) -> None:
        self.network.step(self.X, self.y, None, learning_rate=RATE)

    def time_shift(self) -> None:
        self.network.step(
            self.X,
            self.y,
            None,
            learning_rate=RATE,
            proximal_terms=self.terms,
            form="shift",
        )

    def time_loss(self) -> None:
        self.network.step(
            self.X,
            self.y,
            None,
            learning_rate=RATE,
            proximal_terms=self.terms,
            form="loss",
        )
