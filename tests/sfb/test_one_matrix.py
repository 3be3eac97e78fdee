"""Ranks of a process that have the same matrix at all times have it together."""

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_iris
from traced import traced

from dask_ma import (
    SFBDictionaryLearning,
    SFBLogisticRegression,
    SFBMetricLearner,
)
from dask_ma.comm import LocalGroup
from dask_ma.sfb import Exchange, FactorModel, ParameterMatrix, run
from dask_ma.sfb._best import Best
from dask_ma.sfb._engine import BroadcastEngine
from dask_ma.sfb.exchange import _full_matrix
from dask_ma.sfb.exchange._full_matrix import MatrixExchange
from dask_ma.sfb.logistic import _class_sums, _dual_model
from dask_ma.sfb.metric._fit import MetricFit
from dask_ma.sfb.model import _dual
from dask_ma.sfb.model._factors import Factors
from dask_ma.sfb.prox import L1, L2, ColumnNormBall, ElasticNet, NoPenalty

J, D = 100, 4000
BYTES = J * D * 8


class Large(FactorModel):
    """A matrix that is large against rows and factors."""

    fit_intercept = True
    learning_rate = 1e-3

    def __init__(self, prox):
        self.prox = prox

    def initial_matrix(self, n_features):
        return np.ones((J, n_features))

    def factors(self, matrix, batch):
        return np.tanh(matrix.product(batch.X)), batch.X

    def loss(self, matrix, batch):
        return float((matrix.product(batch.X) ** 2).sum())


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    """Parts that are sent at a time are small beside small matrices, too."""
    monkeypatch.setattr(_full_matrix, "_LEAST_BYTES", 2**16)


def peak(model, X, **options):
    """Most memory at a time of a run, in matrices."""
    with traced() as memory:
        run(model, X, n_passes=2, batch_size=4, random_state=0, dtype=None, **options)
    return memory.peak / BYTES


@pytest.mark.each
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("prox", [NoPenalty(), L1(1e-3), L2(0.1)], ids=repr)
@pytest.mark.parametrize("content", ["factors", "full_matrix", "server", "auto"])
def test_memory_of_four_ranks(prox, kind, content):
    X = np.random.default_rng(0).normal(size=(16, D))
    X[np.random.default_rng(1).random(X.shape) < 0.5] = 0
    of_one, of_four = (
        peak(Large(prox), kind(X), n_ranks=n, communication=content) for n in (1, 4)
    )
    # What parts of the updates there are, and what becomes of them, comes besides.
    assert of_four <= min(2.6, of_one + 0.5)
    if content != "factors":
        return
    # Ranks that are apart need more, so what is measured is a peak.
    apart = peak(
        Large(prox), kind(X), n_ranks=4, communication=Exchange("factors", staleness=1)
    )
    assert apart > 4


@pytest.mark.each
@pytest.mark.parametrize(
    "prox", [NoPenalty(), L1(1e-3), ElasticNet(1e-3, 0.1)], ids=repr
)
@pytest.mark.parametrize("content", ["factors", "full_matrix", "server", "auto"])
def test_memory_where_states_are_kept(inproc_client, prox, content):
    """The one that was kept goes before the next one is changed."""
    X = np.random.default_rng(0).normal(size=(16, 2 * D))
    with inproc_client.as_current():
        peak(Large(prox), X[:, :10], n_ranks=4, communication=content)
        found = peak(Large(prox), X, n_ranks=4, communication=content)
    assert found <= 2 * 2.7


@cache
def spread_rows(n_rows, n_features, n_stored):
    """Sparse rows of float32."""
    rng = np.random.default_rng(0)
    indices = np.argsort(rng.random((n_rows, n_features)), axis=1)[:, :n_stored]
    data = rng.normal(size=indices.size).astype(np.float32)
    starts = np.arange(0, indices.size + 1, n_stored)
    return sparse.csr_array(
        (data, np.sort(indices, axis=1).ravel(), starts), shape=(n_rows, n_features)
    )


