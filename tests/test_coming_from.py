"""The translations of parameters that docs/coming_from gives, by numbers."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits, make_classification, make_regression
from sklearn.linear_model import (
    ElasticNet,
    ElasticNetCV,
    LinearRegression,
    LogisticRegression,
    Ridge,
)
from sklearn.svm import LinearSVC

from dask_ma import (
    MALDA,
    MASGDClassifier,
    MASGDRegressor,
    SchMPLasso,
    SchMPLassoCV,
    SchMPLogisticRegression,
    SFBLogisticRegression,
)
from dask_ma.ma import Gradients

REFINED = {"refine": "lbfgs", "refine_tol": 1e-13, "refine_max_iter": 500}


@pytest.fixture(scope="module")
def two_classes():
    """Rows and labels 0 and 1."""
    return make_classification(300, 8, flip_y=0.2, random_state=0)


@pytest.fixture(scope="module")
def three_digits():
    """Rows and three labels."""
    X, y = load_digits(n_class=3, return_X_y=True)
    return X[:150] / 16, y[:150]


def test_logistic_regression_with_averaging(two_classes):
    X, y = two_classes
    theirs = LogisticRegression(C=0.5, tol=1e-10, max_iter=1000).fit(X, y)
    ours = MASGDClassifier(
        "log_loss", alpha=1 / (0.5 * len(y)), max_iter=1, n_ranks=2, **REFINED
    ).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)


def test_multinomial_logistic_regression(three_digits):
    X, y = three_digits
    theirs = LogisticRegression(C=0.2, tol=1e-10, max_iter=1000).fit(X, y)
    ours = SFBLogisticRegression(
        alpha=1 / (0.2 * len(y)),
        solver="sdca",
        tol=1e-7,
        max_iter=1000,
        n_ranks=2,
        random_state=0,
    ).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-3)


def test_sparse_logistic_regression(two_classes):
    X, y = two_classes
    theirs = LogisticRegression(
        C=0.1, l1_ratio=0.7, solver="saga", tol=1e-10, max_iter=10_000
    ).fit(X, y)
    ours = SchMPLogisticRegression(
        alpha=1 / (0.1 * len(y)), l1_ratio=0.7, tol=1e-12, n_ranks=2
    ).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)


def test_linear_svc(two_classes):
    """LIBLINEAR penalises the intercept, so there is none here."""
    X, y = two_classes
    theirs = LinearSVC(C=0.5, fit_intercept=False, tol=1e-10, max_iter=100_000)
    ours = MASGDClassifier(
        "squared_hinge",
        alpha=1 / (0.5 * len(y)),
        fit_intercept=False,
        max_iter=0,
        n_ranks=2,
        **REFINED,
    )
    np.testing.assert_allclose(ours.fit(X, y).coef_, theirs.fit(X, y).coef_, atol=1e-4)


def test_ridge(two_classes):
    X, y = two_classes
    theirs = Ridge(alpha=3.0).fit(X, y)
    ours = MASGDRegressor(alpha=3.0 / len(y), max_iter=1, n_ranks=2, **REFINED)
    np.testing.assert_allclose(ours.fit(X, y).coef_, theirs.coef_, atol=1e-6)


@pytest.fixture(scope="module")
def targets():
    """Rows and numbers."""
    return make_regression(120, 20, n_informative=5, noise=5.0, random_state=0)


def test_elastic_net(targets):
    X, y = targets
    theirs = ElasticNet(alpha=0.5, l1_ratio=0.6, tol=1e-12, max_iter=10_000)
    ours = SchMPLasso(alpha=0.5, l1_ratio=0.6, tol=1e-12, n_ranks=2)
    np.testing.assert_allclose(ours.fit(X, y).coef_, theirs.fit(X, y).coef_, atol=1e-5)


def test_lasso_cv(targets):
    X, y = targets
    common = {"l1_ratio": 1.0, "alphas": 10, "cv": 3}
    theirs = ElasticNetCV(**common, tol=1e-8).fit(X, y)
    ours = SchMPLassoCV(**common, tol=1e-8, n_ranks=2).fit(X, y)
    np.testing.assert_allclose(ours.alphas_, theirs.alphas_)
    assert ours.alpha_ == pytest.approx(theirs.alpha_)


def mllib_gradient_descent(X, y, penalty, *, step, reg_param, iterations):
    """GradientDescent.runMiniBatchSGD of MLlib with all rows, for the logistic loss."""
    weights = np.zeros(X.shape[1])
    for iteration in range(1, iterations + 1):
        slopes = 1 / (1 + np.exp(-X @ weights)) - y
        length = step / np.sqrt(iteration)
        gradient = X.T @ slopes / len(y)
        if penalty == "l2":  # SquaredL2Updater
            weights = (1 - length * reg_param) * weights - length * gradient
        else:  # L1Updater
            moved = weights - length * gradient
            shrunk = np.maximum(np.abs(moved) - length * reg_param, 0)
            weights = np.sign(moved) * shrunk
    return weights


@pytest.mark.parametrize("penalty", ["l2", "l1"])
def test_logistic_regression_with_sgd_of_mllib(two_classes, penalty):
    X, y = two_classes
    theirs = mllib_gradient_descent(
        X, y, penalty, step=1.0, reg_param=0.01, iterations=20
    )
    ours = MASGDClassifier(
        "log_loss",
        paradigm=Gradients(batch_fraction=1.0, aggregation="tree"),
        penalty=penalty,
        alpha=0.01,
        learning_rate="invscaling",
        eta0=1.0,
        power_t=0.5,
        max_iter=20,
        tol=None,
        fit_intercept=False,
        n_ranks=3,
    )
    np.testing.assert_allclose(ours.fit(X, y).coef_[0], theirs, rtol=1e-9, atol=1e-12)


def test_asymmetric_prior_of_gensim():
    """`alpha="asymmetric"` there is a vector here."""
    asymmetric = 1 / (np.arange(4) + np.sqrt(4))
    asymmetric /= asymmetric.sum()
    counts = np.random.default_rng(0).poisson(1.0, size=(30, 12))
    lda = MALDA(4, doc_topic_prior=asymmetric, max_iter=1, random_state=0).fit(counts)
    np.testing.assert_allclose(lda.doc_topic_prior_, asymmetric)
    # The default of all three libraries.
    assert MALDA(4, max_iter=1).fit(counts).doc_topic_prior_ == pytest.approx(1 / 4)


def test_linear_regression(targets):
    X, y = targets
    theirs = LinearRegression().fit(X, y)
    ours = MASGDRegressor(penalty=None, max_iter=1, **REFINED)
    np.testing.assert_allclose(ours.fit(X, y).coef_, theirs.coef_, rtol=1e-5)
