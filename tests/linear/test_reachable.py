"""What a fit says of targets that are too large or too small for its loss."""

import re
import warnings

import dask.array as da
import numpy as np
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler

from dask_ma import ButterflySGDRegressor, MASGDRegressor

BOTH = pytest.mark.parametrize("cls", [ButterflySGDRegressor, MASGDRegressor])
TUBES = ["epsilon_insensitive", "squared_epsilon_insensitive"]


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(return_X_y=True)


def score_in_silence(model, X, y):
    """R2 of a fit that warns of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return model.fit(X, y).score(X, y)


@pytest.mark.pairs
@BOTH
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize(
    ("loss", "factor"), [("huber", 1.0), ("epsilon_insensitive", 1e3)]
)
def test_targets_too_large_for_the_slope_of_the_loss(
    diabetes, cls, n_ranks, loss, factor
):
    X, y = diabetes
    y = factor * y
    model = cls(loss=loss, random_state=0, n_ranks=n_ranks)
    with pytest.warns(UserWarning, match="values of no model have") as record:
        assert model.fit(X, y).score(X, y) < 0.1
    (note,) = record
    most = float(re.search(r"above ([\d.e+]+)", str(note.message))[1])
    assert model.predict(X).std() <= most
    # Each cure that it names is one.
    scaled = TransformedTargetRegressor(model, transformer=StandardScaler())
    assert score_in_silence(scaled, X, y) > 0.49
    model.set_params(alpha=1e-4 / y.std())
    assert score_in_silence(model, X, y) > 0.49
    if loss == "huber":
        assert "raise epsilon" in str(note.message)
        model.set_params(alpha=1e-4, epsilon=y.std())
        assert score_in_silence(model, X, y) > 0.49


@BOTH
def test_targets_that_are_sorted_are_judged_by_those_of_all_ranks(diabetes, cls):
    order = np.argsort(diabetes[1])
    model = cls(loss="huber", random_state=0, n_ranks=3)
    with pytest.warns(UserWarning, match="values of no model have"):
        model.fit(*(da.from_array(part[order], chunks=50) for part in diabetes))


@pytest.mark.pairs
@BOTH
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("loss", TUBES)
def test_targets_too_small_for_the_tube_of_the_loss(diabetes, cls, n_ranks, loss):
    X, y = diabetes
    y = 1e-9 * y
    model = cls(loss=loss, random_state=0, n_ranks=n_ranks)
    with pytest.warns(UserWarning, match="counts no residual below epsilon=0.1"):
        assert model.fit(X, y).score(X, y) < 0.1
    scaled = TransformedTargetRegressor(model, transformer=StandardScaler())
    assert score_in_silence(scaled, X, y) > 0.49
    model.set_params(epsilon=0.1 * y.std())
    assert score_in_silence(model, X, y) > 0.49


@pytest.mark.each
@BOTH
@pytest.mark.parametrize("loss", ["huber", *TUBES])
def test_constant_targets_and_a_few_far_off_are_fitted_in_silence(diabetes, cls, loss):
    X, y = diabetes
    model = cls(loss=loss, random_state=0)
    for constant in (5.0, 1e-9):
        score_in_silence(model, X, np.full(len(y), constant))
        np.testing.assert_allclose(model.predict(X), constant, atol=0.101)
    if loss in TUBES[1:]:
        return  # its slopes have no bound
    y = (y - y.mean()) / y.std()
    far = y.copy()
    far[3] = 1e4
    score_in_silence(model, X, far)
    assert model.score(X[4:], y[4:]) > 0.45
