"""Every accepted kind of input, and what does not go through the client."""

from contextlib import nullcontext
from functools import cache

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest
import sparse
from dask.sizeof import sizeof
from scipy import sparse as sp
from sklearn.base import clone

from dask_ma import MASGDClassifier, MASGDRegressor

# Rows in memory are dealt out to the ranks, those of Dask only if that is asked for.
PARAMS = {"max_iter": 3, "tol": None, "random_state": 0, "n_ranks": 2}
PARAMS["learning_rate"] = "optimal"  # without trials, which take as long as the rounds
PARAMS["shuffle"] = "ranks"
PARAMS["refine"] = None  # which goes over the same rows as the rounds
COLUMNS = list("abcdef")


@pytest.fixture(autouse=True)
def few_deals(monkeypatch):
    """Runs of some rows for each rank; of single rows each would be a task."""
    monkeypatch.setattr("dask_ma.data._placement._MOST_DEALS", 4)


def frame(X):
    return pd.DataFrame(X, columns=COLUMNS)


def blocks(X, chunks=30):
    return da.from_array(X, chunks=(chunks, *X.shape[1:]))


def unknown(X):
    """The same blocks, of lengths that only a computation can tell."""
    keys = blocks(X).to_delayed().ravel()
    return da.concatenate(
        [da.from_delayed(key, (np.nan, *X.shape[1:]), X.dtype) for key in keys],
        allow_unknown_chunksizes=True,
    )


def data_frame(X):
    return dd.from_pandas(frame(X), npartitions=4)


IN_MEMORY = {
    "ndarray": np.asarray,
    "fortran": np.asfortranarray,
    "list": np.ndarray.tolist,
    "frame": frame,
    "csr_matrix": sp.csr_matrix,
    "csr_array": sp.csr_array,
    "csc_matrix": sp.csc_matrix,
    "coo_array": sp.coo_array,
}
ON_DASK = {
    "numpy": blocks,
    "unknown": unknown,
    "csr_matrix": lambda X: blocks(X).map_blocks(sp.csr_matrix),
    "csr_array": lambda X: blocks(X).map_blocks(sp.csr_array),
    "csc_matrix": lambda X: blocks(X).map_blocks(sp.csc_matrix),
    "COO": lambda X: blocks(X).map_blocks(sparse.COO),
    "GCXS": lambda X: blocks(X).map_blocks(
        lambda b: sparse.GCXS(b, compressed_axes=(0,))
    ),
    "frame": data_frame,
}
SPARSE = {"csr_matrix", "csr_array", "csc_matrix", "coo_array", "COO", "GCXS"}


@pytest.fixture(scope="module")
def expected(multi, binary):
    """``expected(data, kind)``: the same rows, dense or CSR, on threads here."""

    @cache
    def fit(is_multi, is_sparse):
        X, y = multi if is_multi else binary
        X = sp.csr_array(X) if is_sparse else X
        return MASGDClassifier(**PARAMS).fit(X, y)

    return lambda data, kind: fit(data is multi, kind in SPARSE)


def assert_same(model, other):
    np.testing.assert_array_equal(model.coef_, other.coef_)
    np.testing.assert_array_equal(model.intercept_, other.intercept_)
    assert model.history_[-1]["objective"] == other.history_[-1]["objective"]


@pytest.fixture(params=["here", "cluster"])
def place(request, inproc_client):
    """Threads of this process, or its workers."""
    with nullcontext() if request.param == "here" else inproc_client.as_current():
        yield


@pytest.mark.each
@pytest.mark.parametrize("kind", sorted(IN_MEMORY))
def test_memory(multi, kind, place, expected):
    X, y = multi
    model = MASGDClassifier(**PARAMS).fit(IN_MEMORY[kind](X), y)
    assert_same(model, expected(multi, kind))


@pytest.mark.each
@pytest.mark.parametrize("kind", sorted(ON_DASK))
def test_dask(multi, kind, place, expected):
    X, y = multi
    if kind == "frame":
        y = dd.from_pandas(pd.Series(y), npartitions=4)
    elif kind not in ("csr_array", "GCXS"):  # whose labels are in memory
        y = unknown(y) if kind == "unknown" else blocks(y)
    model = MASGDClassifier(**PARAMS).fit(ON_DASK[kind](X), y)
    assert_same(model, expected(multi, kind))


@pytest.mark.parametrize("kind", ["csr_matrix", "COO", "frame"])
def test_processes(multi, kind, processes, expected):
    X, y = multi
    model = MASGDClassifier(**PARAMS).fit(ON_DASK[kind](X), y)
    assert_same(model, expected(multi, kind))


