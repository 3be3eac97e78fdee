"""Dictionaries: what codes and an update of the atoms cost."""

from __future__ import annotations

import numpy as np

from dask_ma import SFBDictionaryLearning
from dask_ma.sfb.dictionary._atoms import Statistics, descend_on_atoms
from dask_ma.sfb.dictionary._block import Accuracy
from dask_ma.sfb.dictionary._codes import ROUGH, lasso_codes
from dask_ma.sfb.dictionary._sums import BatchSums

from . import parameterized

N_FEATURES, ALPHA = 64, 0.3


def make_rows(n_rows: int, dtype: str, seed: int = 0) -> np.ndarray:
    """Smooth rows of length 1, as those of images are."""
    rng = np.random.default_rng(seed)
    rows = np.cumsum(rng.normal(size=(n_rows, N_FEATURES)), axis=1)
    rows -= rows.mean(axis=1, keepdims=True)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(dtype)


@parameterized(n_atoms=[128, 256], dtype=["float32", "float64"])
class Codes:
    """Codes of 1,024 rows: roughly, and to a duality gap."""

    def setup(self, n_atoms: int, dtype: str) -> None:
        self.rows = make_rows(1024, dtype)
        self.atoms = make_rows(n_atoms, dtype, seed=1)

    def time_rough(self, n_atoms: int, dtype: str) -> None:
        lasso_codes(self.rows, self.atoms, ALPHA, ROUGH)

    def time_to_a_gap(self, n_atoms: int, dtype: str) -> None:
        lasso_codes(self.rows, self.atoms, ALPHA, Accuracy(1e-3, 1e-4, 100))


@parameterized(algorithm=["greedy_cd", "fista", "cd", "lars"])
class Algorithms:
    """Codes of 128 rows to a duality gap, each way."""

    def setup(self, algorithm: str) -> None:
        self.rows = make_rows(128, "float32")
        self.atoms = make_rows(128, "float32", seed=1)

    def time_to_a_gap(self, algorithm: str) -> None:
        accuracy = Accuracy(1e-3, 1e-4, 1000)
        lasso_codes(self.rows, self.atoms, ALPHA, accuracy, algorithm=algorithm)


@parameterized(n_atoms=[128, 512])
class Atoms:
    """An update of all atoms."""

    def setup(self, n_atoms: int) -> None:
        rows, self.atoms = make_rows(256, "float32"), make_rows(n_atoms, "float32", 1)
        codes = lasso_codes(rows, self.atoms, ALPHA, ROUGH).values
        sums = BatchSums(codes.T @ codes, codes.T @ rows, len(rows), 0.0)
        empty = Statistics.empty(n_atoms, N_FEATURES, rows.dtype)
        self.statistics = empty.added(sums)

    def time_update(self, n_atoms: int) -> None:
        descend_on_atoms(self.atoms, self.statistics)


@parameterized(solver=["online", "sgd"])
class Fit:
    """A pass over 5,000 rows."""

    def setup(self, solver: str) -> None:
        self.rows = make_rows(5000, "float32")

    def time_fit(self, solver: str) -> None:
        model = SFBDictionaryLearning(
            128, alpha=ALPHA, max_iter=1, solver=solver, n_ranks=1, random_state=0
        )
        model.fit(self.rows)