@pytest.mark.each
@pytest.mark.parametrize("penalty", ["l2", "elasticnet"])
@pytest.mark.parametrize("content", ["factors", "full_matrix"])
def test_memory_of_dual_ascent(monkeypatch, penalty, content):
    """What bounds are made of is shared out, and kept as few numbers."""
    n_classes, n_features = 125, 8000
    # As large a share of a matrix as they are where matrices are large.
    for module in (_class_sums, _dual_model, _dual):
        for name in {"_PART_BYTES", "_CHUNK"} & set(vars(module)):
            monkeypatch.setattr(module, name, 2**14)
    monkeypatch.setattr(_full_matrix, "_LEAST_BYTES", 2**14)
    X, y = spread_rows(260, n_features, 10), np.arange(260) % n_classes
    model = SFBLogisticRegression(
        solver="sdca",
        penalty=penalty,
        refine=False,
        communication=content,
        batch_size=32,
        max_iter=2,
        tol=None,
        random_state=0,
        n_ranks=4,
    )
    # They are small, but so are these matrices.
    spans = {"dask-ma.trace.timeline": False, "dask-ma.trace.max-spans": 0}
    with dask.config.set(spans):
        model.fit(X[:, :100], y)  # loads what fits need
        with traced() as memory:
            model.fit(X, y)
    # The matrix and the best one, and of the sum of updates what is not zero.
    assert memory.peak <= 3 * n_classes * n_features * 4


def test_sums_of_classes_of_dense_rows_are_not_kept(monkeypatch):
    """They would be one more matrix of the process."""
    n_classes, n_features = 250, 4000
    for module in (_class_sums, _dual_model):
        for name in {"_PART_BYTES", "_CHUNK"} & set(vars(module)):
            monkeypatch.setattr(module, name, 2**14)
    # As where matrices are large: nor are updates made as a whole.
    monkeypatch.setattr(_class_sums, "_KEPT_BYTES", 0)
    monkeypatch.setattr(_full_matrix, "_SMALL_BYTES", 0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, n_features)).astype(np.float32)
    y = np.arange(500) % n_classes
    model = SFBLogisticRegression(
        solver="sdca",
        refine=False,
        communication="factors",
        batch_size=4,
        max_iter=2,
        tol=None,
        random_state=0,
        n_ranks=2,
    )
    spans = {"dask-ma.trace.timeline": False, "dask-ma.trace.max-spans": 0}
    with dask.config.set(spans):
        model.fit(X[:, :100], y)  # loads what fits need
        with traced() as memory:
            model.fit(X, y)
    # The matrix and the best one, and 32 rows of each rank: 2.8 matrices. Sums that are
    # kept would make one more.
    assert memory.peak <= 3 * n_classes * n_features * 4


