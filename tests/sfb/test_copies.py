"""What a process has of matrices and rows is there once, or some features at a time."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_iris
from traced import traced

from dask_ma import SFBLogisticRegression
from dask_ma.comm import LocalGroup
from dask_ma.sfb import ParameterMatrix, _engine
from dask_ma.sfb.exchange import _full_matrix
from dask_ma.sfb.exchange._full_matrix import MatrixExchange
from dask_ma.sfb.logistic._fit import Fit
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.model import _factors
from dask_ma.sfb.model._factors import Factors, ManyFactors, stack
from dask_ma.sfb.model._model import Batch
from dask_ma.sfb.model._source import OwnRows
from dask_ma.sfb.prox import NoPenalty


def test_dense_rows_of_all_are_put_together_by_the_owner_alone(monkeypatch):
    """It takes some features of them at a time."""
    # As where matrices are large.
    monkeypatch.setattr(_full_matrix, "_SMALL_BYTES", 0)
    monkeypatch.setattr(_factors, "_MOST_ELEMENTS", 64)
    made = []

    def noting(parts, **wanted):
        made.append(stack(parts, **wanted))
        return made[-1]

    monkeypatch.setattr(_engine, "stack", noting)
    settings = {"refine": False, "tol": None, "max_iter": 2, "n_ranks": 4}
    settings |= {"communication": "factors", "batch_size": 8, "random_state": 0}
    X = np.random.default_rng(0).normal(size=(64, 10))
    SFBLogisticRegression(solver="sdca", **settings).fit(X, np.arange(64) % 4)
    own = [factors.v for factors in made if isinstance(factors, ManyFactors)]
    others = [factors.v for factors in made if not isinstance(factors, ManyFactors)]
    assert own and len(others) == 3 * len(own)
    assert all(isinstance(v, list) for v in own)
    assert all(v.shape[1] == 0 for v in others)


@pytest.mark.parametrize("weighted", [False, True])
def test_memory_of_the_first_step(weighted):
    """Of the rows that it is found from there is no centred copy."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 8000)).astype(np.float32)
    weight = rng.uniform(0.5, 1.5, size=400) if weighted else None
    model = SFBLogisticRegression(
        solver="sgd", refine=False, max_iter=1, tol=None, random_state=0, batch_size=4
    )
    y = np.arange(400) % 5
    model.fit(X[:, :100], y, weight)  # loads what fits need
    with traced() as memory:
        model.fit(X, y, weight)
    assert memory.peak <= X.nbytes


def test_dual_variables_that_nobody_asks_for_are_not_copied(monkeypatch):
    """There is no state to go on from in a process without workers."""
    kept, state_dict = [], Fit.state_dict

    def noting(fit):
        found = state_dict(fit)
        kept.append(found.own)
        return found

    monkeypatch.setattr(Fit, "state_dict", noting)
    X, y = load_iris(return_X_y=True)
    settings = {"refine": False, "tol": None, "max_iter": 2, "n_ranks": 2}
    SFBLogisticRegression(solver="sdca", **settings).fit(X, y)
    assert kept and all(own is None for own in kept)


@pytest.mark.parametrize("most", [1, 30, 55])
@pytest.mark.parametrize("n_features", [3, 9])
def test_rows_of_several_ranks_by_features(monkeypatch, most, n_features):
    """However many of them at a time, with more pairs than features and with fewer."""
    rng = np.random.default_rng(0)
    parts = [
        Factors(rng.normal(size=(n, 4)), rng.normal(size=(n, n_features)))
        for n in (2, 4, 0, 1)
    ]
    whole = stack(parts)
    monkeypatch.setattr(_factors, "_MOST_ELEMENTS", most)
    found = stack(parts, at_once=False)
    assert isinstance(found.v, list) == (7 * n_features > most)
    np.testing.assert_allclose(found.square(), ((whole.v.T @ whole.u) ** 2).sum())
    expected, matrix = (
        ParameterMatrix(np.ones((4, n_features)), np.ones(4), NoPenalty())
        for _ in range(2)
    )
    expected.subtract(whole, 0.5)
    matrix.subtract(found, 0.5)
    np.testing.assert_allclose(matrix.values, expected.values, rtol=1e-12)
    np.testing.assert_array_equal(matrix.intercept, expected.intercept)


