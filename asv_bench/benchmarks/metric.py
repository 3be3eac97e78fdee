"""Learnt distances: what a pass over rows or pairs costs."""

from __future__ import annotations

import numpy as np

from dask_ma import SFBMetricLearner

from . import parameterized

N_ROWS, N_FEATURES, N_COMPONENTS = 5_000, 500, 50


def make_rows() -> tuple[np.ndarray, np.ndarray]:
    """Rows of ten classes that differ in some columns."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, N_ROWS)
    X = rng.normal(size=(N_ROWS, N_FEATURES)).astype(np.float32)
    X[:, :20] += rng.normal(size=(10, 20))[y]
    return X, y


@parameterized(loss=["nca", "hinge", "logistic", "triplet"])
class Labels:
    """Time of computing of a pass over rows, with all pairs of a batch."""

    def track_nanoseconds_per_row(self, loss: str) -> float:
        learner = SFBMetricLearner(
            N_COMPONENTS, loss=loss, max_iter=4, tol=None, n_ranks=1, random_state=0
        )
        history = learner.fit(*make_rows()).history_
        seconds = np.median([record["seconds_computing"] for record in history[1:]])
        return float(seconds) / N_ROWS * 1e9


@parameterized(loss=["nca", "hinge", "logistic", "triplet"])
class Weights:
    """Time of computing of a pass over rows, of which features are weighed."""

    def track_nanoseconds_per_row(self, loss: str) -> float:
        learner = SFBMetricLearner(
            metric_form="diagonal",
            loss=loss,
            max_iter=4,
            tol=None,
            n_ranks=1,
            random_state=0,
        )
        history = learner.fit(*make_rows()).history_
        seconds = np.median([record["seconds_computing"] for record in history[1:]])
        return float(seconds) / N_ROWS * 1e9


@parameterized(loss=["hinge", "logistic"])
class Pairs:
    """Time of computing of a pass over pairs of rows."""

    def track_nanoseconds_per_pair(self, loss: str) -> float:
        X, y = make_rows()
        pairs = np.random.default_rng(1).integers(0, N_ROWS // 2, (20_000, 2))
        pairs[:, 1] += N_ROWS // 2
        labels = np.where(y[pairs[:, 0]] == y[pairs[:, 1]], 1, -1)
        learner = SFBMetricLearner(
            N_COMPONENTS, loss=loss, max_iter=4, tol=None, n_ranks=1, random_state=0
        )
        history = learner.fit(X, pairs=pairs, pair_labels=labels).history_
        seconds = np.median([record["seconds_computing"] for record in history[1:]])
        return float(seconds) / len(pairs) * 1e9
