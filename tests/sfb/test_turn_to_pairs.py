"""Second derivatives of all pairs, after conjugate gradients that take long."""

from types import SimpleNamespace

import dask
import numpy as np
import pytest
from scipy import sparse

from dask_ma import SFBLogisticRegression
from dask_ma.sfb.logistic import _fit, _unit_choice
from dask_ma.sfb.logistic._memory_state import agreed
from dask_ma.sfb.logistic._objective import Objective
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._unit_choice import UnitChoice

ALPHA = 1e-3
KINDS = {"dense": np.array, "sparse": sparse.csr_array}


@pytest.fixture(scope="module")
def rows():
    """600 rows of 45 features, and seven classes: 315 coefficients."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 45)) * (rng.random((600, 45)) < 0.4) + 0.1
    margins = X @ rng.normal(size=(45, 7))
    return X, (margins + rng.gumbel(size=margins.shape)).argmax(axis=1)


@pytest.fixture(autouse=True)
def opens(monkeypatch):
    """There are no passes."""
    monkeypatch.setattr(_fit, "opens_with_steps", lambda *_: True)


@pytest.fixture
def hessians(monkeypatch):
    """Of how many variables they are found, on each rank."""
    found, original = [], Objective.hessian

    def hessian(self, matrix, features, *args):
        found.append(len(features))
        return original(self, matrix, features, *args)

    monkeypatch.setattr(Objective, "hessian", hessian)
    return found


def fit(rows, kind="dense", **params):
    X, y = rows
    model = SFBLogisticRegression(alpha=ALPHA, tol=1e-6, random_state=0)
    return model.set_params(**params).fit(KINDS[kind](X), y)


def choice(n_features, n_outputs=1, *, is_sparse=True, l2=ALPHA, kept=None):
    objective = SimpleNamespace(n_rows=10**4, n_entries=min(10, n_features))
    totals = SimpleNamespace(feature_scales=np.ones(n_features), is_sparse=is_sparse)
    place = objective, (n_outputs, n_features), Penalty(0.0, l2), totals, 1200
    return UnitChoice(*place, has_intercept=False, kept=kept or {})


def test_many_products_are_needed():
    few, many = choice(800), choice(800)
    assert few.most == many.most == 300
    assert not few.turn(5) and few.most == 300
    assert many.turn(10**6) and many.most == 1200
    assert not many.turn(10**6)  # once


def test_products_of_all_steps_count():
    found = choice(800)
    turns = [found.turn(20) for _ in range(100)]
    assert sum(turns) == 1 and not turns[0]
    begun = choice(800, kept=found.state_dict())
    assert begun.most == 1200 and not begun.turn(1)


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ({"n_features": 1300}, 1200),  # too many, whatever products take
        ({"n_features": 250}, 300),  # has all pairs from the start
        ({"n_features": 800, "l2": 0.0}, 1200),
    ],
)
def test_nothing_to_turn_to(sizes, most):
    found = choice(**sizes)
    assert not found.turn(10**9) and found.most == most


def test_more_variables_take_more_products():
    """Until second derivatives of all pairs are as quick."""

    def count(**sizes):
        return choice(**sizes)._most_products()

    assert count(n_features=1000) > count(n_features=400)
    assert count(n_features=100, n_outputs=10, is_sparse=False) > 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_the_optimum(
    rows, best, value, hessians, monkeypatch, kind, n_ranks, fit_intercept
):
    params = {"fit_intercept": fit_intercept, "n_ranks": n_ranks}
    whole = fit(rows, kind, **params)
    assert not hessians
    monkeypatch.setattr(_unit_choice, "_MOST_STEPS", 0)
    found = fit(rows, kind, **params)
    assert set(hessians) == {7 * (45 + fit_intercept)}
    least = best(*rows, ALPHA, fit_intercept=fit_intercept)
    for model in (whole, found):
        assert value(model, *rows) <= least * (1 + 2e-6)
    assert found.dual_gap_ <= 1e-6 * least * 1.01


@pytest.mark.parametrize("n_kept", [1, 2])
def test_a_resumed_fit(rows, hessians, interrupted, tmp_path, monkeypatch, n_kept):
    """It goes on as if it had not been interrupted."""
    monkeypatch.setattr(_unit_choice, "_MOST_STEPS", 0)  # all but the first step
    params = {"n_ranks": 2}
    whole = fit(rows, **params)
    assert whole.n_iter_ > n_kept
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(n_kept):
            fit(rows, **params)
        hessians.clear()
        resumed = fit(rows, **params)
    assert len(hessians) == 2 * (whole.n_iter_ - n_kept)
    assert resumed.n_iter_ == whole.n_iter_
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


def test_ranks_without_a_state_turn_with_the_others(run_ranks):
    kept = choice(800).state_dict()

    def program(group):
        return agreed(group, kept if group.rank == 0 else {})

    assert run_ranks(program, 2)[1] == kept


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_rows_without_an_element_leave_the_classes_as_likely(n_ranks):
    X, y = sparse.csr_array((60, 400)), np.arange(60) % 3
    model = SFBLogisticRegression(n_ranks=n_ranks, random_state=0).fit(X, y)
    assert not model.coef_.any()
    np.testing.assert_allclose(model.predict_proba(X[:1]), 1 / 3, rtol=1e-4)
