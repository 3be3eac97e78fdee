"""The duality gap bounds the distance from the optimum, whatever is not penalised."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SchMPLasso, SchMPLogisticRegression
from dask_ma.schmp import schedules

warn_not = pytest.mark.filterwarnings("ignore", category=ConvergenceWarning)


def make_problem(seed):
    """Rows, targets, and parameters of a fit with some features without penalty."""
    rng = np.random.default_rng(seed)
    n, p = int(rng.integers(40, 90)), int(rng.integers(20, 80))
    X = rng.normal(size=(n, p)) * rng.choice([0.1, 1, 1, 5], p)
    X += rng.choice([0.0, 0.0, 2.0], p)
    if seed % 3 == 0:
        X[rng.random(X.shape) < 0.5] = 0
    if seed % 4 == 0:
        X[:, 1] = X[:, 0]  # two columns without penalty that are the same
    kind = ["number", "two", "three"][seed % 3 if seed % 2 else (seed // 2) % 3]
    margin = X[:, :6] @ rng.normal(size=6) + rng.logistic(size=n)
    y = {
        "number": margin,
        "two": (margin > np.median(margin)).astype(int),
        "three": np.digitize(margin, np.quantile(margin, [0.3, 0.6])),
    }[kind]
    factors = rng.choice([0.5, 1.0, 2.0], p)
    factors[: rng.integers(2, 5)] = 0
    params = {
        "alpha": float(rng.choice([0.01, 0.05, 0.2])),
        "l1_ratio": float(rng.choice([1.0, 1.0, 0.5, 0.0])),
        "fit_intercept": bool(rng.random() < 0.7),
        "feature_weights": factors,
        "layout": str(rng.choice(["rows", "columns"])),
        "n_ranks": int(rng.integers(1, 4)),
    }
    weight = rng.uniform(0.2, 2, n) if rng.random() < 0.5 else None
    cls = SchMPLasso if kind == "number" else SchMPLogisticRegression
    return cls, (sparse.csr_array(X) if seed % 5 == 0 else X), y, weight, params


@warn_not
@pytest.mark.parametrize("seed", range(4))
def test_the_gap_is_a_bound(seed, l1_objective):
    """No model has an objective below that of a fit less its gap.

    Any model is a counter-example if there is one; that of a long fit is the best.
    """
    cls, X, y, weight, params = make_problem(seed)
    factors = params["feature_weights"]
    best = cls(**params, tol=1e-8, max_iter=25).fit(X, y, weight)
    low = l1_objective(best, X, y, weight, factors)
    rounding = 1e-11 * (1 + low)
    for settings in (
        {"tol": 5e-2},
        {"tol": 1e-3},
        {"tol": 0, "max_iter": 1},
        {"tol": 1e-3, "schedule": schedules.Dynamic(8), "max_iter": 2},
    ):
        model = cls(**params, **settings, random_state=0).fit(X, y, weight)
        found = l1_objective(model, X, y, weight, factors)
        assert found - low <= model.dual_gap_ + rounding
        assert model.history_[-1]["objective"] == pytest.approx(found, rel=1e-8)
        for record in model.history_:
            assert record["objective"] - low <= record["dual_gap"] + rounding
            assert record["dual_gap"] <= record["objective"] + 1e-12  # 0 is a bound


@pytest.mark.parametrize("seed", range(4))
def test_the_gap_is_closed_nevertheless(seed):
    """A bound alone could be as far off as one likes."""
    cls, X, y, weight, params = make_problem(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = cls(**params, tol=1e-7, max_iter=60).fit(X, y, weight)
    assert model.dual_gap_ <= 1e-7 * 10


@warn_not
def test_coefficients_that_have_no_optimum(l1_objective):
    """A feature without penalty separates the classes: there is no best coefficient."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 8))
    y = (X[:, 0] > 0).astype(int)
    factors = np.array([0.0, *np.ones(7)])
    model = SchMPLogisticRegression(0.05, feature_weights=factors, max_iter=5)
    model.fit(X, y)
    assert l1_objective(model, X, y, None, factors) <= model.dual_gap_ + 1e-9
