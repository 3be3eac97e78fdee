"""Coordinate descent that is slow is brought to the optimum all the same."""

import dask
import numpy as np
import pytest
from scipy import sparse, special
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression

from dask_ma import SchMPLasso, SchMPLogisticRegression
from dask_ma.schmp import schedules
from dask_ma.schmp.l1 import _descent
from dask_ma.schmp.l1._problem import Sparse

DYNAMIC, PRIORITY = schedules.Dynamic(16), schedules.Priority(16)
RANDOM, CYCLIC = schedules.Random(16), schedules.Cyclic(16)
LAYOUTS = [(1, "rows"), (2, "rows"), (3, "columns")]
every_schedule = pytest.mark.parametrize(
    "schedule", [DYNAMIC, PRIORITY, RANDOM, CYCLIC], ids=repr
)
every_layout = pytest.mark.parametrize(("n_ranks", "layout"), LAYOUTS)
# Schedules and layouts, each with some of the other.
some_runs = pytest.mark.parametrize(
    ("schedule", "layout"),
    [(DYNAMIC, "columns"), (PRIORITY, "rows"), (RANDOM, "columns")],
    ids=str,
)
CAP = "dask-ma.schmp.max-working-set"
PARAMS = {"tol": 1e-8, "max_iter": 60, "random_state": 0}


@pytest.fixture(scope="module")
def genes():
    """40 rows of 160 columns that depend on 6 factors, with targets of some columns."""
    rng = np.random.default_rng(3)
    factors = rng.normal(size=(40, 6))
    X = factors @ rng.normal(size=(6, 160)) + 0.7 * rng.normal(size=(40, 160))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    number = X[:, ::20] @ rng.normal(size=8) + 0.3 * rng.normal(size=40)
    order = np.argsort(np.argsort(number))
    return {"X": X, "number": number, "two": (order > 22) * 1, "three": order // 14}


def weight_of_penalty(X, y, share=0.1):
    """A share of the smallest weight that gives zeros."""
    return share * np.abs(X.T @ (y - y.mean())).max() / len(y)


@pytest.mark.each
@every_schedule
@every_layout
def test_lasso(genes, schedule, n_ranks, layout):
    X, y = genes["X"], genes["number"]
    alpha = weight_of_penalty(X, y)
    expected = Lasso(alpha, tol=1e-12, max_iter=10**6).fit(X, y)
    model = SchMPLasso(
        alpha,
        schedule=schedule,
        n_ranks=n_ranks,
        layout=layout,
        **PARAMS,
    ).fit(X, y)
    assert model.dual_gap_ <= 1e-8 * y.var() / 2
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-6)
    assert model.intercept_ == pytest.approx(expected.intercept_)


@pytest.mark.parametrize("schedule", [DYNAMIC, CYCLIC], ids=repr)
def test_nothing_is_finished_that_is_not_to_be(genes, schedule):
    """What coordinate descent alone comes to in the same rounds."""
    X, y = genes["X"], genes["number"]
    params = {**PARAMS, "schedule": type(schedule)(4)}
    alone, capped = (
        SchMPLasso(weight_of_penalty(X, y), **params, polish=polish)
        for polish in (False, True)
    )
    for model in (alone, capped):
        model.set_params(max_iter=6)
    with pytest.warns(ConvergenceWarning):
        alone.fit(X, y)
    assert alone.dual_gap_ > 1e-4 * y.var() / 2
    assert [r["polished"] for r in alone.history_] == [False] * 6
    # A model above the cap is left alone as well, bit for bit.
    with dask.config.set({CAP: 2}), pytest.warns(ConvergenceWarning):
        capped.fit(X, y)
    assert [r["polished"] for r in capped.history_] == [False] * 6
    np.testing.assert_array_equal(capped.coef_, alone.coef_)
    polished = SchMPLasso(weight_of_penalty(X, y), **params).fit(X, y)
    assert any(record["polished"] for record in polished.history_)
    # The mark says which rounds have found the optimum of the coefficients at hand.
    last = polished.history_[-1]
    assert last["polished"] and last["dual_gap"] < 1e-8 * y.var()


