"""Bounds of the steps of partial_fit, and features far from zero."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits

from dask_ma import ButterflySGDClassifier, ButterflySGDRegressor
from dask_ma.butterfly import _lazy_steps, _plan, _steps
from dask_ma.butterfly._bounds import about, bounded_change, center_of
from dask_ma.butterfly._params import Moments
from dask_ma.butterfly._steps import add_moments
from dask_ma.kernels import feature_moments, feature_sums
from dask_ma.supervised import Piece


def stream(model, X, y, n_calls, n_times=1):
    """Calls with parts of the rows, none of which may warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for part in n_times * np.array_split(np.arange(len(y)), n_calls):
            model.partial_fit(X[part], y[part])
    return model


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], y[order].astype(float)


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("n_calls", [3, 6, 13, 30])
def test_pixels_are_a_stream_for_regression(digits, n_calls, n_ranks):
    """Far from zero and like each other: up to an R2 of -7e55, with warnings."""
    model = ButterflySGDRegressor(random_state=0, n_ranks=n_ranks)
    assert stream(model, *digits, n_calls).score(*digits) > 0.4


@pytest.mark.parametrize(
    ("preconditioner", "least"), [("jacobi", 0.4), ("frequency", -0.1), (None, 0.4)]
)
def test_so_they_are_with_other_preconditioners(digits, preconditioner, least):
    """Steps were not bounded at all without one, and left no finite model."""
    model = ButterflySGDRegressor(
        preconditioner=preconditioner, random_state=0, n_ranks=1
    )
    assert stream(model, *digits, 13).score(*digits) > least


