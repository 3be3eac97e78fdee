"""What a fit that has not converged says of the model that it has gone on from."""

import warnings
from copy import deepcopy

import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from dask_ma import (
    ButterflySGDClassifier,
    SchMPLogisticRegression,
    SFBLogisticRegression,
)

CURE = "set warm_start=False"


def rows_and_scaled(load):
    X, _, y, _ = train_test_split(*load(return_X_y=True), random_state=0)
    return X, StandardScaler().fit_transform(X), y


def test_a_model_of_rows_of_another_scale_is_named_with_a_cure():
    X, scaled, y = rows_and_scaled(load_wine)
    model = ButterflySGDClassifier(random_state=0, n_ranks=1, warm_start=True)
    model.fit(scaled, y)
    with pytest.warns(ConvergenceWarning, match=CURE):
        model.fit(X, y)
    poor = model.score(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.set_params(warm_start=False).fit(X, y).score(X, y) > poor + 0.2


@pytest.mark.parametrize(
    ("cls", "load"),
    [
        (SchMPLogisticRegression, load_breast_cancer),
        (SFBLogisticRegression, load_wine),
    ],
)
def test_others_find_back_from_rows_of_another_scale(cls, load):
    """Where rows are wrong by margins of thousands; only a fit cut off is told."""
    X, scaled, y = rows_and_scaled(load)
    cold = cls(n_ranks=1).fit(X, y)
    model = cls(n_ranks=1, warm_start=True).fit(scaled, y)
    with pytest.warns(ConvergenceWarning, match=CURE):
        deepcopy(model).set_params(max_iter=3).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, y)
    found, least = (each.history_[-1]["objective"] for each in (model, cold))
    assert found == pytest.approx(least, rel=1e-3)


@pytest.mark.parametrize("cls", [SchMPLogisticRegression, SFBLogisticRegression])
def test_fits_that_go_on_from_nothing_are_not_told(cls):
    X, y = load_wine(return_X_y=True)
    with pytest.warns(ConvergenceWarning) as record:
        cls(max_iter=1).fit(X, y)
    assert not any(CURE in str(one.message) for one in record)