@pytest.mark.each
@every_schedule
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_two_classes(genes, schedule, fit_intercept, l1_objective, logistic):
    X, y = genes["X"], genes["two"]
    alpha = weight_of_penalty(X, y)
    params = {"n_ranks": 2, "fit_intercept": fit_intercept, **PARAMS}
    model = SchMPLogisticRegression(alpha, schedule=schedule, **params).fit(X, y)
    assert model.dual_gap_ <= 1e-8 * np.log(2)
    if not fit_intercept:
        exact = {"solver": "liblinear", "tol": 1e-10, "fit_intercept": False}
        exact = LogisticRegression(C=1 / (40 * alpha), l1_ratio=1.0, **exact)
        if exact.get_params()["penalty"] == "l2":  # before scikit-learn 1.8
            exact.set_params(penalty="l1", l1_ratio=None)
        exact.fit(X, y)
    else:  # the columns that count are enough for the slow solver
        columns = np.flatnonzero(model.coef_[0])
        found = logistic(X[:, columns], y, alpha, tol=1e-10)
        exact = SchMPLogisticRegression(alpha)
        exact.classes_, exact.coef_ = found.classes_, np.zeros((1, 160))
        exact.coef_[0, columns], exact.intercept_ = found.coef_[0], found.intercept_
    np.testing.assert_allclose(model.coef_, exact.coef_, atol=1e-5)
    best = l1_objective(exact, X, y, alpha=alpha, l1_ratio=1.0)
    assert l1_objective(model, X, y) == pytest.approx(best, abs=1e-8)


def check_optimal(model, X, y, weight=None, factors=1.0, atol=3e-4):
    """The conditions of optimality, by formula: slopes within their bounds."""
    coef = np.atleast_2d(model.coef_)
    margins = X @ coef.T + model.intercept_
    if not hasattr(model, "classes_"):
        slopes = margins - y[:, np.newaxis]
    elif len(coef) == 1:
        slopes = special.expit(margins) - y[:, np.newaxis]
    else:
        slopes = special.softmax(margins, axis=1)
        slopes -= y[:, np.newaxis] == np.arange(len(coef))
    weight = np.ones(len(y)) if weight is None else weight
    slopes *= (weight / weight.sum())[:, np.newaxis]
    np.testing.assert_allclose(slopes.sum(axis=0), 0, atol=atol)
    gradient, bound = slopes.T @ X, model.alpha * factors * np.ones(X.shape[1])
    assert (np.abs(gradient) <= bound + atol).all()
    at_work = coef != 0
    wanted = -(bound * np.sign(coef))
    np.testing.assert_allclose(gradient[at_work], wanted[at_work], atol=atol)


@some_runs
def test_three_classes(genes, schedule, layout):
    X, y = genes["X"], genes["three"]
    model = SchMPLogisticRegression(
        0.03, schedule=schedule, n_ranks=2, layout=layout, **PARAMS
    ).fit(X, y)
    assert model.dual_gap_ <= 1e-8 * np.log(3)
    assert 0 < np.count_nonzero(model.coef_) < 200
    check_optimal(model, X, y)


@pytest.mark.each
@some_runs
@pytest.mark.parametrize(("positive", "l1_ratio"), [(True, 1.0), (False, 0.5)])
def test_signs_and_the_elastic_net(genes, schedule, layout, positive, l1_ratio):
    X, y = genes["X"], genes["number"]
    params = {
        "alpha": weight_of_penalty(X, y),
        "l1_ratio": l1_ratio,
        "positive": positive,
    }
    expected = ElasticNet(**params, tol=1e-12, max_iter=10**6).fit(X, y)
    model = SchMPLasso(**params, **PARAMS, schedule=schedule, layout=layout)
    model.set_params(n_ranks=2).fit(X, y)
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-6)


@pytest.mark.each
@some_runs
@pytest.mark.parametrize("cls", [SchMPLasso, SchMPLogisticRegression])
def test_weights_and_coefficients_without_penalty(genes, schedule, layout, cls):
    X, y = genes["X"], genes["number" if cls is SchMPLasso else "two"]
    params = {"alpha": 0.05, "feature_weights": np.ones(160), "tol": 1e-8}
    params["feature_weights"][[5, 150]] = 0
    params["feature_weights"][7] = 0.2
    weight = np.linspace(0.5, 2, 40)
    model = cls(
        **{**params, **PARAMS},
        schedule=schedule,
        layout=layout,
        n_ranks=2,
    )
    model.fit(X, y, weight)
    assert np.ravel(model.coef_)[[5, 150]].all()
    check_optimal(model, X, y, weight, params["feature_weights"])


@some_runs
def test_sparse_rows(genes, schedule, layout):
    X, y = np.where(genes["X"] > 0.5, genes["X"], 0), genes["number"]
    alpha = weight_of_penalty(X - X.mean(axis=0), y)
    expected = Lasso(alpha, tol=1e-12, max_iter=10**6).fit(X, y)
    model = SchMPLasso(alpha, schedule=schedule, layout=layout, n_ranks=2, **PARAMS)
    model.fit(sparse.csr_array(X), y)
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-6)