@pytest.mark.parametrize("preconditioner", ["bounded", None])
def test_the_length_follows_the_largest_curvature(preconditioner):
    """Features that are all alike have as much of it as there are features."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.choice([-1.0, 1.0], size=(640, 1)), 50, axis=1)
    model = ButterflySGDRegressor(
        preconditioner=preconditioner, batch_size=64, random_state=0, n_ranks=2
    )
    model.partial_fit(X, X[:, 0])
    # Of 320 rows of each rank it is found from every other one.
    on_batch = (50**0.5 - (51 / 160) ** 0.5 + (51 / 64) ** 0.5) ** 2
    assert model.history_[0]["eta"] == pytest.approx(1.25 / on_batch, rel=0.01)
    assert model.eta_ == 1
    # Features that have nothing in common have that of one, and of a batch.
    X = rng.choice([-1.0, 1.0], size=(640, 50))
    model = clone(model).partial_fit(X, X[:, 0])
    on_batch = (1 + (51 / 64) ** 0.5) ** 2
    assert model.history_[0]["eta"] == pytest.approx(1.25 / on_batch, rel=0.1)
    # Whatever the rows are, the trace is enough for the least of batches.
    model = clone(model).set_params(batch_size=1).partial_fit(X, X[:, 0])
    assert model.history_[0]["eta"] == pytest.approx(1 / 51)


@pytest.mark.pairs
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [3, 100])
def test_features_far_from_zero_are_learned(offset, dtype, n_ranks):
    """As fast as if they were not; on one rank they led to an R2 of -1e37."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 30))
    y = X @ rng.normal(size=30)
    X = (X + offset).astype(dtype)
    model = ButterflySGDRegressor(random_state=0, n_ranks=n_ranks)
    assert stream(model, X, y, 20).score(X, y) > 0.98


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_they_are_learned_as_those_about_zero_are(n_ranks):
    """The penalty counts as much, and the intercept makes up for the means alone."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    X -= X.mean(axis=0)
    y, means = X @ rng.normal(size=5) + 4, np.arange(5, 10.0)
    params = {"alpha": 0.3, "random_state": 0, "n_ranks": n_ranks}
    near = stream(ButterflySGDRegressor(**params), X, y, 1)
    far = stream(ButterflySGDRegressor(**params), X + means, y, 1)
    np.testing.assert_allclose(far.coef_, near.coef_, rtol=1e-9)
    np.testing.assert_allclose(
        far.intercept_, near.intercept_ - means @ near.coef_, rtol=1e-9
    )


def test_columns_that_vary_late_are_left_to_the_intercept_before():
    """They had a part of the weight of the intercept, and led to an R2 of -40."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 10))
    y = X @ rng.normal(size=10) + 3
    X = np.column_stack([X, np.full((1200, 4), -0.03)])
    late = rng.permutation(600)[:4] + 600
    X[late, np.arange(10, 14)] = 30.0
    model = ButterflySGDRegressor(random_state=0, n_ranks=1)
    before = stream(model, X[:600], y[:600], 6).coef_[10:].copy()
    np.testing.assert_array_equal(before, 0)
    assert stream(model, X[600:], y[600:], 6).score(X, y) > 0.9


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_row_far_larger_than_others_does_not_run_away(is_sparse):
    """Batches with such a row curve the loss far more than others."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 20)) * (rng.random((1500, 20)) < 0.5)
    w = rng.normal(size=20)
    X[::150] *= 300
    y, model = X @ w, ButterflySGDRegressor(random_state=0, n_ranks=1)
    stream(model, sparse.csr_array(X) if is_sparse else X, y, 5)
    assert np.linalg.norm(model.coef_ - w) < 2 * np.linalg.norm(w)


def test_classes_one_by_one_have_bounds_of_their_own():
    """Each class has its own steps, and its rows their weights in these."""
    X, y = load_digits(return_X_y=True)
    model = ButterflySGDClassifier(
        "squared_hinge", class_weight={0: 1e4}, random_state=0, n_ranks=1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for part in np.array_split(np.arange(len(y)), 13):
            model.partial_fit(X[part], y[part], classes=np.arange(10))
    assert model.score(X, y) > 0.75
    assert abs(model.coef_[0]).max() < 0.5


def test_no_step_of_other_losses_and_of_fits_changes(digits, monkeypatch):
    """Nothing of it touches slopes with a bound, nor passes that may be taken back."""
    X, y = digits
    params = {"random_state": 0, "n_ranks": 2}

    def results():
        huber = ButterflySGDRegressor("huber", **params).partial_fit(X, y)
        fitted = ButterflySGDRegressor(refine=None, tol=None, max_iter=3, **params)
        fitted.fit(X, y)
        return huber.coef_, fitted.coef_

    expected = results()
    monkeypatch.setattr(_plan, "center_of", None)
    monkeypatch.setattr(_plan, "bounded_length", None)
    monkeypatch.setattr(_steps, "bounded_change", None)
    for found, coef in zip(results(), expected, strict=True):
        np.testing.assert_array_equal(found, coef)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_few_elements_are_followed_as_all_weights_are(monkeypatch, n_ranks):
    rng = np.random.default_rng(0)
    X = sparse.random_array((600, 40_000), density=2e-4, rng=rng, format="csr")
    X.data *= 30  # steps meet their bounds
    y = X @ rng.normal(size=40_000)
    params = {"random_state": 0, "n_ranks": n_ranks, "alpha": 0.01}
    lazy = stream(ButterflySGDRegressor(**params), X, y, 4)
    monkeypatch.setattr(_lazy_steps, "is_small", lambda *args: False)
    whole = stream(ButterflySGDRegressor(**params), X, y, 4)
    np.testing.assert_allclose(lazy.coef_, whole.coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(lazy.intercept_, whole.intercept_, rtol=1e-7)


def test_ranks_without_rows_take_part(digits):
    X, y = digits
    model = ButterflySGDRegressor(random_state=0, n_ranks=3)
    model.partial_fit(X[:2], y[:2]).partial_fit(X[2:4], y[2:4])
    assert np.isfinite(model.coef_).all()


def moments_of(X):
    sums = np.vstack([feature_moments(X, None), feature_sums(X, None)])
    return Moments(sums, float(len(X)))


def test_features_far_from_zero_are_found(params_of):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4)) + [0, 0.3, 1, -50]
    center = center_of(moments_of(X), params_of())
    np.testing.assert_allclose(center, [0, 0, *X[:, 2:].mean(axis=0)])
    assert center_of(moments_of(X[:, :2]), params_of()) is None
    # Of a few rows every feature may be far by chance.
    assert center_of(moments_of(X[:4]), params_of()) is None
    # Without an intercept, or sums, there is nothing to take them about.
    assert center_of(moments_of(X), params_of(fit_intercept=False)) is None
    without = moments_of(X)
    without = without._replace(sums=without.sums[:2])
    assert center_of(without, params_of()) is None


def test_sums_whose_squares_overflow_say_nothing():
    """No warning of NumPy's, and a model all the same."""
    rng = np.random.default_rng(0)
    X = 1e153 * (1 + rng.normal(size=(300, 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ButterflySGDRegressor(random_state=0, n_ranks=1)
        model.partial_fit(X, X[:, 0] / 1e153)
    assert np.isfinite(model.coef_).all()


def test_moments_about_means():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3)) * (rng.random((50, 3)) < 0.7) + [0, 5, -5e3]
    X = np.column_stack([X, np.full(50, 0.1)])
    center = np.where(np.arange(4) == 0, 0, X.mean(axis=0))
    found = about(moments_of(X), center)
    expected = feature_moments(X - center, None)
    expected[1, 3] = 0.0  # but for rounding
    np.testing.assert_allclose(found.sums[0], [expected[0, 0], 50, 50, 50])
    np.testing.assert_allclose(found.sums[1], expected[1], rtol=1e-7)
    assert about(moments_of(X), None).sums.shape == (3, 4)


def test_rows_before_may_have_been_sparse():
    X = np.arange(6.0).reshape(3, 2)
    dense, without = moments_of(X), Moments(feature_moments(X, None), 3.0)
    expected = np.vstack([2 * dense.sums[:2], dense.sums[2:]])
    for pair in ((dense, without), (without, dense)):
        found = add_moments(*pair)
        np.testing.assert_array_equal(found.sums, expected)
        assert found.total == 6.0


@pytest.mark.parametrize("with_center", [False, True])
@pytest.mark.parametrize("length", [1e-6, 1e6])
def test_a_change_ends_at_the_least_loss_of_its_line(params_of, length, with_center):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(9, 4)) + 2, rng.normal(size=9)
    s, H = rng.random(9), rng.random(4)
    m = X.mean(axis=0) if with_center else np.zeros(4)
    weights = rng.normal(size=(5, 1))
    residuals = X @ weights[:-1, 0] + weights[-1, 0] - y
    batch = [
        Piece(X[rows], y[rows], s[rows], np.arange(9)[rows])
        for rows in (slice(0, 5), slice(5, 9))
    ]
    slopes = [(s * residuals)[rows, None] for rows in (slice(0, 5), slice(5, 9))]
    found = bounded_change(
        weights, batch, slopes, length, 0.3, H, m if with_center else None, params_of()
    )
    # A step of the model of ``X - m``, and what it is for that of X.
    coef = -0.3 * H * ((X - m).T @ (s * residuals))
    intercept = -0.3 * (s @ residuals) - m @ coef
    line = X @ coef + intercept
    best = -(s * residuals) @ line / (s @ line**2)
    expected = min(length, best) * np.append(coef, intercept)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-10)


@pytest.fixture
def params_of():
    """Parameters of a call of partial_fit."""

    def make(**changes):
        model = ButterflySGDRegressor(**changes)
        return model._make_params(None, **model._partial_changes())

    return make
