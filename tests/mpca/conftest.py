"""Images of digits, and what tests of the estimators share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dask_ma.mpca._estimator import MPCAEstimator

STRATEGIES = [
    "mpca",
    "gradients",
    "synchronous",
    "easgd",
    "parameter_server",
    "local",
]


class Digits:
    """Rows to train on, and others to score models with."""

    def __init__(self) -> None:
        X, y = load_digits(return_X_y=True)
        self.train = X[:900] / 16, y[:900]
        self.test = X[900:] / 16, y[900:]


@pytest.fixture(scope="session")
def digits() -> Digits:
    """Images of 64 pixels between 0 and 1, ten classes."""
    return Digits()


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> str:
    """Each way of sharing what is learnt in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def check_same() -> Callable[..., None]:
    """``check_same(model, other, rtol=0.0)``: bits, or the same but for rounding."""

    def check(model: Any, other: Any, rtol: float = 0.0) -> None:
        for name in ("coefs_", "intercepts_"):
            pairs = zip(getattr(model, name), getattr(other, name), strict=True)
            for ours, theirs in pairs:
                np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)
                assert ours.dtype == theirs.dtype

    return check


@pytest.fixture
def undealt(monkeypatch):
    """Rows in memory go to the ranks in runs, as blocks of Dask do, to compare both."""
    monkeypatch.setattr(MPCAEstimator, "_deal", "never")
