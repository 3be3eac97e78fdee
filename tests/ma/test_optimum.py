"""With default parameters, fits of common data end at the optimum of scikit-learn."""

import warnings

import numpy as np
import pytest
from scipy import special
from scipy.optimize import minimize
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from dask_ma import MASGDClassifier, MASGDRegressor

ALPHA = 1e-3
MOST = 1.01  # times the optimum: the goal
TOL = 2e-3  # twice `refine_tol`: what the estimate of the excess is good for


def load(name, *, is_scaled):
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return (StandardScaler().fit_transform(X) if is_scaled else X), y


def with_objective_of(estimator, model, objective, X, y):
    """Objective of a fitted model of scikit-learn, in the words of ours."""
    for name in ("loss", "alpha", "penalty", "epsilon", "l1_ratio"):
        setattr(model, name, getattr(estimator, name))
    return objective(model, X, y)


def one_by_one(estimator, objective, make, X, y):
    """Mean of the optima of scikit-learn, each class against the rest."""
    labels = np.unique(y)
    positive = labels[1:] if len(labels) == 2 else labels
    values = []
    for label in positive:
        model = make().fit(X, y == label)
        values.append(with_objective_of(estimator, model, objective, X, y == label))
    return np.mean(values)


def fit_silently(estimator, X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        return estimator.fit(X, y)


@pytest.mark.each
@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize("name", ["breast_cancer", "wine", "iris"])
@pytest.mark.parametrize("n_ranks", [1, 4])
def test_logistic_regression(objective, name, is_scaled, n_ranks):
    X, y = load(name, is_scaled=is_scaled)
    ours = MASGDClassifier("log_loss", random_state=0, n_ranks=n_ranks)
    fit_silently(ours, X, y)

    def make():
        c = 1 / (ours.alpha * len(y))
        return LogisticRegression(C=c, solver="newton-cholesky", tol=1e-10)

    best = one_by_one(ours, objective, make, X, y)
    found = objective(ours, X, y)
    assert found == pytest.approx(ours.history_[-1]["objective"], rel=1e-9)
    assert best * (1 - 1e-9) <= found <= best * (1 + TOL)


@pytest.mark.parametrize(
    ("name", "is_scaled"),
    [("iris", False), ("wine", True), ("breast_cancer", True)],
)
def test_hinge(objective, name, is_scaled):
    X, y = load(name, is_scaled=is_scaled)
    ours = fit_silently(MASGDClassifier(random_state=0, n_ranks=2), X, y)

    def make():
        return SVC(kernel="linear", C=1 / (ours.alpha * len(y)), tol=1e-6)

    best = one_by_one(ours, objective, make, X, y)
    assert best * (1 - 1e-4) <= objective(ours, X, y) <= best * MOST


@pytest.mark.parametrize("penalty", ["l1", "elasticnet"])
def test_sparse_logistic_regression(objective, penalty):
    X, y = load("breast_cancer", is_scaled=True)
    ours = MASGDClassifier("log_loss", penalty=penalty, alpha=ALPHA, random_state=0)
    fit_silently(ours, X, y)
    share = 1.0 if penalty == "l1" else ours.l1_ratio
    l1, l2, sign = ALPHA * share, ALPHA * (1 - share), 2 * y - 1

    def value(point):
        """Of coefficients w = u - v with u, v >= 0, and the intercept."""
        u, v, b = point[:30], point[30:60], point[60]
        margins = sign * (X @ (u - v) + b)
        slopes = -sign * special.expit(-margins) / len(y)
        own = X.T @ slopes + l2 * (u - v)
        total = np.logaddexp(0, -margins).mean() + l1 * (u + v).sum()
        total += l2 / 2 * ((u - v) ** 2).sum()
        return total, np.concatenate([own + l1, l1 - own, [slopes.sum()]])

    limits = [(0, None)] * 60 + [(None, None)]
    settings = {"gtol": 1e-9, "ftol": 1e-15, "maxiter": 9999, "maxfun": 99999}
    best = minimize(
        value,
        np.zeros(61),
        jac=True,
        bounds=limits,
        method="L-BFGS-B",
        options=settings,
    )
    assert objective(ours, X, y) <= best.fun * (1 + TOL)
    if penalty == "l1":
        zeros = best.x[:30] == best.x[30:60]
        assert zeros.any()
        # Features that are as good as out need not be out yet.
        assert (ours.coef_[0] == 0).sum() >= zeros.sum() - 3


@pytest.mark.each
@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize("penalty", ["l2", "l1", "elasticnet"])
def test_least_squares(objective, penalty, is_scaled):
    X, y = datasets.load_diabetes(return_X_y=True, scaled=False)
    X = StandardScaler().fit_transform(X) if is_scaled else X
    ours = MASGDRegressor(penalty=penalty, alpha=1.0, random_state=0)
    fit_silently(ours.set_params(n_ranks=2), X, y)
    model = {
        "l2": Ridge(alpha=len(y), tol=1e-10),
        "l1": Lasso(alpha=1.0, tol=1e-10, max_iter=100_000),
        "elasticnet": ElasticNet(
            alpha=1.0, l1_ratio=ours.l1_ratio, tol=1e-10, max_iter=100_000
        ),
    }[penalty].fit(X, y)
    model.intercept_ = np.atleast_1d(model.intercept_)
    best = with_objective_of(ours, model, objective, X, y)
    assert objective(ours, X, y) <= best * (1 + TOL)


def test_support_vector_regression(objective):
    X, y = load("diabetes", is_scaled=True)
    ours = MASGDRegressor("epsilon_insensitive", random_state=0, n_ranks=2)
    fit_silently(ours, X, y)
    theirs = SVR(kernel="linear", C=1 / (ours.alpha * len(y)), tol=1e-6).fit(X, y)
    best = with_objective_of(ours, theirs, objective, X, y)
    assert objective(ours, X, y) <= best * (1 + TOL)


@pytest.mark.parametrize("epsilon", [0.1, 30.0])
def test_huber(objective, epsilon):
    X, y = load("diabetes", is_scaled=True)
    ours = MASGDRegressor("huber", epsilon=epsilon, alpha=ALPHA, random_state=0)
    fit_silently(ours, X, y)

    def value(point):
        r = X @ point[:-1] + point[-1] - y
        slope = np.clip(r, -epsilon, epsilon)
        losses = slope * (r - slope / 2)
        gradient = np.append(X.T @ slope / len(y) + ALPHA * point[:-1], slope.mean())
        return losses.mean() + ALPHA / 2 * point[:-1] @ point[:-1], gradient

    start = np.append(ours.coef_, ours.intercept_) * 1.1
    best = minimize(value, start, jac=True, options={"gtol": 1e-9, "maxiter": 5000}).fun
    assert objective(ours, X, y) <= best * (1 + TOL)


def test_slow_progress_is_no_end(objective):
    """L-BFGS creeps on columns of all scales; that does not count as the optimum."""
    X, y = load("breast_cancer", is_scaled=False)
    params = {"loss": "log_loss", "max_iter": 0, "n_ranks": 1}
    least = objective(MASGDClassifier(**params, refine="newton").fit(X, y), X, y)
    model = MASGDClassifier(**params, refine="lbfgs")
    assert objective(fit_silently(model, X, y), X, y) <= least * (1 + TOL)
    with pytest.warns(ConvergenceWarning, match="raise refine_max_iter or alpha"):
        model.set_params(refine_max_iter=50).fit(X, y)
    assert model.history_[-1]["objective"] > least * MOST
