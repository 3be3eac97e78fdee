"""A slow reference that shares no code with the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session")
def average_by_hand() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Model averaging without the package: one scikit-learn estimator per rank."""

    def run(
        twin: Callable[[int, int], Any],
        shards: list[tuple[Any, ...]],
        n_rounds: int,
        pace: float = 1.0,
        shrink: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercepts after some rounds of one pass each.

        `twin` makes the scikit-learn estimator of a rank and a round; a shard is X, y,
        and either None or weights whose mean over all shards is 1. With every row the
        schedule of the learning rate goes on by `pace`. After a pass the mean of the
        coefficients moves towards 0 by `shrink` for each row of a rank.
        """
        solvers = [twin(rank, 0) for rank in range(len(shards))]
        is_classifier = hasattr(solvers[0], "class_weight")
        labels = np.unique(np.concatenate([shard[1] for shard in shards]))
        classes = {"classes": labels} if is_classifier else {}
        shares = [len(y) if s is None else s.sum() for _, y, s in shards]
        merged = {}
        for n_before in range(n_rounds):
            solvers = [twin(rank, n_before) for rank in range(len(shards))]
            for solver, (X, y, s) in zip(solvers, shards, strict=True):
                for name, value in merged.items():
                    setattr(solver, name, value.copy())
                solver.t_ = 1 + pace * n_before * len(y)
                solver.partial_fit(X, y, sample_weight=s, **classes)
            for name in ("coef_", "intercept_"):
                own = [getattr(solver, name) for solver in solvers]
                # The mean of one is exact.
                mean = own[0] if len(own) == 1 else np.average(own, 0, shares)
                if name == "coef_":
                    far = shrink * np.average([len(y) for _, y, _ in shards], 0, shares)
                    mean = np.sign(mean) * np.maximum(np.abs(mean) - far, 0)
                merged[name] = mean.astype(shards[0][0].dtype)
        return merged["coef_"], merged["intercept_"]

    return run
