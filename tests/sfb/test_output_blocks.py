"""Steps by second derivatives within outputs, for many coefficients of dense rows."""

import warnings
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from traced import traced

from dask_ma import SFBLogisticRegression
from dask_ma.data import Block, Shard
from dask_ma.exceptions import InsufficientMemoryError
from dask_ma.kernels import softmax, softmax_hessian
from dask_ma.sfb.logistic import (
    _curvature,
    _fit,
    _models,
    _objective,
    _refine,
    _room,
)
from dask_ma.sfb.logistic._curvature import moments_of_outputs
from dask_ma.sfb.logistic._models import BlockModel, has_blocks
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.model import _rows
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.prox import NoPenalty

X, y = load_digits(return_X_y=True)
X, y = X[:300] / 16, y[:300]
WEAK = {"penalty": "elasticnet", "alpha": 1e-4, "random_state": 0}


@pytest.fixture
def many(monkeypatch):
    """All are too many for second derivatives across outputs."""
    for module in (_fit, _refine):
        monkeypatch.setattr(module, "MOST_VARIABLES", 0)


def fit(X=X, y=y, **params):
    return SFBLogisticRegression(**{**WEAK, **params}).fit(X, y)


def objective(model, X=X, y=y):
    """Of an elastic net."""
    margins = X @ model.coef_.T + model.intercept_
    if margins.shape[1] == 1:
        margins = np.hstack([np.zeros_like(margins), margins])
    codes = np.searchsorted(model.classes_, y)
    losses = np.logaddexp.reduce(margins, axis=1) - margins[np.arange(len(y)), codes]
    ratio = {"l1": 1.0}.get(model.penalty, model.l1_ratio)
    coef = model.coef_
    norms = ratio * np.abs(coef).sum() + (1 - ratio) * np.vdot(coef, coef) / 2
    return float(losses.mean() + model.alpha * norms)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("l1_ratio", [0.15, 0.5, 0.9])
def test_weak_elastic_nets_of_dense_rows_come_to_their_optimum(l1_ratio, monkeypatch):
    params = {"alpha": 1e-5, "l1_ratio": l1_ratio}
    model = fit(**params)
    assert model.dual_gap_ <= 1e-3 * objective(model)
    exact = fit(tol=1e-5, **params)
    assert -1e-6 < objective(model) - objective(exact) <= model.dual_gap_
    # Without them neither dual ascent nor BFGS is there by then.
    monkeypatch.setattr(_models, "has_blocks", lambda *_: False)
    with pytest.warns(ConvergenceWarning):
        fit(max_iter=model.n_iter_, **params)


@pytest.mark.each
@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("n_classes", [2, 3, 4, 5])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_weak_1_norms_come_to_their_optimum(n_classes, fit_intercept):
    """Nothing but the penalty knows of the mean of the outputs of a feature."""
    rng = np.random.default_rng(0)
    rows, truth = rng.normal(size=(300, 20)), rng.normal(size=(n_classes, 20))
    classes = (rows @ truth.T + rng.gumbel(size=(300, n_classes))).argmax(axis=1)
    params = {"penalty": "l1", "solver": "sgd", "fit_intercept": fit_intercept}
    model = fit(rows, classes, tol=1e-5, max_iter=30, n_ranks=1, **params)
    assert model.dual_gap_ <= 1e-5 * objective(model, rows, classes)


@pytest.mark.parametrize(
    ("n_rows", "n_products"), [(100, 60), (10**5, 60), (10**6, 7), (10**9, 5)]
)
def test_products_with_many_rows_are_few(n_rows, n_products):
    """Each goes over all of them, where second derivatives are found from some."""
    model = BlockModel(SimpleNamespace(n_rows=n_rows), (10, 784), np.ones(7850))
    assert model.most_products == n_products


@pytest.mark.usefixtures("many")
def test_steps_among_points_of_the_same_signs_save_others(monkeypatch):
    """Those within outputs alone do not see how outputs change against each other."""
    params = {"alpha": 1e-6, "l1_ratio": 0.15, "tol": 1e-4, "n_ranks": 2}
    model = fit(**params)
    assert model.dual_gap_ <= 1e-4 * objective(model)
    monkeypatch.setattr(_refine.Refinement, "_step_on_face", lambda *_: None)
    with pytest.warns(ConvergenceWarning):
        fit(max_iter=2 * model.n_iter_, **params)


