"""The optima, next to those of other solvers, and the bounds that certify them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge
from sklearn.svm import SVC

from quality.bounds import lower_bound
from quality.exact import InexactError, minimize, solve
from quality.objectives import make_objective
from quality.sets import load

LOSSES = ("hinge", "log_loss", "softmax", "squared_error")


def objective_of(name, loss, ratio, alpha=1e-3, weighted=False):
    """Rows, weights and objective of a set."""
    task = "regression" if loss == "squared_error" else "classification"
    rows = load(task, name)
    weight = rows.sample_weight if weighted else None
    return rows, weight, make_objective(rows.X, rows.y, weight, loss, alpha, ratio)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["wine standardised", "imbalanced", "counts"])
def test_logistic_regression(name, weighted):
    rows, weight, objective = objective_of(name, "softmax", 0, weighted=weighted)
    total = len(rows.y) if weight is None else weight.sum()
    peer = LogisticRegression(C=1e3 / total, tol=1e-10, max_iter=10_000)
    peer.fit(rows.X, rows.y, sample_weight=weight)
    theirs = objective.value(peer.coef_, peer.intercept_)
    assert solve(objective) == pytest.approx(theirs, rel=1e-8)


@pytest.mark.each
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["cancer standardised", "noise", "imbalanced"])
def test_support_vector_machine(name, weighted):
    rows, weight, objective = objective_of(name, "hinge", 0, weighted=weighted)
    total = len(rows.y) if weight is None else weight.sum()
    kept = slice(None) if weight is None else weight > 0
    peer = SVC(kernel="linear", C=1e3 / total, tol=1e-9)
    given = None if weight is None else weight[kept]
    peer.fit(rows.X[kept], rows.y[kept], sample_weight=given)
    theirs = objective.value(peer.coef_, peer.intercept_)
    assert solve(objective) == pytest.approx(theirs, rel=1e-5)
    assert solve(objective) <= theirs * (1 + 1e-10)


@pytest.mark.parametrize("ratio", [0, 0.15])
def test_bound_that_long_steps_spoil_by_rounding(ratio):
    alpha = 1e-4
    *_, objective = objective_of("cancer standardised", "hinge", ratio, alpha, True)
    [problem] = objective.problems
    optimum = minimize(problem)
    assert optimum.gap <= 1e-8 * optimum.value


@pytest.mark.each
@pytest.mark.parametrize("name", ["diabetes standardised", "linear", "wide"])
@pytest.mark.parametrize(("ratio", "alpha"), [(0, 1e-2), (1, 0.5), (0.3, 0.5)])
def test_least_squares(name, ratio, alpha):
    rows, _, objective = objective_of(name, "squared_error", ratio, alpha)
    if ratio == 0:
        peer = Ridge(alpha=alpha * len(rows.y), solver="svd")
    elif ratio == 1:
        peer = Lasso(alpha=alpha, tol=1e-14, max_iter=1_000_000)
    else:
        peer = ElasticNet(alpha=alpha, l1_ratio=ratio, tol=1e-14, max_iter=1_000_000)
    peer.fit(rows.X, rows.y)
    theirs = objective.value(peer.coef_, peer.intercept_)
    assert solve(objective) == pytest.approx(theirs, rel=1e-8)


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_bound_is_below_every_model(loss, ratio):
    """Also for slopes that belong to no model."""
    name = "linear" if loss == "squared_error" else "iris"
    _, _, objective = objective_of(name, loss, ratio, alpha=0.05)
    problem, rng = objective.problems[-1], np.random.default_rng(0)
    least = minimize(problem)
    assert 0 <= least.gap + 1e-12 * least.value <= 1e-8 * least.value + 1e-12
    shape = len(problem.y), problem.n_outputs
    for size in (1e-3, 0.1, 10.0):
        slopes = size * rng.normal(size=shape)
        assert lower_bound(problem, slopes) <= least.value * (1 + 1e-12)
        coef = least.coef + size * rng.normal(size=least.coef.shape)
        intercept = least.intercept + size * rng.normal(size=least.intercept.shape)
        assert problem.value(coef, intercept) >= least.value * (1 - 1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_row_of_weight_two_is_two_rows(loss):
    task = "regression" if loss == "squared_error" else "classification"
    X, y = load(task, "six rows")
    weight = np.array([2.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    repeated = np.repeat(np.arange(6), weight.astype(int))
    weighted = solve(make_objective(X, y, weight, loss, 0.1, 0.5))
    plain = solve(make_objective(X[repeated], y[repeated], None, loss, 0.1, 0.5))
    assert weighted == pytest.approx(plain, rel=1e-8)


@pytest.mark.parametrize("value", [0.0, 3.5, -1e6])
@pytest.mark.parametrize("ratio", [0, 0.3, 1])
def test_targets_that_are_all_alike(value, ratio):
    """The intercept is the model, and nothing is left of the objective."""
    rows = load("regression", "linear")
    y = np.full(len(rows.y), value)
    objective = make_objective(rows.X, y, None, "squared_error", 0.1, ratio)
    assert solve(objective) == 0.0


def test_a_gap_that_stays_open_is_an_error(monkeypatch):
    _, _, objective = objective_of("iris", "log_loss", 0.3)
    monkeypatch.setattr("quality.exact._MAX_STEPS", 3)
    with pytest.raises(InexactError, match="or less by"):
        solve(objective)
