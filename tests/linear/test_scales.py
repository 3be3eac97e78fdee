"""What early stopping says of features that it has left behind."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dask_ma import (
    ButterflySGDClassifier,
    ButterflySGDRegressor,
    MASGDClassifier,
    MASGDRegressor,
    SFBLogisticRegression,
)

CLASSIFIERS = (ButterflySGDClassifier, MASGDClassifier, SFBLogisticRegression)
REGRESSORS = (ButterflySGDRegressor, MASGDRegressor)
FOUND = "before it came to features of a small scale"


def split(load, **params):
    X, y = load(return_X_y=True, **params)
    return train_test_split(X, y, random_state=0)


def houses():
    """Features as those of houses: means far from zero, and scales far apart."""
    rng = np.random.default_rng(0)
    income, people = rng.lognormal(1.2, 0.5, 1000), rng.lognormal(7, 0.8, 1000)
    north, east = rng.uniform(32, 42, 1000), rng.uniform(-124, -114, 1000)
    y = 0.5 * income - 0.4 * (north - 36) - 0.4 * (east + 119)
    y += rng.normal(0, 0.5, 1000)
    X = np.column_stack([income, people, north, east])
    return train_test_split(X, y, random_state=0)


def score_in_silence(model, X, y, X_test, y_test):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return model.fit(X, y).score(X_test, y_test)


CASES = [
    (ButterflySGDClassifier, split(load_wine), 0.92),
    (MASGDClassifier, split(load_breast_cancer), 0.92),
    (SFBLogisticRegression, split(load_wine), 0.92),
    (ButterflySGDRegressor, houses(), 0.9),
    (MASGDRegressor, split(load_diabetes, scaled=False), 0.33),
]


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize(("cls", "data", "reached"), CASES)
def test_features_of_a_small_scale_are_named_with_a_cure(cls, data, reached, n_ranks):
    X, X_test, y, y_test = data
    model = cls(early_stopping=True, random_state=0, n_ranks=n_ranks)
    with pytest.warns(UserWarning, match=FOUND) as record:
        model.fit(X, y)
    (note,) = (str(one.message) for one in record if FOUND in str(one.message))
    assert "StandardScaler" in note and "early_stopping=False" in note
    scaled = make_pipeline(StandardScaler(), model)
    assert score_in_silence(scaled, X, y, X_test, y_test) >= reached
    model.set_params(early_stopping=False)
    assert score_in_silence(model, X, y, X_test, y_test) >= reached


@pytest.mark.each
@pytest.mark.parametrize("cls", [*CLASSIFIERS, *REGRESSORS])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
def test_a_small_feature_that_says_nothing_is_not_named(cls, make):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 6)) * [1, 1, 1, 1, 1e-3, 0]
    y = X[:, 0] + 0.5 * rng.standard_normal(400)
    y = y if cls in REGRESSORS else y > 0
    model = cls(early_stopping=True, random_state=0)
    assert score_in_silence(model, make(X), y, make(X), y) > 0.7


def test_the_feature_has_its_number_in_X():
    X, X_test, y, y_test = split(load_wine)
    found = []
    for X_of in (X, np.column_stack([np.zeros((len(X), 3)), X])):
        model = ButterflySGDClassifier(early_stopping=True, random_state=0)
        with pytest.warns(UserWarning, match=FOUND) as record:
            model.fit(X_of, y)
        words = str(record[0].message).split()
        found.append(
            [
                int(words[i + 1].strip(".,"))
                for i, w in enumerate(words)
                if w == "feature"
            ]
        )
    assert [number + 3 for number in found[0]] == found[1]


@pytest.mark.parametrize("params", [{"tol": None}, {"early_stopping": False}])
def test_fits_that_early_stopping_does_not_end_are_left_alone(params):
    X, _, y, _ = split(load_wine)
    params = {"early_stopping": True, "max_iter": 3, "random_state": 0, **params}
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        ButterflySGDClassifier(**params).fit(X, y)
    assert not any(FOUND in str(one.message) for one in record)
