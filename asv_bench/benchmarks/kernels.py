"""The maths of one rank."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dask_ma.kernels import (
    batch_slopes,
    descend,
    loss_sums,
    loss_values,
    one_vs_rest_targets,
    shrink,
)

from . import parameterized

N_SAMPLES = 50_000


@parameterized(loss=["hinge", "log_loss", "modified_huber", "squared_error"])
class LossValues:
    """Losses of predictions that are already there."""

    def setup(self, loss: str) -> None:
        rng = np.random.default_rng(0)
        self.predictions = rng.standard_normal(10 * N_SAMPLES)
        self.targets = np.sign(rng.standard_normal(10 * N_SAMPLES))

    def time_loss_values(self, loss: str) -> None:
        loss_values(loss, self.targets, self.predictions)


@parameterized(n_problems=[1, 20], layout=["sparse", "dense"])
class LossSums:
    """Pass over a block that gives its share of the objective."""

    def setup(self, n_problems: int, layout: str) -> None:
        rng = np.random.default_rng(0)
        if layout == "sparse":
            self.X = sparse.random(
                N_SAMPLES, 20_000, density=0.002, format="csr", random_state=rng
            )
        else:
            self.X = rng.standard_normal((N_SAMPLES, 50))
        self.codes = rng.integers(max(2, n_problems), size=N_SAMPLES)
        self.coef = rng.standard_normal((n_problems, self.X.shape[1]))
        self.intercept = np.zeros(n_problems)

    def _run(self) -> None:
        loss_sums(
            self.X,
            self.codes,
            None,
            self.coef,
            self.intercept,
            loss="hinge",
            one_vs_rest=True,
        )

    def time_loss_sums(self, n_problems: int, layout: str) -> None:
        self._run()

    def peakmem_loss_sums(self, n_problems: int, layout: str) -> None:
        self._run()


class Targets:
    """Class codes to the targets of 20 binary problems."""

    def setup(self) -> None:
        self.codes = np.random.default_rng(0).integers(20, size=N_SAMPLES)

    def time_one_vs_rest_targets(self) -> None:
        one_vs_rest_targets(self.codes, 20)


@parameterized(n_features=[50_000, 250_000], batch_size=[16, 256], n_problems=[1, 20])
class MinibatchStep:
    """One step of mini-batch SGD on sparse rows, with a preconditioner."""

    def setup(self, n_features: int, batch_size: int, n_problems: int) -> None:
        rng = np.random.default_rng(0)
        self.X = sparse.random(
            batch_size, n_features, 70 / n_features, format="csr", random_state=rng
        )
        self.targets = np.sign(rng.standard_normal((batch_size, n_problems)))
        self.weights = rng.standard_normal((n_features + 1, n_problems))
        self.preconditioner = rng.uniform(1, 100, n_features)

    def time_slopes(self, n_features: int, batch_size: int, n_problems: int) -> None:
        batch_slopes(self.weights, self.X, self.targets, None, loss="log_loss")

    def time_descend(self, n_features: int, batch_size: int, n_problems: int) -> None:
        descend(
            self.weights,
            self.X,
            self.targets,
            1e-9,
            self.preconditioner,
            fit_intercept=True,
        )

    def time_shrink(self, n_features: int, batch_size: int, n_problems: int) -> None:
        shrink(self.weights, 1e-12, self.preconditioner)