def test_sums_of_few_features(monkeypatch):
    """Only those that are not zero are kept, and taken off."""
    monkeypatch.setattr(_full_matrix, "_LEAST_BYTES", 1)
    group, rng = LocalGroup.create(1)[0], np.random.default_rng(0)
    v = np.zeros((5, 400))
    v[:, [1, 2, 70, 399]] = rng.normal(size=(5, 4))
    factors = Factors(rng.normal(size=(5, 3)), sparse.csr_array(v))
    matrix = ParameterMatrix(np.ones((3, 400)), None, NoPenalty())
    exchange = MatrixExchange(group, by_server=False)
    total = exchange.total(factors, matrix)
    assert sum(len(piece.values) for piece in total.pieces) == 4
    update = v.T @ factors.u
    np.testing.assert_allclose(total.values, update, atol=1e-12)
    for features, rows, values in total.pieces:
        matrix.subtract_part(features, values, 0.5, rows)
    np.testing.assert_allclose(matrix.values, 1 - 0.5 * update, atol=1e-12)
    whole = exchange.total(factors, matrix, is_whole=True)
    assert len(whole.pieces) == 1
    np.testing.assert_array_equal(whole.values, total.values)


@pytest.mark.parametrize("kind", [Batch, OwnRows])
def test_rows_that_are_there_for_a_batch_are_centred_in_place(kind):
    X = np.ones((3, 2), dtype=np.float32)
    totals = Totals(np.ones(2, np.float32), None, None, 1.0, None, False)
    batch = kind(X, None, None, np.arange(3))
    found = totals.centred_batch(batch)
    assert np.shares_memory(found, X) == (kind is OwnRows)
    np.testing.assert_array_equal(found, 0)
    # Those of another type are not.
    wide = totals._replace(centre=np.ones(2))
    assert wide.centred_batch(batch).dtype == np.float64


@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_of_the_user_are_not_centred(shuffle):
    """Those of a batch are, in place, where they have been picked for it."""
    X = np.random.default_rng(0).normal(size=(64, 5)) + 3
    before, y = X.copy(), np.arange(64) % 4
    settings = {"refine": False, "tol": None, "max_iter": 2, "n_ranks": 2}
    settings |= {"shuffle": shuffle, "batch_size": 16}
    for solver in ("sgd", "sdca"):
        SFBLogisticRegression(solver=solver, **settings).fit(X, y)
        np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("solver", ["sgd", "sdca", "auto"])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_best_models_go_before_any_rank_makes_one(solver, n_ranks, monkeypatch):
    """What ranks have kept of the best pass is not there beside what comes of it."""
    fits, seen = [], []
    prepare, linear = Fit._prepare, Fit._linear

    def begin(self, state):
        fits.append(self)
        prepare(self, state)

    def make(self, **asked):
        seen.extend(fit._best.arrays for fit in fits)
        return linear(self, **asked)

    monkeypatch.setattr(Fit, "_prepare", begin)
    monkeypatch.setattr(Fit, "_linear", make)
    X, y = load_iris(return_X_y=True)
    SFBLogisticRegression(solver=solver, n_ranks=n_ranks, random_state=0).fit(X, y)
    assert len(fits) == n_ranks and seen
    assert all(value is None for arrays in seen for value in arrays.values())


@pytest.mark.parametrize("communication", ["auto", "outputs"])
def test_model_at_the_end_is_no_copy(monkeypatch, communication):
    """One that is looked at before is: the fit changes its own afterwards."""
    made, model = [], Fit.model

    def noting(fit, **wanted):
        found = model(fit), model(fit, **wanted)
        values = fit.engine.matrix.values
        made.extend(np.shares_memory(each["coef"], values) for each in found)
        return found[1]

    monkeypatch.setattr(Fit, "model", noting)
    X, y = load_iris(return_X_y=True)
    settings = {"refine": False, "tol": None, "max_iter": 2, "n_ranks": 1}
    settings["communication"] = communication
    SFBLogisticRegression(solver="sgd", **settings).fit(X, y)
    assert made == [False, True]