@pytest.mark.parametrize("kind", ["csr_array", "frame"])
def test_persisted(multi, kind, cluster):
    lazy, y = ON_DASK[kind](multi[0]).persist(), multi[1]
    params = {**PARAMS, "loss": "log_loss", "max_iter": 5, "n_ranks": 4}
    model = MASGDClassifier(**params).fit(lazy, y)
    reference = MASGDClassifier(**params).fit(*multi)
    # Where blocks lie decides which rank has them: another order, the same problem.
    assert model.history_[-1]["n_samples"] == reference.history_[-1]["n_samples"]
    assert model.score(lazy, y) > reference.score(*multi) - 0.05


@pytest.mark.each
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, bool])
@pytest.mark.parametrize("n_ranks", [1, 4])
def test_types_of_numbers(multi, dtype, n_ranks, cluster):
    X, y = (10 * multi[0]).astype(dtype), multi[1]
    model = MASGDClassifier(**{**PARAMS, "n_ranks": n_ranks}).fit(blocks(X), y)
    assert model.coef_.dtype == (np.float32 if dtype == np.float32 else np.float64)
    other = MASGDClassifier(**{**PARAMS, "n_ranks": n_ranks}).fit(X, y)
    if n_ranks == 4:
        assert_same(model, other)
    assert model.coef_.shape == other.coef_.shape


# -- Shapes of the blocks ------------------------------------------------------------

IN_ORDER = {**PARAMS, "shuffle": False, "local_epochs": 1}


@pytest.fixture(scope="module")
def in_order(binary):
    """The model of rows in blocks of equal length."""
    X, y = binary
    return MASGDClassifier(**IN_ORDER).fit(blocks(X), y)


@pytest.mark.parametrize(
    "chunks",
    [(7, 13, 100), (30, 0, 30, 60), (0, 0, 120), tuple([1] * 120)],
    ids=str,
)
def test_blocks_of_any_length(binary, in_order, chunks, cluster):
    X, y = binary
    dX = da.from_array(X, chunks=(chunks, -1))
    # The plan gives each rank the same rows whatever the blocks are.
    model, reference = MASGDClassifier(**IN_ORDER).fit(dX, y), in_order
    np.testing.assert_allclose(model.coef_, reference.coef_, rtol=1e-10)


@pytest.mark.parametrize("n_rows", [2, 5])
def test_fewer_rows_than_ranks(n_rows, inproc_client):
    X, y = np.eye(n_rows, 3) + 1, np.arange(n_rows) % 2
    here = MASGDClassifier(**{**PARAMS, "n_ranks": 4}).fit(X, y)
    with inproc_client.as_current():
        there = MASGDClassifier(**{**PARAMS, "n_ranks": None})
        assert_same(there.fit(X, y), here)
        for lazy in (blocks(X, 1), unknown(X)):
            there.fit(lazy, y)
            assert there.history_[0]["n_samples"] == here.history_[0]["n_samples"]


def test_one_block_for_four_workers(binary, cluster):
    X, y = binary
    model = MASGDClassifier(**{**PARAMS, "n_ranks": 4})
    here = clone(model).fit(X, y)
    assert_same(model.fit(blocks(X, 120), y), here)


def test_blocks_of_one_class(multi, cluster):
    X, y = multi
    order = np.argsort(y, kind="stable")
    lazy = MASGDClassifier(**PARAMS).fit(blocks(X[order]), blocks(y[order]))
    assert lazy.classes_.tolist() == [0, 1, 2, 3]
    assert_same(lazy, MASGDClassifier(**PARAMS).fit(X[order], y[order]))


@pytest.mark.parametrize("kind", ["str", "object", "bool"])
def test_labels_on_dask(binary, kind, cluster, expected):
    X, y = binary
    labels = {
        "str": np.array(["no", "yes"])[y],
        "object": np.array(["no", "yes"], dtype=object)[y],
        "bool": y == 1,
    }[kind]
    model = MASGDClassifier(**PARAMS).fit(blocks(X), blocks(labels))
    np.testing.assert_array_equal(model.classes_, np.unique(labels))
    np.testing.assert_array_equal(model.coef_, expected(binary, "numpy").coef_)


def test_column_chunks_are_joined_with_a_warning(binary, cluster, expected):
    X, y = binary
    lazy = da.from_array(X, chunks=(30, 2))
    model = MASGDClassifier(**PARAMS)
    with pytest.warns(UserWarning, match="X has 3 chunks of columns, expected one"):
        model.fit(lazy, y)
    assert_same(model, expected(binary, "numpy"))


@pytest.mark.parametrize("chunks", [30, 50, None])
def test_weights_and_labels_are_aligned(binary, weights, chunks, cluster):
    X, y = binary
    reference = MASGDClassifier(**PARAMS).fit(X, y, sample_weight=weights)
    if chunks is not None:
        y, weights = blocks(y, chunks), blocks(weights, chunks)
    model = MASGDClassifier(**PARAMS).fit(blocks(X), y, sample_weight=weights)
    assert_same(model, reference)