@pytest.mark.each
@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("penalty", ["l1", "elasticnet"])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_any_number_of_ranks_and_classes(penalty, n_classes, fit_intercept):
    rows = y < n_classes
    weight = 1.0 + np.arange(rows.sum()) % 3
    params = {"penalty": penalty, "fit_intercept": fit_intercept, "alpha": 1e-3}
    found = [
        SFBLogisticRegression(**{**WEAK, **params}, tol=1e-5, n_ranks=n)
        .fit(X[rows], y[rows], weight)
        .history_[-1]
        for n in (1, 3)
    ]
    for one in found:
        assert one["dual_gap"] <= 1e-5 * one["objective"]
    assert found[0]["objective"] == pytest.approx(found[1]["objective"], rel=1e-5)


@pytest.mark.usefixtures("many")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_resumed_fit(tmp_path):
    """In passes, from the last of them, and in steps after them."""
    params = {"tol": 1e-9, "n_ranks": 2}
    whole = fit(max_iter=11, **params)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        for n_passes in (5, 8, 10, 11):
            resumed = fit(max_iter=n_passes, **params)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    assert resumed.dual_gap_ == whole.dual_gap_


@pytest.mark.parametrize("is_sparse", [False, True])
def test_where_they_are_looked_at(is_sparse):
    totals = SimpleNamespace(is_sparse=is_sparse)
    elastic, ridge = Penalty(1e-4, 1e-4), Penalty(0.0, 1e-4)
    assert has_blocks(elastic, totals, (10, 784)) == (not is_sparse)
    assert has_blocks(Penalty(1e-4), totals, (1, 2000)) == (not is_sparse)
    assert not has_blocks(ridge, totals, (10, 784))
    assert not has_blocks(elastic, totals, (100, 784))


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("has_intercept", [False, True])
@pytest.mark.parametrize("n_bytes", [1, 120, 250, 2**20])
def test_against_all_second_derivatives(
    stride, n_outputs, has_intercept, n_bytes, run_ranks, monkeypatch
):
    """Those of one output, of all rows or some, however many are found at a time."""
    monkeypatch.setattr(_curvature, "_PART_BYTES", n_bytes)
    rng = np.random.default_rng(0)
    rows, weight = rng.normal(size=(40, 4)), rng.uniform(0.5, 2, 40)
    W, b = rng.normal(size=(n_outputs, 4)), rng.normal(size=n_outputs)
    features = np.repeat(np.arange(4 + has_intercept), n_outputs)
    outputs = np.tile(np.arange(n_outputs), 4 + has_intercept)

    def program(group):
        part = slice(0, 24) if group.rank == 0 else slice(24, 40)
        cut = rows[part], np.zeros(16 + 8 * (group.rank == 0)), weight[part]
        shard = Shard([Block(*cut, 0, part.start)], 4, rows.dtype)
        problem = SimpleNamespace(shard=shard, n_problems=n_outputs)
        totals = SimpleNamespace(centred=lambda X: X)
        matrix = ParameterMatrix(W.copy(), b if has_intercept else None, NoPenalty())
        return moments_of_outputs(problem, totals, group, matrix, stride)

    found, nothing = run_ranks(program, 2)
    assert nothing is None
    picked = np.concatenate([np.arange(0, 24, stride), np.arange(24, 40, stride)])
    margins = rows[picked] @ W.T + b * has_intercept
    p = softmax(margins)
    whole = softmax_hessian(rows[picked], p, weight[picked], features, outputs)
    whole /= weight[picked].sum()
    for k in range(n_outputs):
        own = np.flatnonzero(outputs == k)
        np.testing.assert_allclose(found[:, k], whole[np.ix_(own, own)], atol=1e-12)


