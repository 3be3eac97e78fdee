"""Problems with an L1 penalty, and their objectives written out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy import sparse, special
from sklearn.linear_model import LogisticRegression

from dask_ma.kernels import _gibbs_tiles

Targets = dict[str, np.ndarray]
_FEWEST_TILES = _gibbs_tiles._FEWEST_TILES


@pytest.fixture(scope="module")
def few_tiles() -> Iterator[None]:
    """A small corpus is drawn in 32 tiles, which take all of the time, and not in 128.

    Processes of workers know nothing of it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_gibbs_tiles, "_FEWEST_TILES", 32)
        yield


@pytest.fixture
def as_workers_do(few_tiles: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tiles in this process as in others."""
    monkeypatch.setattr(_gibbs_tiles, "_FEWEST_TILES", _FEWEST_TILES)


@pytest.fixture(scope="session")
def wide() -> Targets:
    """60 rows of 90 columns, some of them far from 0, and targets of some columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 90)) + 3.0 * (np.arange(90) % 7 == 0)
    X[rng.random(X.shape) < 0.3] = 0
    number = X[:, :5] @ [1, -2, 3, 1, -1] + rng.normal(size=60) + 5
    thirds = np.quantile(number, [1 / 3, 2 / 3])
    return {
        "X": X,
        "number": number,
        "two": (number > np.median(number)).astype(int),
        "three": np.digitize(number, thirds),
        "weight": rng.uniform(0.5, 2, 60),
    }


@pytest.fixture(scope="session")
def l1_objective() -> Callable[..., float]:
    """``l1_objective(model, X, y, weight=None, feature_weights=None)``, by formulas."""

    def evaluate(
        model: Any,
        X: Any,
        y: np.ndarray,
        weight: np.ndarray | None = None,
        feature_weights: np.ndarray | None = None,
        **params: float,
    ) -> float:
        X = X.toarray() if sparse.issparse(X) else np.asarray(X)
        X = X.astype(np.float64)
        params = {"alpha": 1.0, "l1_ratio": 1.0, **model.get_params(), **params}
        coef = np.atleast_2d(model.coef_).astype(np.float64)
        margins = X @ coef.T + model.intercept_
        if not hasattr(model, "classes_"):
            losses = (np.asarray(y) - margins[:, 0]) ** 2 / 2
        else:
            codes = np.searchsorted(model.classes_, y)
            if margins.shape[1] == 1:
                margins = np.hstack([0 * margins, margins])
            own = margins[np.arange(len(y)), codes]
            losses = special.logsumexp(margins, axis=1) - own
        f = 1.0 if feature_weights is None else feature_weights
        ratio = params["l1_ratio"]
        bent = ratio * np.abs(coef) + (1 - ratio) / 2 * coef**2
        return float(
            np.average(losses, weights=weight) + params["alpha"] * (f * bent).sum()
        )

    return evaluate


@pytest.fixture(scope="session")
def logistic() -> Callable[..., LogisticRegression]:
    """``logistic(X, y, alpha, l1_ratio, weight, fit_intercept)`` of scikit-learn."""

    def fit(
        X: Any,
        y: np.ndarray,
        alpha: float,
        l1_ratio: float = 1.0,
        weight: np.ndarray | None = None,
        **params: Any,
    ) -> LogisticRegression:
        X = (
            X.toarray() if sparse.issparse(X) else X
        )  # for sparse X it takes short steps
        total = len(y) if weight is None else weight.sum()
        model = LogisticRegression(
            C=1 / (alpha * total),
            l1_ratio=l1_ratio,
            solver="saga",
            random_state=0,
            **{"tol": 1e-7, "max_iter": 20_000, **params},
        )
        # Versions before 1.8 take the kind of penalty apart from the ratio.
        if model.get_params()["penalty"] == "l2":
            model.set_params(penalty="elasticnet")
        return model.fit(X, y, sample_weight=weight)

    return fit