@pytest.fixture
def uncollected():
    """No cycle of objects is found and freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 4])
@pytest.mark.parametrize(
    "make",
    [
        lambda X, y, n: SFBLogisticRegression(
            solver="sgd", max_iter=2, tol=None, refine=False, n_ranks=n
        ).fit(X, y),
        lambda X, y, n: SFBLogisticRegression(
            solver="sdca", max_iter=2, tol=None, refine=False, n_ranks=n
        ).fit(X, y),
        lambda X, y, n: run(
            Large(L2(0.1)), X, n_passes=2, n_ranks=n, communication="full_matrix"
        ),
        lambda X, y, n: SFBMetricLearner(8, max_iter=2, n_ranks=n).fit(X, y),
        lambda X, y, n: SFBDictionaryLearning(8, max_iter=2, n_ranks=n).fit(X),
    ],
    ids=["sgd", "sdca", "run", "metric", "dictionary"],
)
@pytest.mark.filterwarnings("ignore")  # few passes
def test_nothing_outlives_a_fit(uncollected, make, n_ranks):
    """Neither a second matrix, for the next fit to come on top of, nor the rows."""
    rng = np.random.default_rng(0)
    y = np.arange(64) % 32
    make(rng.normal(size=(64, 10)).astype(np.float32), y, n_ranks)  # loads modules
    X = rng.normal(size=(64, 20_000)).astype(np.float32)
    with traced() as memory:
        result = make(X, y, n_ranks)
    matrix = next(
        getattr(result, name)
        for name in ("coef_", "matrix", "components_")
        if hasattr(result, name)
    )
    assert memory.left <= matrix.nbytes + 1e6
    rows = weakref.ref(X)
    del X
    assert rows() is None


def places(engines):
    """Where the matrices lie."""
    return [e.matrix.values.__array_interface__["data"][0] for e in engines]


@pytest.mark.parametrize("content", ["factors", "full_matrix"])
@pytest.mark.parametrize(("per_node", "n"), [(4, 1), (2, 2), (1, 4)])
def test_one_for_each_process(
    run_engines, make_model, make_shards, rows, content, per_node, n
):
    shards = make_shards(4, rows.X, rows.y)
    options = {"per_node": per_node, "content": content}
    found = places(run_engines(make_model(), shards, **options))
    assert len(set(found)) == n


@pytest.mark.parametrize(
    "settings",
    [{"staleness": 1}, {"broadcast": 1}, {"content": "outputs"}],
    ids=["late", "partly", "outputs"],
)
def test_ranks_that_differ_have_their_own(
    run_engines, make_model, make_shards, rows, settings
):
    model = make_model()
    if "content" in settings:
        model = make_model(
            shares_outputs=True,
            share_slopes=lambda self, values, sums, batch, outputs: values,
        )
    shards = make_shards(3, rows.X, rows.y)
    assert len(set(places(run_engines(model, shards, **settings)))) == 3


def test_models_that_follow_updates_have_their_own(
    run_engines, make_model, make_shards, rows
):
    """They may look at the matrix between an update and the penalty."""
    seen = []

    def updated(self, matrix, factors, scale):
        seen.append(np.array(matrix))

    shards = make_shards(3, rows.X, rows.y)
    found = places(run_engines(make_model(updated=updated), shards))
    assert len(set(found)) == 3 and seen


@pytest.mark.each
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize(
    "prox",
    [NoPenalty(), L1(0.1), L2(0.9), ElasticNet(0.1, 0.3), ColumnNormBall(0.4)],
    ids=repr,
)
def test_the_same_bits_however_many_have_it(
    run_engines, make_model, make_shards, rows, prox, kind
):
    """Even where ranks look at all of a matrix that is behind."""

    def looking(self, matrix, batch):
        before = np.array(matrix)
        u = matrix.product(batch.X) - before.sum(axis=1)
        np.testing.assert_array_equal(before, np.array(matrix))
        return u, batch.X

    model = make_model(prox=prox, fit_intercept=True, factors=looking)
    shards = make_shards(5, kind(rows.X), rows.y)
    expected, *others = (
        run_engines(model, shards, 2, per_node=per_node) for per_node in (1, 2, 5, 5)
    )
    for engines in others:
        for one, other in zip(expected, engines, strict=True):
            np.testing.assert_array_equal(one.matrix, other.matrix)
            np.testing.assert_array_equal(one.matrix.intercept, other.matrix.intercept)


def test_each_has_its_own_after_uniting(run_ranks, make_model, make_shards, rows):
    from dask_ma.engine import RankContext, RoundLog
    from dask_ma.sfb._engine import BroadcastEngine
    from dask_ma.sfb.exchange._settings import RunSettings

    model, shards = make_model(prox=L2(0.3)), make_shards(3, rows.X, rows.y)
    settings = RunSettings(exchange=Exchange("factors"), batch_size=3)

    def program(group):
        context = RankContext(group, 0)
        engine = BroadcastEngine(
            context, model, shards[group.rank], settings, RoundLog(context)
        )
        engine.run_pass()
        shared = engine.matrix.values
        engine.unite()
        np.testing.assert_array_equal(engine.matrix.values, shared)
        return engine

    assert len(set(places(run_ranks(program, 3)))) == 3


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("by_server", [False, True])
@pytest.mark.parametrize("wire_dtype", [None, "float32"])
@pytest.mark.parametrize("most", [1, 3, 100])
def test_sums_of_updates_in_parts(monkeypatch, kind, by_server, wire_dtype, most):
    """However many parts there are; only owners keep the sum."""
    monkeypatch.setattr(_full_matrix, "_MOST_PARTS", most)
    monkeypatch.setattr(_full_matrix, "_LEAST_BYTES", 1)
    groups = LocalGroup.create(4, ranks_per_node=2)
    owner = ParameterMatrix(np.zeros((3, 7)), None, NoPenalty())
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n, 3)), rng.normal(size=(n, 7))) for n in (2, 0, 5, 1)]

    def total(group):
        exchange = MatrixExchange(group, by_server=by_server, wire_dtype=wire_dtype)
        matrix = owner if group.rank % 2 == 0 else owner.share(None)
        u, v = pairs[group.rank]
        return exchange.total(Factors(u, kind(v)), matrix)

    with ThreadPoolExecutor(4) as pool:
        totals = list(pool.map(total, groups))
    expected = sum(v.T @ u for u, v in pairs)
    tol = 1e-5 if wire_dtype else 1e-12
    for rank, found in enumerate(totals):
        assert (found.values is None) == (rank % 2 == 1)
        if found.values is not None:
            np.testing.assert_allclose(found.values, expected, tol, tol)
        slopes = sum(u.sum(axis=0) for u, _ in pairs)
        np.testing.assert_allclose(found.slopes, slopes, tol, tol)
        np.testing.assert_allclose(found.square, (expected**2).sum(), tol)


def test_none_goes_on_before_all_have_gone_back(monkeypatch):
    """One that is late would put the best values where others are at work already."""
    n_ranks, n_given, seen, lock = 3, [0], [], threading.Lock()
    give, run_pass = Best.give, BroadcastEngine.run_pass

    def give_late(best, matrix):
        if not matrix.is_owner:
            time.sleep(0.05)
        give(best, matrix)
        with lock:
            n_given[0] += 1

    def run_then(engine):
        seen.append(n_given[0])
        run_pass(engine)

    monkeypatch.setattr(Best, "give", give_late)
    monkeypatch.setattr(BroadcastEngine, "run_pass", run_then)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 6)), np.arange(90) % 3
    params = {"solver": "sgd", "refine": False, "communication": "factors"}
    SFBLogisticRegression(**params, n_ranks=n_ranks, random_state=0, tol=0.01).fit(X, y)
    assert max(seen) > 0 and all(n % n_ranks == 0 for n in seen)


def test_no_metric_learner_ends_before_all_have_gone_back(monkeypatch):
    """Nor does one go back while another still looks at the components."""
    given, looking, is_over = [], [], threading.Event()
    give, model, state_dict = Best.give, MetricFit.model, MetricFit.state_dict

    def give_late(best, matrix):
        assert not looking
        if not matrix.is_owner:
            is_over.wait(0.2)  # one that would be too early comes meanwhile
        give(best, matrix)
        given.append(matrix)

    def look(fit):
        looking.append(fit)
        is_over.wait(0.1)
        found = state_dict(fit)
        looking.remove(fit)
        return found

    def model_then(fit):
        if given:
            is_over.set()
            assert len(given) == 3
        return model(fit)

    monkeypatch.setattr(Best, "give", give_late)
    monkeypatch.setattr(MetricFit, "state_dict", look)
    monkeypatch.setattr(MetricFit, "model", model_then)
    X, y = load_iris(return_X_y=True)
    params = {"early_stopping": True, "communication": "factors", "max_iter": 2}
    SFBMetricLearner(2, **params, n_ranks=3, random_state=0).fit(X, y)
    assert sum(not matrix.is_owner for matrix in given) == 2