@pytest.mark.parametrize("schedule", [PRIORITY, RANDOM, CYCLIC], ids=repr)
def test_rounds_that_diverge_do_no_harm(genes, schedule):
    """So many updates side by side make the objective grow; no round ends higher."""
    X, y = genes["X"], genes["number"]
    many = type(schedule)(100, pipeline_depth=3)
    model = SchMPLasso(weight_of_penalty(X, y), schedule=many, **PARAMS).fit(X, y)
    objectives = np.array([record["objective"] for record in model.history_])
    assert objectives[0] < y.var() / 2
    assert np.diff(objectives).max(initial=0) <= 1e-12
    with dask.config.set({CAP: 2}), pytest.warns(ConvergenceWarning):
        model.set_params(max_iter=1).fit(X, y)
    assert model.history_[0]["objective"] > 1e3 * y.var()


@pytest.mark.parametrize("n_iterations", [4, 1000])
def test_a_round_that_diverges_ends_early(genes, monkeypatch, n_iterations):
    """Long enough, it would overflow."""
    X, y = genes["X"], genes["number"]
    alpha = weight_of_penalty(X, y)
    expected = Lasso(alpha, tol=1e-12, max_iter=10**6).fit(X, y)
    monkeypatch.setattr(_descent, "_FEWEST_ITERATIONS", n_iterations)
    params = {**PARAMS, "schedule": schedules.Random(100)}
    model = SchMPLasso(alpha, n_ranks=2, **params).fit(X, y)
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-6)


@pytest.mark.each
@some_runs
@pytest.mark.parametrize("cls", [SchMPLasso, SchMPLogisticRegression])
def test_a_resumed_fit_has_the_same_bits(genes, tmp_path, schedule, layout, cls):
    X, y = genes["X"], genes["number" if cls is SchMPLasso else "two"]
    params = {
        **PARAMS,
        "schedule": schedule,
        "n_ranks": 2,
        "layout": layout,
    }
    params["alpha"] = weight_of_penalty(X, y, 0.02)
    whole = cls(**params).fit(X, y)
    assert whole.n_iter_ > 1
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with pytest.warns(ConvergenceWarning):
            cls(**{**params, "max_iter": 1}).fit(X, y)
        resumed = cls(**params).fit(X, y)
    assert resumed.n_iter_ == whole.n_iter_
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    for name in ("objective", "dual_gap", "n_nonzero"):
        assert [r[name] for r in resumed.history_] == [r[name] for r in whole.history_]


# -- Parts ----------------------------------------------------------------------------


def test_new_coefficients_are_those_of_the_largest_changes(monkeypatch):
    monkeypatch.setattr(_descent, "_FEWEST_NEW", 3)
    model = Sparse(np.array([2, 6]), np.array([0.5, -1.0]), np.array([4.0]))
    changes = np.array([[3.0, -9.0], [0.0, 1.0], [-2.0, 0.0], [7.0, 8.0], [5.0, 0.0]])
    touched = np.array([1, 3, 4, 6, 7])
    found = _descent._extended(model, touched, changes)
    assert found.coordinates.tolist() == [1, 2, 3, 4, 6, 7]
    assert found.coef.tolist() == [0, 0.5, 0, 0, -1, 0]
    monkeypatch.setattr(_descent, "_FEWEST_NEW", 1)
    few = Sparse(model.coordinates[:1], model.coef[:1], model.intercept)
    found = _descent._extended(few, touched, changes)
    assert found.coordinates.tolist() == [1, 2, 7]  # twice as many as there were
    assert model.coef.tolist() == [0.5, -1.0]


@pytest.mark.each
@every_layout
@pytest.mark.parametrize("positive", [False, True])
def test_next_changes(genes, monkeypatch, n_ranks, layout, positive):
    """Each coefficient alone would go to its best value, by the formula."""
    X, y = genes["X"], genes["number"] - genes["number"].mean()
    seen, method = [], _descent.Descent._next_changes

    def spy(self):
        changes = method(self)
        seen.append((self._engine.model.copy(), changes))
        return changes

    monkeypatch.setattr(_descent.Descent, "_next_changes", spy)
    model = SchMPLasso(
        0.1, l1_ratio=0.4, positive=positive, schedule=schedules.Dynamic(16)
    )
    model.set_params(n_ranks=n_ranks, layout=layout, **PARAMS).fit(X, y)
    assert len(seen) > 3 * n_ranks
    for coef, changes in seen:
        squares = (X**2).mean(axis=0)
        target = squares * coef + X.T @ (y - X @ coef) / 40
        best = np.maximum(np.abs(target) - 0.04, 0) * np.sign(target) / (squares + 0.06)
        best = np.maximum(best, 0) if positive else best
        np.testing.assert_allclose(changes.values, best - coef, atol=1e-10)
        sizes = np.abs(best - coef) * np.sqrt(squares)
        np.testing.assert_allclose(changes.size, sizes, atol=1e-10)
    assert np.abs(seen[-1][1].values).max() < 0.1
