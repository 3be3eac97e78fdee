"""Fits with default parameters against optima found by solvers that share no code."""

import dask.array as da
import numpy as np
import pytest
from scipy import optimize
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from dask_ma import ButterflySGDClassifier, ButterflySGDRegressor

ALPHA = 1e-3
SETS = {
    "cancer": load_breast_cancer,
    "diabetes": load_diabetes,
    "iris": load_iris,
    "wine": load_wine,
}
LAYOUTS = ["mixed", "sorted", "20 blocks"]


def load(name):
    X, y = SETS[name](return_X_y=True)
    X = StandardScaler().fit_transform(X)
    return X, (y - y.mean()) / y.std() if name == "diabetes" else y


def laid_out(X, y, layout):
    if layout == "sorted":
        order = np.argsort(y, kind="stable")
        return X[order], y[order]
    if layout == "20 blocks":
        rows = -(-len(y) // 20)
        return da.from_array(X, chunks=(rows, -1)), da.from_array(y, chunks=rows)
    return X, y


def problems(y):
    """Targets -1 and 1 of the classes that are set against the rest."""
    classes = np.unique(y)
    positive = classes[1:] if len(classes) == 2 else classes
    return [np.where(y == c, 1.0, -1.0) for c in positive]


def log_loss(X, y, coef, intercept):
    """Mean over the problems."""
    return np.mean(
        [
            np.logaddexp(0, -t * (X @ w + b)).mean() + ALPHA * w @ w / 2
            for t, w, b in zip(problems(y), coef, intercept, strict=True)
        ]
    )


def least_log_loss(X, y):
    models = [
        LogisticRegression(C=1 / (ALPHA * len(y)), tol=1e-10, max_iter=10_000).fit(X, t)
        for t in problems(y)
    ]
    return log_loss(
        X, y, [m.coef_[0] for m in models], [m.intercept_[0] for m in models]
    )


@pytest.mark.each
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n_ranks", [1, 3, 5])
@pytest.mark.parametrize("name", ["cancer", "iris", "wine"])
def test_logistic_regression(name, n_ranks, layout):
    X, y = load(name)
    least, params = least_log_loss(X, y), {"alpha": ALPHA, "n_ranks": n_ranks}
    model = ButterflySGDClassifier(random_state=0, **params)
    for changes, bound in [({}, 1.002), ({"refine": None, "tol": 1e-4}, 1.02)]:
        model.set_params(**changes).fit(*laid_out(X, y, layout))
        found = log_loss(X, y, model.coef_, model.intercept_)
        assert found == pytest.approx(model.history_[-1]["objective"], rel=1e-9)
        assert 1 - 1e-9 < found / least < bound


def excess(loss, X, y, model, optimum):
    """How far the objective of a model is above the optimum, relatively."""
    coef, intercept = np.ravel(model.coef_), np.ravel(model.intercept_)[0]
    penalty = ALPHA * coef @ coef / 2
    return (loss(y, X @ coef + intercept).mean() + penalty) / optimum - 1


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 4])
@pytest.mark.parametrize("layout", ["mixed", "sorted"])
def test_linear_svm(n_ranks, layout):
    X, y = load("cancer")
    hinge = lambda y, p: np.maximum(0, 1 - np.where(y == 1, p, -p))  # noqa: E731
    best = least(hinge, X, y, SVC(kernel="linear", C=1 / (ALPHA * len(y))))
    model = ButterflySGDClassifier(
        "hinge", alpha=ALPHA, n_ranks=n_ranks, random_state=0
    ).fit(*laid_out(X, y, layout))
    assert -1e-5 < excess(hinge, X, y, model, best) < 0.002


def least(loss, X, y, solver):
    """Objective of the model of a solver of the dual problem."""
    solver.set_params(tol=1e-6).fit(X, y)
    return _objective(loss, X, y, np.append(solver.coef_, solver.intercept_))


def _objective(loss, X, y, w):
    return loss(y, X @ w[:-1] + w[-1]).mean() + ALPHA * w[:-1] @ w[:-1] / 2


REGRESSIONS = {
    "squared_error": lambda y, p: (y - p) ** 2 / 2,
    "huber": lambda y, p: np.where(
        abs(y - p) <= 0.1, (y - p) ** 2 / 2, 0.1 * abs(y - p) - 0.005
    ),
    "epsilon_insensitive": lambda y, p: np.maximum(0, abs(y - p) - 0.1),
    "squared_epsilon_insensitive": lambda y, p: np.maximum(0, abs(y - p) - 0.1) ** 2,
}


def least_of_regression(name, X, y):
    loss = REGRESSIONS[name]
    if name == "squared_error":
        best = Ridge(alpha=ALPHA * len(y)).fit(X, y)
        return _objective(loss, X, y, np.append(best.coef_, best.intercept_))
    if name == "epsilon_insensitive":
        return least(loss, X, y, SVR(kernel="linear", C=1 / (ALPHA * len(y))))
    found = optimize.minimize(
        lambda w: _objective(loss, X, y, w), np.zeros(X.shape[1] + 1), tol=1e-9
    )
    return found.fun


@pytest.mark.each
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n_ranks", [1, 3, 5])
@pytest.mark.parametrize("loss", sorted(REGRESSIONS))
def test_regression(loss, n_ranks, layout):
    X, y = load("diabetes")
    optimum = least_of_regression(loss, X, y)
    model = ButterflySGDRegressor(loss, alpha=ALPHA, n_ranks=n_ranks, random_state=0)
    for changes, bound in [({}, 0.002), ({"refine": None, "tol": 5e-5}, 0.01)]:
        model.set_params(**changes).fit(*laid_out(X, y, layout))
        assert -1e-5 < excess(REGRESSIONS[loss], X, y, model, optimum) < bound


@pytest.mark.parametrize("preconditioner", ["bounded", "jacobi"])
def test_scales_of_the_features_do_not_matter(preconditioner):
    X, y = load("cancer")
    X = X * 10.0 ** np.linspace(-4, 4, X.shape[1])
    model = ButterflySGDClassifier(
        alpha=0, n_ranks=4, random_state=0, preconditioner=preconditioner, max_iter=20
    )
    model.set_params(tol=None).fit(X, y)
    assert model.history_[-1]["objective"] < 0.08