@pytest.mark.parametrize("n_bytes", [0, 64 * 8 * 3, 2**26])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_products_keep_some_probabilities(n_bytes, n_outputs, run_ranks, monkeypatch):
    """Those that are too many are found again."""
    monkeypatch.setattr(_curvature, "_KEPT_BYTES", n_bytes)
    monkeypatch.setattr(_rows, "_CHUNK", 1)  # batches of 64 rows
    rng = np.random.default_rng(0)
    rows, weight = rng.normal(size=(200, 4)), rng.uniform(0.5, 2, 200)
    W, b = rng.normal(size=(n_outputs, 4)), rng.normal(size=n_outputs)

    def program(group):
        shard = Shard([Block(rows, np.zeros(200), weight, 0, 0)], 4, rows.dtype)
        problem = SimpleNamespace(shard=shard, n_problems=n_outputs, total_rows=200)
        totals = SimpleNamespace(centred=lambda X: X)
        matrix = ParameterMatrix(W.copy(), b, NoPenalty())
        curvature = _curvature.Curvature(problem, totals, group, matrix)
        kept = sum(map(len, curvature._kept))
        return kept, [curvature.product(W.T, b) for _ in range(2)]

    [(kept, products)] = run_ranks(program, 1)
    assert kept == {0: 0, 2**26: 200}.get(n_bytes, 64 if n_outputs == 3 else 192)
    features = np.repeat(np.arange(5), n_outputs)
    outputs = np.tile(np.arange(n_outputs), 5)
    p = softmax(rows @ W.T + b)
    whole = softmax_hessian(rows, p, weight, features, outputs) / 200
    expected = (whole @ np.vstack([W.T, b]).ravel()).reshape(5, n_outputs)
    for values, slopes in products:
        np.testing.assert_allclose(np.vstack([values, slopes]), expected, atol=1e-12)


def test_only_rank_0_has_them_all(run_ranks, monkeypatch):
    n_outputs, n_features, n_bytes = 6, 300, 2**17
    monkeypatch.setattr(_curvature, "_PART_BYTES", n_bytes)
    rows = np.random.default_rng(0).normal(size=(40, n_features)).astype(np.float32)

    def program(group):
        shard = Shard([Block(rows, np.zeros(40), None, 0, 0)], n_features, rows.dtype)
        problem = SimpleNamespace(shard=shard, n_problems=n_outputs)
        totals = SimpleNamespace(centred=lambda X: X)
        zeros = np.zeros((n_outputs, n_features), dtype=np.float32)
        matrix = ParameterMatrix(zeros, None, NoPenalty())
        return moments_of_outputs(problem, totals, group, matrix, 1)

    run_ranks(program, 4)  # loads what it needs
    with traced() as memory:
        run_ranks(program, 4)
    # Each rank may have a part, the one before, products, scaled rows, and one that is
    # under way; all of theirs would be three times the matrix.
    assert memory.peak <= 1.3 * 4 * n_outputs * n_features**2 + 4 * 5 * n_bytes


@pytest.mark.usefixtures("many")
def test_without_memory_for_them(monkeypatch):
    """Steps go on without; nothing but the way there is another one."""
    params = {"alpha": 1e-3, "n_ranks": 2}
    expected = fit(**params)
    needed = _room.step_bytes(640, 8, 2, has_root=True)
    limit = int((needed + 4 * 10 * 64**2) / _room._MOST)  # half of them
    monkeypatch.setattr(_room, "_SMALL", 0)
    monkeypatch.setattr(_room, "memory_here", lambda: limit)
    monkeypatch.setattr(_objective, "moments_of_outputs", None)
    model = fit(**params)
    assert model.dual_gap_ <= 1e-3 * objective(model)
    assert abs(objective(model) - objective(expected)) <= 1e-3 * objective(expected)


@pytest.mark.each
@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("solver", ["sgd", "sdca"])
def test_without_memory_for_steps_on_the_whole_objective(monkeypatch, n_ranks, solver):
    """There are passes alone, unless the steps are asked for."""
    monkeypatch.setattr(_room, "_SMALL", 0)
    monkeypatch.setattr(_room, "memory_here", lambda: 10**5)
    monkeypatch.setattr(_fit, "Refinement", None)
    params = {"alpha": 1e-5, "solver": solver, "n_ranks": n_ranks, "max_iter": 30}
    with pytest.warns(ConvergenceWarning, match="would be enough"):
        model = fit(**params)
    assert np.isfinite(model.coef_).all()
    with pytest.raises(
        InsufficientMemoryError, match=r"10 outputs and 64 features.*iB"
    ):
        fit(refine=True, **params)
    monkeypatch.setattr(_room, "memory_here", lambda: 10**9)
    with pytest.raises(TypeError):
        fit(**params)


