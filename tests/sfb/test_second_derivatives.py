"""Steps with second derivatives of all pairs: weak penalties, and rare features."""

import warnings

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from dask_ma import SFBLogisticRegression
from dask_ma.sfb.logistic._newton import Sample


def fit(X, y, **params):
    model = SFBLogisticRegression(random_state=0).set_params(**params)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return model.fit(X, y)


@pytest.mark.parametrize(
    ("params", "most"),
    [({"penalty": "l1"}, 100), ({"penalty": "elasticnet", "l1_ratio": 0.5}, 25)],
    ids=str,
)
def test_a_weak_l1_part(params, most):
    """Features are much alike, and the dual point is feasible near the optimum only."""
    X, y = load_breast_cancer(return_X_y=True)
    model = fit(scale(X), y, alpha=1e-7, **params)
    assert model.dual_gap_ <= 1e-3 * model.history_[-1]["objective"]
    assert model.n_iter_ <= most


def test_what_rounding_hides_still_counts_for_the_bound():
    """The objective falls no more; what is left of the gradient is much of the gap."""
    rng = np.random.RandomState(0)
    X = rng.normal(size=(2000, 15)) @ rng.normal(size=(15, 15))
    y = X[:, 0] + rng.normal(size=2000) > 1.5
    order = np.argsort(y, kind="stable")
    model = fit(X[order], y[order], alpha=1e-8, penalty="l1")
    assert model.dual_gap_ <= 1e-6 * model.history_[-1]["objective"]


# Rare features ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rare_rows():
    """30,000 sparse rows; some features have no element in one row of three."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=(30_000, 5))
    rare = np.zeros((30_000, 5))
    for feature in range(5):
        rows = 1 + 3 * rng.choice(9_999, size=12, replace=False)
        rare[rows + rng.integers(0, 2, size=12), feature] = 1
    y = common[:, 0] + rng.logistic(size=30_000) > 0
    return sparse.csr_array(np.hstack([common, rare])), y


@pytest.mark.parametrize(
    "params",
    [
        {"alpha": 1e-7},
        {"alpha": 1e-7, "penalty": "elasticnet", "l1_ratio": 0.5},
        {"alpha": 0},
    ],
    ids=str,
)
def test_rare_features(rare_rows, params):
    """One row of three does not tell of them."""
    model = fit(*rare_rows, tol=1e-4, **params)
    assert model.n_iter_ <= 16
    # Without the common ones, they are as likely as they are: no other feature.
    X, y = rare_rows
    assert np.abs(model.coef_[0, :5]).max() < 2
    margins = X @ model.coef_[0] + model.intercept_
    slopes = X.T @ (1 / (1 + np.exp(-margins)) - y) / len(y)
    assert np.abs(slopes).max() < 2e-5


def test_a_sample_of_rows():
    sample = Sample(1_000_000, {})
    assert sample.stride(10) == 100 and sample.stride(1000) == 20
    sample.note(100, 0.3)
    assert sample.stride(10) == 100
    sample.note(100, 0.1)
    assert sample.stride(10) == 25
    assert Sample(1_000_000, sample.state_dict()).stride(10) == 25
    sample.note(1, 0.1)  # all rows have been looked at
    assert sample.stride(10) == 25
    for _ in range(9):
        sample.note(2, 0.0)
    assert sample.stride(10) == 1


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_resumed_fit(rare_rows, interrupted, tmp_path, n_ranks):
    params = {"alpha": 1e-7, "tol": 1e-4, "n_ranks": n_ranks}
    whole = fit(*rare_rows, **params)
    assert whole.n_iter_ > 4
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(4):
            fit(*rare_rows, **params)
        resumed = fit(*rare_rows, **params)
    assert resumed.n_iter_ == whole.n_iter_
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
