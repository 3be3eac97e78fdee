"""Classes that a linear model separates: no penalty, no minimum."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SFBLogisticRegression
from dask_ma.data import Block, Shard
from dask_ma.kernels import log_loss_sum
from dask_ma.sfb._engine import BroadcastEngine
from dask_ma.sfb.logistic import _fit
from dask_ma.sfb.logistic._separation import separates
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.prox import NoPenalty

TOL = 1e-3
ENDLESS = "the classes are linearly separable"


def make_rows(n_classes, n_rows=300):
    """Rows of some classes that are apart, in random order."""
    rng = np.random.default_rng(0)
    y = np.arange(n_rows) % n_classes
    X = rng.uniform(-1, 1, size=(n_rows, 4))
    X[:, :3] += 3 * np.eye(3)[y]
    order = rng.permutation(n_rows)
    return X[order] + [0, 5, 0, 0], y[order]


def fit(X, y, weight=None, **params):
    model = SFBLogisticRegression(alpha=0, random_state=0)
    return model.set_params(**params).fit(X, y, sample_weight=weight)


def loss_of(model, X, y):
    """The mean loss by the model's own coefficients."""
    margins = X @ model.coef_.T.astype(np.float64) + model.intercept_
    return log_loss_sum(margins, y) / len(y)


@pytest.mark.parametrize("kind", [np.float64, np.float32, sparse.csr_array])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_they_end_with_a_warning(kind, n_classes, n_ranks):
    X, y = make_rows(n_classes)
    given = X.astype(kind) if kind is np.float32 else kind(X)
    with pytest.warns(ConvergenceWarning, match=ENDLESS) as found:
        model = fit(given, y, n_ranks=n_ranks)
    assert "set alpha above 0" in str(found[0].message)
    assert len(found) == 1 and model.n_iter_ < 40
    assert (model.predict(X) == y).all()
    assert loss_of(model, X, y) <= 1.001 * TOL * np.log(n_classes)


@pytest.mark.parametrize(
    ("params", "cure"),
    [
        ({"penalty": None, "alpha": 1e-4}, "set penalty='l2' and alpha above 0"),
        ({"penalty": "l1"}, "set alpha above 0"),
        ({"penalty": "trace"}, "set alpha above 0"),
        ({"fit_intercept": False}, "set alpha above 0"),
        ({"solver": "sgd", "refine": False}, "set alpha above 0"),
        ({"solver": "sgd", "communication": "outputs"}, "set alpha above 0"),
    ],
    ids=str,
)
def test_no_penalty_of_any_kind(params, cure):
    with pytest.warns(ConvergenceWarning, match=ENDLESS) as found:
        fit(*make_rows(3), **params)
    assert cure in str(found[0].message)


def test_a_penalty_has_an_optimum():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(*make_rows(3), alpha=1e-6)


def test_one_row_that_is_in_its_way():
    """Two rows that are the same, of two classes, next to very many others."""
    X, y = make_rows(2, 6000)
    X, y = np.vstack([X, X[:1]]), np.append(y, 1 - y[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fit(X, y, tol=0.1)  # the objective is less than this times log 2
    assert loss_of(model, X, y) < 0.1 * np.log(2)
    # Rows of no weight are in nobody's way.
    weight = np.ones(len(y))
    weight[-1] = 0
    with pytest.warns(ConvergenceWarning, match=ENDLESS):
        fit(X, y, weight, tol=0.1)


def test_nobody_is_asked_before_it_matters(monkeypatch):
    asked = []
    monkeypatch.setattr(_fit, "separates", lambda *a: asked.append(a) or True)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    y = (X[:, 0] + rng.logistic(size=400) > 0).astype(int)
    fit(X, y)
    assert not asked
    fit(*make_rows(2), tol=None, max_iter=20)
    assert not asked


def test_outputs_that_stay_shared_out(monkeypatch):
    """Of these no rank has all at any time, nor does anybody look at all."""

    def whole(engine):
        raise AssertionError("a rank has all outputs")

    monkeypatch.setattr(BroadcastEngine, "whole", whole)
    place = {"n_ranks": 3, "communication": "outputs", "refine": False}
    with pytest.warns(ConvergenceWarning, match="maximum of 40 rounds"):
        fit(*make_rows(3), solver="sgd", max_iter=40, tol=0.02, **place)


# Rows and models ----------------------------------------------------------------------


def ask(run_ranks, rows, values, intercept, *, weight=None, centre=None):
    """What two ranks say of a model, and of rows that they share."""
    X, y = rows
    totals = Totals(centre, np.ones(2), None, 1.0, np.ones(X.shape[1]), False)

    def agent(group):
        own = slice(group.rank, None, 2)
        part = None if weight is None else weight[own]
        shard = Shard([Block(X[own], y[own], part, 0, 0)], X.shape[1], X.dtype)
        matrix = ParameterMatrix(values.T.copy(), intercept, NoPenalty())
        return separates(SimpleNamespace(shard=shard), totals, group, matrix)

    found = run_ranks(agent, 2)
    assert len(set(found)) == 1
    return found[0]


@pytest.mark.parametrize("kind", [np.array, sparse.csr_array])
def test_rows_of_two_classes(run_ranks, kind):
    X = np.array([[-3.0, 1], [2, 0], [4, 0], [-2, 0]])
    y = np.array([0, 1, 1, 0])
    values, none = np.array([[1.0], [0.0]]), None
    assert ask(run_ranks, (kind(X), y), values, none)
    assert not ask(run_ranks, (kind(X), 1 - y), values, none)
    assert not ask(run_ranks, (kind(X), y), 0 * values, none)
    assert not ask(run_ranks, (kind(X), y), 0.4 * values, none)  # by next to nothing
    assert not ask(run_ranks, (kind(X), y), values, np.array([1.5]))
    assert not ask(run_ranks, (kind(X), y), np.nan * values, none)
    other, weight = np.array([0, 1, 0, 0]), np.array([1.0, 1, 0, 2])
    assert not ask(run_ranks, (kind(X), other), values, none)
    assert ask(run_ranks, (kind(X), other), values, none, weight=weight)


def test_rows_of_three_classes(run_ranks):
    X, y = 3 * np.eye(3)[[0, 1, 2, 2, 1]], np.array([0, 1, 2, 2, 1])
    assert ask(run_ranks, (X, y), np.eye(3), np.zeros(3))
    assert ask(run_ranks, (X, y), np.eye(3), np.array([0, 0, 1.5]))
    assert not ask(run_ranks, (X, y), np.eye(3), np.array([0, 0, 2.5]))
    assert not ask(run_ranks, (X, np.array([0, 1, 2, 0, 1])), np.eye(3), np.zeros(3))


def test_rows_far_from_zero(run_ranks):
    """Intercepts are those of rows less their centre."""
    X, y = np.array([[999.0], [1001.0]], dtype=np.float32), np.array([0, 1])
    place = np.array([[2.0]], dtype=np.float32), np.zeros(1, dtype=np.float32)
    centre = np.array([1000.0], dtype=np.float32)
    assert ask(run_ranks, (X, y), *place, centre=centre)
    assert not ask(run_ranks, (X, y), *place, centre=centre + 1)
