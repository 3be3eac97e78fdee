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
@pytest.mark.each
def test_how_far_the_targets_are_makes_no_difference(
    diabetes, cls, loss, params, n_ranks
):
    X, y = diabetes
    model = cls(loss=loss, random_state=0, n_ranks=n_ranks, **params)
    near = model.fit(X, y + 2.0**10).predict(X) - 2.0**10
    far = model.fit(X, y + 2.0**17).predict(X) - 2.0**17
    assert np.abs(near - y).mean() < 65  # that of the mean is 65.9
    np.testing.assert_allclose(far, near, atol=1e-4 * y.std())


def weights_of(y):
    """Weights, some of them zero."""
    weight = np.random.default_rng(0).exponential(size=len(y))
    weight[::7] = 0.0
    return weight


def moments(y):
    """Mean and deviation of targets by the weights."""
    weight = weights_of(y)
    mean = np.average(y, weights=weight)
    return mean, np.sqrt(np.average((y - mean) ** 2, weights=weight))


def start_of(X, y, **params):
    """Intercept of a fit whose steps lead nowhere."""
    model = ButterflySGDRegressor(**STILL[ButterflySGDRegressor] | params)
    return model.fit(X, y, sample_weight=weights_of(y)).intercept_


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("rate", ["adaptive", "invscaling"])
@pytest.mark.parametrize("sign", [1, -1])
def test_fits_start_from_a_weighted_mean_that_is_far(diabetes, n_ranks, rate, sign):
    X, y = diabetes
    mean, spread = moments(y)
    params = {"learning_rate": rate, "n_ranks": n_ranks}
    level = sign * 4.01 * spread
    assert start_of(X, y - mean + level, **params) == pytest.approx(level, rel=1e-12)
    assert abs(start_of(X, y - mean + 0.99 * level, **params)) < 1e-9


@pytest.mark.parametrize("loss", ["epsilon", "squared_epsilon"])
def test_a_tube_counts_as_spread(diabetes, loss):
    X, y = diabetes
    mean, spread = moments(y)
    y = y - mean + 6 * spread
    params = {"loss": f"{loss}_insensitive", "n_ranks": 1}
    assert start_of(X, y, **params) == pytest.approx(6 * spread, rel=1e-12)
    assert abs(start_of(X, y, **params, epsilon=0.6 * spread)) < 1e-9
    others = {"loss": "huber", "n_ranks": 1, "epsilon": 0.6 * spread}
    assert start_of(X, y, **others) == pytest.approx(6 * spread, rel=1e-12)


@pytest.mark.parametrize("value", [0.1, -1e5 - 0.1, 1e-150, 1e150])
def test_targets_that_are_all_the_same(diabetes, value):
    X, _ = diabetes
    level = start_of(X, np.full(len(X), value), n_ranks=2)
    assert level == pytest.approx(value, rel=1e-12)


@BOTH
@pytest.mark.parametrize(
    "params",
    [{"refine": None}, {"early_stopping": True}, {"tol": None, "max_iter": 20}],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:early_stopping has ended the fit:UserWarning")
def test_ordinary_targets_are_fitted_from_zero(cls, params):
    """Columns that are not centred took longer from the mean."""
    X, y = load_diabetes(return_X_y=True, scaled=False)
    model = cls(random_state=0, n_ranks=1, **params)
    own = model.fit(X, y).coef_
    np.testing.assert_array_equal(own, model.fit(X, y, intercept_init=[0.0]).coef_)


@pytest.mark.pairs
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("loss", ["huber", "squared_error", "epsilon_insensitive"])
@pytest.mark.parametrize("value", [3.0, 1e5 + 0.1])
@pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")
def test_a_start_that_fits_all_rows_ends_the_fit(diabetes, loss, value, n_ranks):
    """It took all rounds there are, and a warning said that more were needed."""
    X, _ = diabetes
    y = np.full(len(X), value)
    params = {"loss": loss, "n_ranks": n_ranks}
    if loss == "epsilon_insensitive":
        params["epsilon"] = 0.0
    model = MASGDRegressor(**params, refine=None, random_state=0)
    model.fit(X, y)
    assert len(model.history_) <= 30
    np.testing.assert_allclose(model.predict(X), y)


def test_model_averaging_starts_from_the_mean_with_steps_by_trial(diabetes):
    X, y = diabetes
    X = np.zeros_like(X)  # so that all that is to be learnt is the mean
    model = MASGDRegressor(loss="huber", max_iter=1, tol=None, n_ranks=2)
    model.fit(X, y + 1e5)
    assert model.intercept_ == pytest.approx(1e5 + y.mean(), abs=y.std())
    # Steps of scikit-learn start where it starts.
    still = MASGDRegressor(**STILL[MASGDRegressor], n_ranks=2).fit(X, y + 1e5)
    assert abs(still.intercept_) < 1e-6


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
    X, y = diabetes[0], diabetes[1] + 1e3
    model = ButterflySGDRegressor(**params).fit(X, y, **given)
    assert abs(model.intercept_) < 1e-9


def test_the_first_partial_fit_starts_from_the_mean_of_its_rows(diabetes):
    X, y = diabetes[0], diabetes[1] + 1e3
    model = ButterflySGDRegressor(eta0=1e-15, n_ranks=2)
    for _ in range(2):  # the second goes on from the first
        model.partial_fit(X[:100], y[:100])
        assert model.intercept_ == pytest.approx(y[:100].mean(), rel=1e-12)
        X, y = X[100:], np.r_[y[:100], y[200:]]


def test_a_warm_start_goes_on_from_the_model(diabetes):
    X, y = diabetes[0], diabetes[1] + 1e3
    model = ButterflySGDRegressor(**STILL[ButterflySGDRegressor], n_ranks=2)
    model.fit(X, y).set_params(warm_start=True)
    first = model.intercept_
    assert model.fit(X, y + 50).intercept_ == pytest.approx(first, abs=1e-9)
