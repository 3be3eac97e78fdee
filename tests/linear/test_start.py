"""The intercept that regressions by SGD start from."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from dask_ma import ButterflySGDRegressor, MASGDRegressor
from dask_ma.losses import Loss

BOTH = pytest.mark.parametrize("cls", [ButterflySGDRegressor, MASGDRegressor])
# No step of theirs leads away from where they start.
STILL = {
    ButterflySGDRegressor: {"eta0": 1e-15, "tol": None, "max_iter": 1},
    MASGDRegressor: {
        "tol": None,
        "max_iter": 1,
        "learning_rate": "constant",
        "eta0": 1e-15,
    },
}


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(return_X_y=True)


@BOTH
@pytest.mark.parametrize("loss", ["huber", "epsilon_insensitive", "squared_error"])
@pytest.mark.parametrize(
    "params",
    [{"refine": None}, {"early_stopping": True}, {"tol": None, "max_iter": 20}],
    ids=str,
)
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.pairs
def test_far_targets_are_fitted_as_near_ones(diabetes, cls, loss, params, n_ranks):
    X, y = diabetes
    model = cls(loss=loss, random_state=0, n_ranks=n_ranks, **params)
    near = model.fit(X, y).predict(X)
    far = model.fit(X, y + 2.0**17).predict(X) - 2.0**17
    assert np.abs(near - y).mean() < 65  # that of the mean is 65.9
    np.testing.assert_allclose(far, near, atol=1e-4 * y.std())


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("rate", ["adaptive", "invscaling"])
def test_butterfly_mixing_starts_from_the_weighted_mean(diabetes, n_ranks, rate):
    X, y = diabetes
    weight = np.random.default_rng(0).exponential(size=len(y))
    weight[::7] = 0.0
    model = ButterflySGDRegressor(
        **STILL[ButterflySGDRegressor], learning_rate=rate, n_ranks=n_ranks
    )
    model.fit(X, y, sample_weight=weight)
    assert model.intercept_ == pytest.approx(np.average(y, weights=weight), rel=1e-12)


def test_model_averaging_starts_from_the_mean_with_steps_by_trial(diabetes):
    X, y = diabetes
    X = np.zeros_like(X)  # so that all that is to be learnt is the mean
    model = MASGDRegressor(loss="huber", max_iter=1, tol=None, n_ranks=2)
    model.fit(X, y + 1e5)
    assert model.intercept_ == pytest.approx(1e5 + y.mean(), abs=y.std())
    # Steps of scikit-learn start where it starts.
    still = MASGDRegressor(**STILL[MASGDRegressor], n_ranks=2).fit(X, y)
    assert abs(still.intercept_) < 1e-9


class Plain(Loss):
    """Half the square of the residual, which nobody knows to be one."""

    def value(self, y, scores):
        return (scores - y) ** 2 / 2

    def slope(self, y, scores):
        return scores - y


@pytest.mark.parametrize(
    ("params", "given"),
    [
        ({"fit_intercept": False}, {}),
        ({"loss": Plain()}, {}),
        ({}, {"coef_init": np.zeros(10)}),
        ({}, {"intercept_init": np.zeros(1)}),
    ],
    ids=["no intercept", "own loss", "coef_init", "intercept_init"],
)
def test_others_start_from_zero(diabetes, params, given):
    params = {**STILL[ButterflySGDRegressor], **params, "n_ranks": 2}
    model = ButterflySGDRegressor(**params).fit(*diabetes, **given)
    assert abs(model.intercept_) < 1e-9


def test_the_first_partial_fit_starts_from_the_mean_of_its_rows(diabetes):
    X, y = diabetes
    model = ButterflySGDRegressor(eta0=1e-15, n_ranks=2)
    for _ in range(2):  # the second goes on from the first
        model.partial_fit(X[:100], y[:100])
        assert model.intercept_ == pytest.approx(y[:100].mean(), rel=1e-12)
        X, y = X[100:], np.r_[y[:100], y[200:]]


def test_a_warm_start_goes_on_from_the_model(diabetes):
    X, y = diabetes
    model = ButterflySGDRegressor(**STILL[ButterflySGDRegressor], n_ranks=2)
    model.fit(X, y).set_params(warm_start=True)
    first = model.intercept_
    assert model.fit(X, y + 50).intercept_ == pytest.approx(first, abs=1e-9)
