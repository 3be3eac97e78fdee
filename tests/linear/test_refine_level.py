"""Refinements of targets far from zero, and of any unit."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

from dask_ma import ButterflySGDRegressor, MASGDClassifier, MASGDRegressor
from dask_ma.linear.refine._coordinates import Coordinates, Penalty

LOSSES = ("huber", "epsilon_insensitive")
PLACES = {
    "passes before": lambda **params: ButterflySGDRegressor(**params),
    "steps that are too short": lambda **params: MASGDRegressor(
        learning_rate="invscaling", **params
    ),
    "from zero": lambda **params: MASGDRegressor(max_iter=0, refine="lbfgs", **params),
    "two ranks": lambda **params: ButterflySGDRegressor(n_ranks=2, **params),
}


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True, scaled=False)
    return StandardScaler().fit_transform(X), y


def objective(model):
    return model.history_[-1]["objective"]


@pytest.mark.each
@pytest.mark.parametrize("level", [1e3, 1e5, -1e5])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("place", PLACES)
def test_targets_anywhere_end_at_the_same_optimum(diabetes, place, loss, level):
    X, y = diabetes
    make = PLACES[place]
    near = make(loss=loss, refine_tol=1e-6, random_state=0).fit(X, y)
    far = make(loss=loss, random_state=0).fit(X, y + level)
    assert objective(far) <= 1.001 * objective(near)
    assert far.score(X, y + level) > 0.5
    # As many rounds as nearer ones, and not in proportion to the level.
    assert far.n_iter_ < 80


@pytest.mark.filterwarnings("ignore:with loss='huber'")  # it is right
@pytest.mark.each
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("place", PLACES)
def test_targets_of_a_large_unit(diabetes, place, loss):
    X, y = diabetes
    make = PLACES[place]
    model = make(loss=loss, random_state=0).fit(X, 1e3 * y)
    exact = MASGDRegressor(loss, refine_tol=1e-8, random_state=0).fit(X, 1e3 * y)
    assert objective(model) <= 1.001 * objective(exact)


@pytest.mark.parametrize("level", [0.0, 7.5, 1e6])
def test_targets_that_are_all_the_same(diabetes, level):
    X, _ = diabetes
    y = np.full(len(X), level)
    for loss in ("squared_error", *LOSSES):
        model = ButterflySGDRegressor(loss, random_state=0)
        error = np.abs(model.fit(X, y).predict(X) - y).max()
        assert error <= 0.2


@pytest.mark.parametrize("make", [ButterflySGDRegressor, MASGDRegressor])
def test_values_within_a_wide_tube_are_not_left(make):
    """Few targets are far, and a value between them and the others is the best."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 3))
    y = 1.2 * (rng.uniform(size=3000) < 0.004) + 0.01 * rng.normal(size=3000)
    params = {"loss": "epsilon_insensitive", "epsilon": 0.55, "random_state": 0}
    with pytest.warns(ConvergenceWarning):  # one round is too few
        model = make(**params, max_iter=50, refine_max_iter=1).fit(X, y)
    history = model.history_
    ended = [r["objective"] for r in history if not r.get("refined")][-1]
    assert objective(model) <= ended
    best = objective(make(**params).fit(X, y))
    assert history[-1]["excess"] >= (1 - best / objective(model)) * (1 - 1e-6)


@pytest.mark.parametrize("reach", [None, 1.0])
def test_only_what_is_known_to_be_far_is_left(reach):
    """As for rare classes, or a loss of one's own, where nobody knows."""
    coordinates = Coordinates(
        np.zeros(2),
        np.ones(2),
        Penalty(1e-3, 0.0),
        np.zeros(1),
        fit_intercept=True,
        reach=reach,
    )
    assert coordinates.is_far(np.array([[0.0, 0.0, 4.5]])) is (reach is not None)
    assert not coordinates.is_far(np.array([[9.0, 9.0, 3.5]]))


def test_rare_classes_keep_the_model_of_their_rounds():
    """Its value at the means of the features is far from zero, and right."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 5))
    y = (rng.uniform(size=4000) < 0.002).astype(int)
    best = MASGDClassifier("log_loss", alpha=1e-6, random_state=0).fit(X, y)
    model = MASGDClassifier("log_loss", alpha=1e-6, max_iter=0, refine="lbfgs")
    model.fit(X, y, coef_init=best.coef_, intercept_init=best.intercept_)
    assert abs(best.intercept_[0]) > 4
    assert model.history_[0]["objective"] <= objective(best) * (1 + 1e-9)
