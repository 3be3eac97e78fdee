"""What a fit that has not converged says of the model that it has gone on from."""

import warnings

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


@pytest.mark.parametrize(
    ("cls", "load", "params"),
    [
        (ButterflySGDClassifier, load_wine, {"random_state": 0}),
        (SchMPLogisticRegression, load_breast_cancer, {"max_iter": 30}),
        (SFBLogisticRegression, load_wine, {"random_state": 0, "max_iter": 50}),
    ],
)
def test_a_model_of_rows_of_another_scale_is_named_with_a_cure(cls, load, params):
    X, _, y, _ = train_test_split(*load(return_X_y=True), random_state=0)
    scaled = StandardScaler().fit_transform(X)
    model = cls(**params, n_ranks=1, warm_start=True).fit(scaled, y)
    with pytest.warns(ConvergenceWarning, match=CURE):
        model.fit(X, y)
    poor = model.score(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.set_params(warm_start=False).fit(X, y).score(X, y) > poor + 0.2


@pytest.mark.parametrize("cls", [SchMPLogisticRegression, SFBLogisticRegression])
def test_fits_that_go_on_from_nothing_are_not_told(cls):
    X, y = load_wine(return_X_y=True)
    with pytest.warns(ConvergenceWarning) as record:
        cls(max_iter=1).fit(X, y)
    assert not any(CURE in str(one.message) for one in record)