def spread_out():
    """Rows on which passes alone end far from the optimum."""
    rng = np.random.default_rng(0)
    rows, truth = rng.normal(size=(600, 64)), 3 * rng.normal(size=(10, 64))
    rows = (rows * np.logspace(0, -1, 64)).astype(np.float32)
    classes = (rows @ truth.T + rng.gumbel(size=(600, 10))).argmax(axis=1)
    params = {"penalty": "l2", "alpha": 3e-4, "solver": "sgd", "tol": 1e-2}
    return (rows, classes), {**params, "n_ranks": 2}


@pytest.mark.parametrize(
    ("limit", "message"),
    [(10**5, r"gap of .*larger workers.*would be enough"), (10, "is not known.*iB")],
)
def test_passes_that_end_early_for_lack_of_memory_warn(monkeypatch, limit, message):
    """With a gap, if there is memory for that."""
    data, params = spread_out()
    monkeypatch.setattr(_room, "_SMALL", 0)
    monkeypatch.setattr(_room, "memory_here", lambda: limit)
    with pytest.warns(ConvergenceWarning, match=message):
        model = fit(*data, **params)
    assert model.n_iter_ < model.max_iter
    assert hasattr(model, "dual_gap_") == (limit > 10)


def test_a_fit_that_goes_on_on_larger_workers_has_their_memory(tmp_path, monkeypatch):
    """As the warning says."""
    data, params = spread_out()
    monkeypatch.setattr(_room, "_SMALL", 0)
    monkeypatch.setattr(_room, "memory_here", lambda: 10)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with pytest.warns(ConvergenceWarning, match="larger workers"):
            fit(*data, max_iter=5, **params)
        monkeypatch.setattr(_room, "memory_here", lambda: 10**9)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            model = fit(*data, **params)
    assert model.dual_gap_ <= 1e-2 * model.history_[-1]["objective"]


@pytest.mark.parametrize(
    "changes", [{"penalty": None}, {"penalty": "trace", "alpha": 0.01, "max_iter": 40}]
)
def test_fits_that_need_no_memory_for_steps_lack_none(monkeypatch, changes):
    """There is no bound without a penalty, and no step with this one."""
    data, params = spread_out()
    monkeypatch.setattr(_room, "_SMALL", 0)
    monkeypatch.setattr(_room, "memory_here", lambda: 10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        if changes["penalty"] is None:
            del params["alpha"]
        fit(*data, **{**params, "refine": False, **changes})
    assert not [each for each in caught if "larger workers" in str(each.message)]


def test_no_steps_are_advised_for_which_there_is_no_memory(monkeypatch):
    data, params = spread_out()
    params.update(refine=False)
    monkeypatch.setattr(_room, "_SMALL", 0)
    for limit in (10**9, 10**5):
        monkeypatch.setattr(_room, "memory_here", lambda: limit)  # noqa: B023
        with pytest.warns(ConvergenceWarning, match="scale the features") as caught:
            fit(*data, **params)
        [text] = [str(each.message) for each in caught]
        assert ("leave refine at 'auto'" in text) == (limit == 10**9)


@pytest.mark.parametrize("refine", ["auto", True, False])
def test_steps_are_advised_only_where_they_are_off(refine):
    data, params = spread_out()
    params.update(refine=refine, tol=1e-6, max_iter=2, solver="sdca")
    with pytest.warns(ConvergenceWarning, match="duality gap") as caught:
        fit(*data, **params)
    [text] = [str(each.message) for each in caught]
    advised = "Raise max_iter or tol, scale the features, or leave refine at 'auto'"
    if refine is False:
        assert text.endswith(advised)
    else:
        assert text.endswith("Raise max_iter or tol, or scale the features")


def test_no_more_passes_are_advised_where_they_change_nothing():
    data, params = spread_out()
    with pytest.warns(ConvergenceWarning, match="no longer lowered") as caught:
        fit(*data, **params, refine=False)
    [text] = [str(each.message) for each in caught]
    assert "Raise tol, scale the features, or leave" in text


@pytest.mark.each
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("refine", ["auto", True])
@pytest.mark.parametrize("first", [3, 5])
def test_a_resumed_fit_has_the_memory_that_there_was(
    tmp_path, monkeypatch, refine, first
):
    data, params = spread_out()
    params.update(refine=refine, communication="factors")
    whole = fit(*data, **params)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(*data, max_iter=first, **params)
        monkeypatch.setattr(_room, "_SMALL", 0)
        monkeypatch.setattr(_room, "memory_here", lambda: 10)
        resumed = fit(*data, **params)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    assert resumed.dual_gap_ == whole.dual_gap_
