"""Warm starts on data that the fitted model does not belong to."""

import dask.array as da
import numpy as np
import pytest
from sklearn.datasets import make_classification

from dask_ma import (
    ButterflySGDClassifier,
    ButterflySGDRegressor,
    MASGDClassifier,
    MASGDRegressor,
    MPCAClassifier,
    MPCARegressor,
    SchMPLasso,
    SchMPLogisticRegression,
    SFBLogisticRegression,
)

CLASSIFIERS = [
    ButterflySGDClassifier,
    MASGDClassifier,
    MPCAClassifier,
    SchMPLogisticRegression,
    SFBLogisticRegression,
]
REGRESSORS = [ButterflySGDRegressor, MASGDRegressor, MPCARegressor, SchMPLasso]
OTHER_SHAPE = r"(another shape|other features|of shape).*set warm_start=False"
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def data():
    X, y = make_classification(150, 8, n_informative=4, n_classes=3, random_state=0)
    return X, y


def make(cls, **params):
    return cls(max_iter=10, n_ranks=2, warm_start=True, **params)


@pytest.mark.each
@pytest.mark.parametrize("cls", CLASSIFIERS)
@pytest.mark.parametrize("lazy", [False, True])
def test_other_classes(cls, data, lazy):
    X, y = data
    model = make(cls).fit(X, y)
    rows = [da.from_array(a, chunks=(50, *a.shape[1:])) for a in (X, y)]
    rows = rows if lazy else data
    # As in MLPClassifier; with fewer labels, too.
    for labels in (rows[1] + 1, rows[1] * 2, (rows[1] > 0) * 1):
        with pytest.raises(ValueError, match="same classes as in .* warm_start=False"):
            model.fit(rows[0], labels)
        assert model.classes_.tolist() == [0, 1, 2]
    assert model.fit(*rows).classes_.tolist() == [0, 1, 2]
    model.set_params(warm_start=False).fit(rows[0], rows[1] + 1)
    assert model.classes_.tolist() == [1, 2, 3]


@pytest.mark.parametrize("cls", [*CLASSIFIERS, *REGRESSORS])
def test_other_features(cls, data):
    X, y = data
    model = make(cls).fit(X, y)
    with pytest.raises(ValueError, match=OTHER_SHAPE):
        model.fit(X[:, :5], y)
    assert model.n_features_in_ == 8


@pytest.mark.parametrize("cls", [ButterflySGDClassifier, MASGDClassifier])
def test_a_model_that_is_given_goes_first(cls, data):
    X, y = data
    model = make(cls).fit(X, y)
    with pytest.raises(ValueError, match=r"coef_init must have shape \(3, 5\)"):
        model.fit(X[:, :5], y, coef_init=np.zeros((3, 4)))
    model.fit(X[:, :5], y + 1, coef_init=np.zeros((3, 5)))
    assert model.classes_.tolist() == [1, 2, 3]
