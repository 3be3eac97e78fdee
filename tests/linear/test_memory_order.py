"""Coefficients of several classes in memory."""

import warnings

import numpy as np
import pytest
from scipy import sparse

from dask_ma import (
    ButterflySGDClassifier,
    MASGDClassifier,
    SchMPLogisticRegression,
    SFBLogisticRegression,
)
from dask_ma.linear import _estimator

rng = np.random.default_rng(0)
X = sparse.random_array((90, 12), density=0.4, format="csr", rng=rng)
y = np.arange(90) % 3

CLASSIFIERS = [
    ButterflySGDClassifier,
    MASGDClassifier,
    SchMPLogisticRegression,
    SFBLogisticRegression,
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_those_of_a_feature_lie_together(kind):
    """SciPy, whose rows are read by features, would copy all of them otherwise."""
    model = kind(max_iter=2, random_state=0).fit(X, y)
    assert model.coef_.shape == (3, 12)
    assert model.coef_.T.flags.c_contiguous and model.coef_.flags.writeable
    peer = model.to_sklearn()
    assert peer.coef_.flags.c_contiguous
    np.testing.assert_array_equal(peer.coef_, model.coef_)
    if hasattr(peer, "partial_fit"):
        peer.partial_fit(X, y)  # which takes the coefficients of a class
    scores = X @ model.coef_.T + model.intercept_
    np.testing.assert_allclose(model.decision_function(X), scores, rtol=1e-5)
    # A fit can go on from them.
    warm = model.set_params(warm_start=True).fit(X, y)
    assert warm.coef_.T.flags.c_contiguous


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_predictions_do_not_turn_them(kind):
    model = kind(max_iter=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    assert model._predictor().coef_.T.flags.c_contiguous


@pytest.mark.parametrize("order", ["C", "F"])
def test_nothing_is_copied_that_lies_so(order):
    coef = np.array(rng.standard_normal((4, 6)), order=order)
    found = _estimator._by_features(coef)
    np.testing.assert_array_equal(found, coef)
    assert found.T.flags.c_contiguous
    assert np.shares_memory(found, coef) == (order == "F")
    for few in coef[:1], coef[0]:
        assert np.shares_memory(_estimator._by_features(few), coef)
