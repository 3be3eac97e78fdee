"""What fits of losses with a bounded slope make of a target that is far out."""

import warnings

import numpy as np
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes
from sklearn.metrics import r2_score
from sklearn.preprocessing import RobustScaler, StandardScaler

from dask_ma import ButterflySGDRegressor, MASGDRegressor

BOTH = pytest.mark.parametrize("cls", [ButterflySGDRegressor, MASGDRegressor])
RANKS = pytest.mark.parametrize("n_ranks", [1, 2])
AT = 7  # the target that is far out


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def score_of_others(model, X, y, far):
    """R2 of a fit with a target far out, on the other rows; warnings are errors."""
    targets, others = y.copy(), np.arange(len(y)) != AT
    targets[AT] = far
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, targets)
    return r2_score(y[others], model.predict(X[others]))


@pytest.mark.each
@BOTH
@RANKS
@pytest.mark.parametrize("loss", ["huber", "epsilon_insensitive"])
@pytest.mark.parametrize("far", [1e6, -1e6, 1e8])
def test_others_are_fitted_as_well_as_without_it(diabetes, cls, loss, far, n_ranks):
    X, y = diabetes
    model = cls(loss=loss, random_state=0, n_ranks=n_ranks)
    without = model.fit(X, y).score(X, y)
    assert score_of_others(model, X, y, far) > without - 0.005
    last = model.history_[-1]
    assert last["excess"] <= model.refine_tol


@BOTH
def test_the_fit_ends_at_the_optimum_of_a_hundred_times_the_precision(diabetes, cls):
    X, y = diabetes
    y = y.copy()
    y[AT] = 1e7
    model = cls(loss="epsilon_insensitive", alpha=0.1, random_state=0).fit(X, y)
    value = model.history_[-1]["objective"]
    model.set_params(refine_tol=1e-7).fit(X, y)
    # Of what the others cost, to which the target far out adds thousands.
    assert value - model.history_[-1]["objective"] < 1e-3 * 150


@BOTH
def test_targets_that_are_nearly_all_the_same_have_no_unit(cls):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3))
    y = np.where(np.arange(200) % 50 == 0, 5.0, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = cls(loss="epsilon_insensitive", random_state=0).fit(X, y)
    assert np.abs(model.predict(X)).max() < 0.5


@BOTH
def test_cures_for_a_slope_that_is_too_small_are_such_with_a_target_far_out(cls):
    X, y = load_diabetes(return_X_y=True)
    targets = y.copy()
    targets[AT] = 1e6
    model = cls(loss="huber", random_state=0)
    with pytest.warns(UserWarning, match="values of no model have") as record:
        model.fit(X, targets)
    (note,) = (str(one.message) for one in record)
    assert "RobustScaler" in note
    scaled = TransformedTargetRegressor(model, transformer=RobustScaler())
    assert score_of_others(scaled, X, y, 1e6) > 0.49
    model.set_params(alpha=1e-4 / y.std())
    assert score_of_others(model, X, y, 1e6) > 0.49
