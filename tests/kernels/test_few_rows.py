"""Optima from the products of rows, against those of scikit-learn and of SciPy."""

import warnings

import numpy as np
import pytest
from scipy import optimize
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC, SVR

from dask_ma.kernels import FEW_ROWS_LOSSES, few_rows_optimum, make_loss

MARGINS = ["hinge", "log_loss", "modified_huber", "squared_hinge"]
RESIDUALS = sorted(FEW_ROWS_LOSSES - set(MARGINS))


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 80))
    y = X[:, 0] + 0.5 * rng.standard_t(2, size=50)
    return X - X.mean(axis=0), y - y.mean()


def targets_of(loss, y):
    return np.where(y > 0, 1.0, -1.0) if loss in MARGINS else y


def objective_of(found, X, y, weights, loss, alpha):
    coef = found.shares @ X
    values = make_loss(loss).value(y, X @ coef + found.intercept)
    return weights @ values + 0.5 * alpha * coef @ coef


@pytest.mark.each(2)
@pytest.mark.parametrize("alpha", [1e-8, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("is_free", [True, False])
@pytest.mark.parametrize("loss", sorted(FEW_ROWS_LOSSES))
def test_the_optimum(rows, loss, is_free, alpha):
    """The bound from below is the objective, which is that of the model."""
    X, y = rows[0], targets_of(loss, rows[1])
    if not is_free:  # columns keep their centre then
        X = X + 1.0
    weights = np.random.default_rng(1).uniform(0.01, 1.0, 50)
    found = few_rows_optimum(
        X @ X.T,
        y,
        weights,
        loss,
        alpha,
        intercept=None if is_free else 0.3,
        unit=1.0 if loss in MARGINS else float(y.std()),
    )
    # With a bound on both sides rounding is that of the bounds.
    assert 0 <= found.gap <= 1e-6 * found.objective + 1e-12
    own = objective_of(found, X, y, weights, loss, alpha)
    assert own == pytest.approx(found.objective, rel=1e-6)
    coef = found.shares @ X
    bound = found.base - 0.5 * alpha * coef @ coef
    assert bound == pytest.approx(found.objective, rel=1e-5, abs=1e-12)
    if is_free:
        assert found.shares.sum() == pytest.approx(0, abs=1e-9 / alpha)
    else:
        assert found.intercept == 0.3


@pytest.mark.parametrize("loss", ["hinge", "log_loss", "epsilon_insensitive"])
def test_it_is_that_of_scikit_learn(rows, loss):
    X, y = rows[0], targets_of(loss, rows[1])
    alpha, weights = 0.05, np.full(50, 0.02)
    found = few_rows_optimum(X @ X.T, y, weights, loss, alpha, tol=1e-9)
    C = 1 / (alpha * 50)
    peer = {
        "hinge": SVC(kernel="linear", C=C, tol=1e-9),
        "log_loss": LogisticRegression(C=C, tol=1e-9, max_iter=10_000),
        "epsilon_insensitive": SVR(kernel="linear", C=C, tol=1e-9),
    }[loss].fit(X, y)
    np.testing.assert_allclose(found.shares @ X, peer.coef_[0], atol=1e-4)


@pytest.mark.parametrize(
    "loss", ["huber", "modified_huber", "squared_epsilon_insensitive", "squared_hinge"]
)
def test_smooth_losses_against_scipy(rows, loss):
    X, y = rows[0], targets_of(loss, rows[1])
    alpha, weights, one = 0.05, np.full(50, 0.02), make_loss(loss)
    found = few_rows_optimum(X @ X.T, y, weights, loss, alpha, tol=1e-9)

    def function(point):
        p = X @ point[:-1] + point[-1]
        slopes = weights * one.slope(y, p)
        value = weights @ one.value(y, p) + 0.5 * alpha * point[:-1] @ point[:-1]
        return value, np.append(slopes @ X + alpha * point[:-1], slopes.sum())

    options = {"maxiter": 10_000, "ftol": 1e-15, "gtol": 1e-10}
    peer = optimize.minimize(
        function, np.zeros(81), jac=True, method="L-BFGS-B", options=options
    )
    assert found.objective == pytest.approx(peer.fun, rel=1e-6)
    assert found.objective <= peer.fun * (1 + 1e-9)


@pytest.mark.parametrize("loss", MARGINS)
def test_rows_of_classes_that_contradict_each_other(rows, loss):
    X = rows[0].copy()
    X[1], X[3] = X[0], X[2]
    y = targets_of(loss, rows[1])
    y[0], y[1], y[2], y[3] = 1.0, -1.0, 1.0, 1.0
    found = few_rows_optimum(X @ X.T, y, np.full(50, 0.02), loss, 1e-4)
    assert found.gap <= 1e-6 * found.objective


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_rows_of_one_class_have_no_optimum(rows, loss):
    """Nothing is found where an intercept alone may fit all rows."""
    X = rows[0]
    found = few_rows_optimum(X @ X.T, np.ones(50), np.full(50, 0.02), loss, 1e-4)
    assert found.gap == np.inf


def test_residuals_without_a_tube(rows):
    X, y = rows
    for loss in ("epsilon_insensitive", "squared_epsilon_insensitive"):
        found = few_rows_optimum(X @ X.T, y, np.full(50, 0.02), loss, 1.0, epsilon=0.0)
        assert found.gap <= 1e-6 * found.objective


@pytest.mark.parametrize("loss", ["log_loss", "squared_hinge"])
def test_numbers_beyond_their_range_are_not_warned_of(rows, loss):
    X, y = rows[0], targets_of(loss, rows[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = few_rows_optimum(X @ X.T, y, np.full(50, 0.02), loss, 1e-300)
    assert not np.isnan(found.gap)
