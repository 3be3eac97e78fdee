"""Columns so far from zero that rounding hides their variance, beside others."""

import warnings
from functools import cache

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes

from dask_ma import (
    ButterflySGDClassifier,
    ButterflySGDRegressor,
    MASGDClassifier,
    MASGDRegressor,
)
from dask_ma.kernels import moment_sums_about
from dask_ma.linear.refine._far_columns import lost_columns, regained_moments

NOW = 1.7e18  # nanoseconds since 1970
SPREADS = {"constant": 0.0, "second": 1e9, "minute": 6e10}
CLASSES = load_breast_cancer(return_X_y=True)
VALUES = load_diabetes(return_X_y=True)


def with_times(X, spread, seed=0):
    rng = np.random.default_rng(seed)
    return np.column_stack([X, NOW + spread * rng.random(len(X))])


def score_in_silence(model, X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return model.fit(X, y).score(X, y)


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
@pytest.mark.parametrize(
    ("cls", "data"),
    [
        (ButterflySGDClassifier, CLASSES),
        (MASGDClassifier, CLASSES),
        (ButterflySGDRegressor, VALUES),
        (MASGDRegressor, VALUES),
    ],
)
def test_times_leave_the_other_columns_as_good(cls, data, spread, n_ranks):
    X, y = data
    model = cls(random_state=0, n_ranks=n_ranks)
    without = score_in_silence(model, X, y)
    assert score_in_silence(model, with_times(X, spread), y) > without - 0.01
    assert np.any(model.coef_[..., -1] != 0) == bool(spread)


@pytest.fixture(scope="module")
def without_times():
    """``without_times(params)``: the score of a fit that has no such column."""

    @cache
    def score(params):
        model = MASGDRegressor(random_state=0, **dict(params))
        return score_in_silence(model, *VALUES)

    return lambda params: score(tuple(params.items()))


@pytest.mark.pairs
@pytest.mark.parametrize("spread", [0.0, 6e10])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize(
    "params",
    [
        {"refine": "lbfgs"},
        {"refine": "newton"},
        {"penalty": "l1"},
        {"penalty": "elasticnet", "refine": "lbfgs"},
        {"penalty": None},
    ],
)
@pytest.mark.filterwarnings("ignore:the refinement ended:UserWarning")
def test_all_methods_and_penalties(params, make, spread, without_times):
    X, y = VALUES
    model = MASGDRegressor(random_state=0, **params)
    without = without_times(params)
    X = make(with_times(X, spread))
    # Rounding of gradients keeps the bound loose that L-BFGS ends by.
    assert model.fit(X, y).score(X, y) > without - 0.01


def test_few_rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 100))
    y = X[:, 0] > 0
    model = ButterflySGDClassifier(random_state=0)
    model.fit(X, y)
    before = model.history_[-1]["objective"]
    assert score_in_silence(model, with_times(X, 0.0), y) == 1
    assert model.history_[-1]["objective"] == pytest.approx(before, rel=2e-3)


def test_values_that_differ_by_their_rounding_alone_are_told_of():
    X, y = VALUES
    near = np.where(np.arange(len(X)) % 2, NOW, np.nextafter(NOW, np.inf))
    model = ButterflySGDRegressor(random_state=0)
    with pytest.warns(UserWarning, match="1 of the features get no weight") as record:
        model.fit(np.column_stack([X, near]), y)
    assert "StandardScaler" in str(record[0].message)
    assert model.coef_[-1] == 0
    assert model.score(np.column_stack([X, near]), y) > 0.5


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_moments_about_a_number(make, is_weighted):
    rng = np.random.default_rng(0)
    X = np.round(NOW + 1e9 * rng.standard_normal((500, 3)))
    weight = rng.random(500) if is_weighted else None
    columns, centre = np.array([0, 2]), np.full(2, NOW)
    found = moment_sums_about(make(X), weight, columns, centre)
    off = X[:, columns] - NOW
    own = np.ones(500) if weight is None else weight
    np.testing.assert_allclose(found, [own @ off, own @ off**2], rtol=1e-12)


def test_only_columns_that_rounding_can_spoil_are_lost():
    # As of a year, of pixels that are all 255, of houses' places, and of nothing.
    mean = np.array([2026.0, 255.0, -119.6, 0.0, NOW])
    square = mean**2 + [0.0, 0.0, 4.0, 0.0, 0.0]
    assert lost_columns(mean, square, 10_000, 1e-4).tolist() == [4]


def test_the_mean_of_a_constant_is_that_to_the_bit():
    mean = np.array([np.nextafter(NOW, np.inf), 1.0])
    about = np.array([[NOW - mean[0]], [(NOW - mean[0]) ** 2]])
    found = regained_moments(mean, mean**2 + [0, 1], np.array([0]), about)
    assert found.mean.tolist() == [NOW, 1.0] and found.note is None
    assert np.isnan(found.variance[0]) and found.variance[1] == 1
