"""Refinements of targets far from zero, and of any unit."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler

from dask_ma import ButterflySGDRegressor, MASGDRegressor

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
