"""Steps by single second derivatives, for many coefficients of sparse rows."""

from types import SimpleNamespace

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SFBLogisticRegression
from dask_ma.kernels import softmax, softmax_hessian
from dask_ma.sfb.logistic import _fit, _refine
from dask_ma.sfb.logistic._face import Face
from dask_ma.sfb.logistic._models import DiagonalModel
from dask_ma.sfb.logistic._objective import Objective
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._totals import add_up
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.supervised import Problem

N_FEATURES = 120
WEAK = {"penalty": "l1", "alpha": 1e-3, "random_state": 0}


@pytest.fixture(scope="module")
def texts():
    """400 short rows of 6 classes, of length 1."""
    rng = np.random.default_rng(0)
    words = 1 / np.arange(1, N_FEATURES + 1)
    y = rng.integers(0, 6, 400)
    topics = rng.gamma(0.2, size=(6, N_FEATURES)) * words
    chances = 0.7 * topics / topics.sum(axis=1, keepdims=True) + 0.3 * words / 5.4
    chances /= chances.sum(axis=1, keepdims=True)
    X = np.array([rng.multinomial(rng.integers(3, 12), chances[k]) for k in y])
    return sparse.csr_array(X / np.linalg.norm(X, axis=1, keepdims=True)), y


@pytest.fixture
def many(monkeypatch):
    """All are too many for second derivatives of all pairs."""
    for module in (_fit, _refine):
        monkeypatch.setattr(module, "MOST_VARIABLES", 0)


def fit(texts, **params):
    return SFBLogisticRegression(**{**WEAK, **params}).fit(*texts)


@pytest.mark.each
@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("l1_ratio", [0.9, 1.0])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_optimum(texts, value, best, n_ranks, l1_ratio, fit_intercept, weighted):
    """By the gap, which scikit-learn confirms."""
    weight = np.random.default_rng(1).uniform(0.5, 2, 400) if weighted else None
    params = {"penalty": "elasticnet", "l1_ratio": l1_ratio, "solver": "sgd"}
    params |= {"alpha": 1e-2, "fit_intercept": fit_intercept}
    model = fit([*texts, weight], n_ranks=n_ranks, tol=1e-4, max_iter=30, **params)
    of_penalty = {"penalty": "elasticnet", "l1_ratio": l1_ratio}
    found = value(model, *texts, weight, **of_penalty)
    expected = best(*texts, 1e-2, weight, fit_intercept=fit_intercept, **of_penalty)
    assert found - expected <= model.dual_gap_ + 1e-7 <= 1.01e-4 * found
    assert found >= expected - 1e-6


@pytest.mark.usefixtures("many")
def test_few_steps_are_enough(texts, monkeypatch):
    """Those of BFGS are three times as many."""
    model = fit(texts)
    assert model.dual_gap_ <= 1e-3 * model.history_[-1]["objective"]
    monkeypatch.setattr(_refine, "make_model", lambda *_, **__: None)
    with pytest.warns(ConvergenceWarning):
        fit(texts, max_iter=2 * model.n_iter_)


@pytest.mark.usefixtures("many")
def test_a_resumed_fit(texts, tmp_path):
    params = {"tol": 1e-6, "n_ranks": 2}
    whole = fit(texts, **params)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with pytest.warns(ConvergenceWarning):
            fit(texts, max_iter=whole.n_iter_ - 3, **params)
        resumed = fit(texts, **params)
    assert resumed.n_iter_ == whole.n_iter_
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("has_intercept", [False, True])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_against_all_second_derivatives(
    n_outputs, has_intercept, is_sparse, rows, make_shards, run_ranks
):
    weight = rows.weight / rows.weight.mean()
    n_rows, n_features = rows.X.shape
    X = sparse.csr_array(rows.X) if is_sparse else rows.X
    y = rows.y if n_outputs > 1 else (rows.y > 0).astype(int)
    shards = make_shards(2, X, y, weight)
    rng = np.random.default_rng(0)
    W, b = rng.normal(size=(n_outputs, n_features)), rng.normal(size=n_outputs)

    def program(group):
        problem = Problem(
            shard=shards[group.rank],
            classes=np.arange(max(2, n_outputs)),
            n_problems=n_outputs,
            weight=1.0,
            total_weight=float(n_rows),
            total_rows=n_rows,
            total_stored=X.size,
            dtype=X.dtype,
        )
        totals = add_up(problem, group, is_centred=False)
        place = {"fit_intercept": has_intercept, "totals": totals, "group": group}
        objective = Objective(problem, Penalty(0.1), **place)
        intercept = b if has_intercept else None
        matrix = ParameterMatrix(W.copy(), intercept, Penalty(0.1).prox)
        return objective.diagonal(matrix)

    found, nothing = run_ranks(program, 2)
    assert nothing is None
    places = np.arange(n_features + has_intercept)
    features, outputs = (
        np.repeat(places, n_outputs),
        np.tile(np.arange(n_outputs), len(places)),
    )
    p = softmax(rows.X @ W.T + b * has_intercept)
    expected = softmax_hessian(rows.X, p, weight, features, outputs) / n_rows
    np.testing.assert_allclose(found, np.diagonal(expected), atol=1e-12)


def make_model(diagonal):
    """A model of second derivatives, with units of 2 for all but an intercept."""
    objective = SimpleNamespace(diagonal=lambda matrix: 4 * diagonal)
    model = DiagonalModel(objective, (1, len(diagonal)), np.full(len(diagonal), 2.0))
    model.find(None)
    return model


def test_where_the_model_is_least():
    """No step of a variable makes it less."""
    rng = np.random.default_rng(0)
    diagonal, l1, l2 = rng.uniform(0.1, 1, size=(3, 20))
    point, gradient = 2 * rng.normal(size=(2, 20))
    found = make_model(diagonal).target(point, gradient, l1, l2)
    assert (found == 0).any() and (found > 0).any() and (found < 0).any()

    def values(x):
        step = x - point
        own = gradient * step + diagonal * step**2 / 2
        return own + l1 * np.abs(x) + l2 * x**2 / 2

    for change in (-1e-3, 1e-3):
        assert (values(found) <= values(found + change)).all()


def test_steps_that_were_too_long_are_shorter_next():
    model = make_model(np.ones(1))
    place = np.zeros(1), -np.ones(1), np.zeros(1), np.zeros(1)
    lengths = []
    for share in (0.25, 0.5, 1.0, 1.0, 1.0):
        lengths.append(float(model.target(*place)[0]))
        model.note_step(share)
    np.testing.assert_allclose(lengths[:4], [1, 1 / 4, 1 / 8, 1 / 5.6], rtol=1e-4)
    counts = []
    for share in (1.0, 1.0, 0.7, 0.2, 0.0, 0.0, 0.0):
        counts.append(model.most_products)
        model.note_step_on_face(share)
    assert counts == [4, 8, 16, 16, 8, 4, 2]


def test_the_inverse_of_single_second_derivatives():
    rng = np.random.default_rng(0)
    diagonal, l1, l2 = rng.uniform(0.1, 1, size=(3, 6))
    point = np.array([1.0, 0, 2, 0, -1, 1])
    face = Face(point, np.ones(6), l1, l2, 1)
    found = face.inverse_of_diagonal(diagonal)(np.arange(1.0, 7))
    expected = np.where(point != 0, np.arange(1.0, 7) / (diagonal + l2), 0)
    np.testing.assert_allclose(found, expected)
