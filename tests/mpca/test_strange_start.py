"""What a warm start says of rows that are unlike those of the fit before."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_wine
from sklearn.preprocessing import StandardScaler

from dask_ma import MPCAClassifier, MPCARegressor

FOUND = "rows are unlike those before"
QUICK = {"hidden_layer_sizes": (20,), "max_iter": 40, "random_state": 0}


def made(name):
    if name == "wine":
        X, y = load_wine(return_X_y=True)
        return MPCAClassifier, X, StandardScaler().fit_transform(X), y
    X, y = load_diabetes(return_X_y=True, scaled=False)
    X, y = X[::2], y[::2]
    return MPCARegressor, X, StandardScaler().fit_transform(X), y


def notes_of(model, X, y):
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        model.fit(X, y)
    return [str(one.message) for one in record if FOUND in str(one.message)]


@pytest.mark.parametrize(("name", "n_ranks"), [("wine", 2), ("diabetes", 1)])
def test_rows_of_another_scale_are_warned_of_with_a_cure(name, n_ranks):
    cls, raw, scaled, y = made(name)
    cold = cls(**QUICK, n_ranks=n_ranks)
    assert not notes_of(cold, raw, y)
    model = cls(**QUICK, n_ranks=n_ranks, warm_start=True)
    assert not notes_of(model, scaled, y)
    (note,) = notes_of(model, raw, y)
    assert model.score(raw, y) < cold.score(raw, y) - 0.02
    assert "scale" in note and "warm_start=False" in note
    # Each cure is one.
    model.set_params(warm_start=False)
    assert not notes_of(model, raw, y)
    assert model.score(raw, y) == cold.score(raw, y)
    model.set_params(warm_start=True)
    notes_of(model, scaled, y)
    assert not notes_of(model, StandardScaler().fit_transform(raw), y)


@pytest.mark.parametrize("name", ["wine", "diabetes"])
def test_other_rows_and_other_targets_are_passed_over(name):
    cls, X, _, y = made(name)
    order = np.random.default_rng(0).permutation(len(X))
    model = cls(**QUICK, warm_start=True)
    for rows in np.array_split(order, 2):
        assert not notes_of(model, X[rows], y[rows])
    assert not notes_of(model, X, y[order])