def test_lazy_labels_of_rows_in_memory(binary, cluster, expected):
    X, y = binary
    assert_same(MASGDClassifier(**PARAMS).fit(X, blocks(y)), expected(binary, "numpy"))


def test_names_of_features(binary, cluster):
    X, y = binary
    model = MASGDRegressor(**PARAMS).fit(data_frame(X), y)
    assert model.feature_names_in_.tolist() == COLUMNS
    assert model.n_features_in_ == 6
    np.testing.assert_array_equal(
        model.coef_, MASGDRegressor(**PARAMS).fit(frame(X), y).coef_
    )


def test_numbers_of_ranks(binary, inproc_client, wide_client):
    """One per worker thread with a client, one without; a number is a number."""

    def n_ranks(**params):
        model = MASGDClassifier(max_iter=1, tol=None, local_epochs=1e-9, **params)
        return model.fit(*binary).history_[0]["n_samples"]

    assert n_ranks() == 1
    assert n_ranks(n_ranks=5) == 5
    for client, n_threads in ((inproc_client, 4), (wide_client, 8)):
        with client.as_current():
            assert n_ranks() == n_threads
            assert n_ranks(n_ranks=3) == 3
            assert n_ranks(n_ranks=9) == 9


# -- What the client does not see ----------------------------------------------------


@pytest.fixture
def gathered(monkeypatch):
    """Bytes that have come to the client so far, one entry per call."""
    sizes = []
    original = distributed.Client._gather

    async def gather(self, futures, *args, **kwargs):
        result = await original(self, futures, *args, **kwargs)
        sizes.append(sizeof(result))
        return result

    monkeypatch.setattr(distributed.Client, "_gather", gather)
    return sizes


@pytest.mark.each
@pytest.mark.parametrize("kind", ["numpy", "unknown", "csr_array", "frame"])
@pytest.mark.parametrize("persist", [False, True])
def test_rows_do_not_come_to_the_client(kind, persist, cluster, gathered, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8000, 6))
    lazy = {
        "numpy": lambda: blocks(X, 2000),
        "unknown": lambda: blocks(X, 2000)[da.from_array(X[:, 0] < 9, chunks=2000)],
        "csr_array": lambda: blocks(X, 2000).map_blocks(sp.csr_array),
        "frame": lambda: data_frame(X),
    }[kind]()
    lazy = lazy.persist() if persist else lazy
    y = (X[:, 0] > 0).astype(int)

    def refuse(*args, **kwargs):
        raise AssertionError("something was computed for the client")

    monkeypatch.setattr(dask, "compute", refuse)
    monkeypatch.setattr(type(lazy), "compute", refuse)
    model = MASGDClassifier(**{**PARAMS, "max_iter": 1}).fit(lazy, y)
    model.predict(lazy)
    # A block of X has 96,000 bytes, the model 56. Most of what comes is the timeline,
    # with the messages of the trial of step sizes.
    assert gathered
    assert sum(gathered) < 48_000


def test_model_comes_to_the_client_once(cluster, gathered):
    rng = np.random.default_rng(0)
    X = sp.random(200, 50_000, 0.001, "csr", random_state=rng)
    params = {**PARAMS, "max_iter": 6}
    MASGDClassifier(**params).fit(X, rng.integers(0, 2, 200))
    assert 400_000 < sum(gathered) < 500_000


def test_no_large_graph(cluster):
    """The warning, an error here, comes from 10 MB on; the control shows it."""
    X = np.zeros((16_000, 100))
    y = np.arange(16_000) % 2
    params = {**PARAMS, "max_iter": 1, "local_epochs": 0.01}
    model = MASGDClassifier(**params).fit(X, y)
    rows = da.zeros((16_000, 100), chunks=(4_000, -1))
    MASGDClassifier(**params).fit(rows, y, sample_weight=np.ones(16_000))
    assert model.n_iter_ == 1
    with pytest.warns(UserWarning, match="Sending large graph"):
        cluster.persist(da.from_array(X, chunks=(4_000, -1)))


def test_no_large_graph_for_a_large_model(cluster):
    n_features = 140_000  # of 8 bytes each
    X = sp.random(2, n_features, 1e-4, "csr", random_state=0)
    params = {**PARAMS, "max_iter": 1, "n_ranks": 1}
    model = MASGDClassifier(**params).fit(X, [0, 1])
    lazy = da.from_array(np.zeros((2, 1)), chunks=(1, 1)).map_blocks(
        lambda block: sp.csr_array((1, n_features)),
        chunks=((1, 1), (n_features,)),
        meta=sp.csr_array((0, 0)),
    )
    # The warning, an error here, comes from 1 MB on.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1MB"}):
        scores = model.decision_function(lazy).compute()
    np.testing.assert_allclose(scores, np.full(2, model.intercept_[0]))
