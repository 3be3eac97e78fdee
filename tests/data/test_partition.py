"""Partitions of Dask and memory inputs on a cluster, and without one."""

from __future__ import annotations

import warnings

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sparse
from distributed import Client, LocalCluster, wait
from sklearn.exceptions import DataConversionWarning

from dask_ma.data import (
    Block,
    Shard,
    _collections,
    build_shard,
    join_shard,
    partition,
)
from dask_ma.data._spec import pack_pieces, pieces_in
from dask_ma.exceptions import NoWorkersError, PeerLostError

N, D = 103, 4


@pytest.fixture
def Xy():
    """Rows that can be told apart, and labels."""
    X = np.arange(N * D, dtype=float).reshape(N, D)
    return X, np.arange(N) % 3


def lazy(X, y, chunks=10):
    """Dask arrays of the same rows, built on the workers."""
    dx = da.arange(N * D, chunks=D * chunks, dtype=float).reshape(N, D)
    dx = dx.rechunk((chunks, D))
    return dx, (da.arange(N, chunks=chunks) % 3)


KINDS = {
    "numpy": lambda b: b,
    "csr_array": sp.csr_array,
    "csr_matrix": sp.csr_matrix,
    "COO": lambda b: sparse.COO.from_scipy_sparse(sp.coo_array(b)),
    "GCXS": lambda b: sparse.GCXS(sp.csr_array(b)),
}


def place(client, X, where):
    """A persisted array whose block i lies on worker where[i]."""
    delayed = X.to_delayed().ravel()
    with dask.annotate(allow_other_workers=False):
        futures = [
            client.compute(block, workers=[w], optimize_graph=False)
            for block, w in zip(delayed, where, strict=True)
        ]
    wait(futures)
    keys = X.__dask_keys__()
    graph = {
        (
            (X.name + "-placed", *key[0][1:])
            if X.ndim == 2
            else (X.name + "-placed", *key[1:])
        ): f
        for key, f in zip(keys, futures, strict=True)
    }
    return da.Array(graph, X.name + "-placed", X.chunks, meta=X._meta)


def bounds(n_ranks):
    """Rows that each rank must have in the contiguous plan."""
    return [(r + 1) * N // n_ranks - r * N // n_ranks for r in range(n_ranks)]


# -- Not computed yet ----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_lazy_array_is_contiguous(client, workers, clean, build, stack, Xy, kind):
    X, y = lazy(*Xy)
    X = X.map_blocks(KINDS[kind], meta=np.empty((0, 0)))
    result = partition(X, y, n_ranks=4, addresses=workers, client=client)
    shards = build(result, workers)
    assert [s.n_rows for s in shards] == bounds(4)
    assert all(s.is_sparse == (kind != "numpy") for s in shards)
    rows, labels = stack(shards)
    np.testing.assert_array_equal(rows, Xy[0])
    np.testing.assert_array_equal(labels, Xy[1])
    assert (result.n_rows, result.n_features) == (N, D)


def test_blocks_are_computed_where_they_are_needed(client, workers, clean, Xy):
    X, y = lazy(*Xy)
    result = partition(X, y, n_ranks=4, addresses=workers, client=client)
    for address, spec in zip(workers, result.shards, strict=True):
        whole = [p for p in spec.pieces if isinstance(p.source, tuple)]
        assert whole
        for piece in whole:
            wait(list(piece.source[:2]))
            for held in client.who_has(list(piece.source[:2])).values():
                assert address in held


@pytest.mark.parametrize("n_ranks", [1, 2, 7])
def test_several_ranks_on_a_worker(client, workers, clean, build, stack, Xy, n_ranks):
    X, y = lazy(*Xy, chunks=40)
    addresses = sorted(workers[r % 2] for r in range(n_ranks))
    result = partition(X, y, n_ranks=n_ranks, addresses=addresses, client=client)
    shards = build(result, addresses)
    assert [s.n_rows for s in shards] == bounds(n_ranks)
    np.testing.assert_array_equal(stack(shards)[0], Xy[0])


def test_fewer_blocks_and_rows_than_ranks(client, workers, clean, build):
    X = da.ones((2, 3), chunks=(2, 3))
    y = da.arange(2, chunks=2)
    result = partition(X, y, n_ranks=4, addresses=workers, client=client)
    shards = build(result, workers)
    assert sum(s.n_rows for s in shards) == 2
    assert max(s.n_rows for s in shards) == 1
    assert all(s.n_features == 3 for s in shards)


def test_moved_bytes_are_counted(client, workers, clean):
    X = da.ones((8, 3), chunks=(8, 3))
    y = da.zeros(8, chunks=8)
    result = partition(X, y, n_ranks=2, addresses=workers[:2], client=client)
    assert result.bytes_moved == 4 * 3 * 8 + 4 * 8


def test_unknown_chunks(client, workers, clean, build, stack, Xy):
    X, y = lazy(*Xy)
    even = X[:, 0] % 8 == 0
    result = partition(X[even], y[even], n_ranks=4, addresses=workers, client=client)
    shards = build(result, workers)
    kept = Xy[0][:, 0] % 8 == 0
    rows, labels = stack(shards)
    np.testing.assert_array_equal(rows, Xy[0][kept])
    np.testing.assert_array_equal(labels, Xy[1][kept])
    counts = [s.n_rows for s in shards]
    assert max(counts) - min(counts) <= 1


def test_empty_blocks(client, workers, clean, build, stack, Xy):
    X, y = lazy(*Xy)
    some = X[:, 0] < 200
    result = partition(X[some], y[some], n_ranks=4, addresses=workers, client=client)
    shards = build(result, workers)
    np.testing.assert_array_equal(stack(shards)[0], Xy[0][:50])
    assert [s.n_rows for s in shards] == [12, 13, 12, 13]


def test_no_large_graph_and_nothing_on_the_client(client, workers, clean):
    X = da.random.default_rng(0).random((20000, 100), chunks=(5000, 100))
    y = np.arange(20000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = partition(X, y, n_ranks=4, addresses=workers, client=client)
    assert result.bytes_scattered == y.nbytes
    assert not any(
        isinstance(part, np.ndarray)
        for spec in result.shards
        for piece in spec.pieces
        for part in piece.source
    )


def test_errors_of_the_users_graph_are_raised(client, workers, clean):
    def fail(block):
        raise RuntimeError("cannot read")

    X = da.ones((4, 2), chunks=(2, 2)).map_blocks(fail, meta=np.empty((0, 2)))
    with pytest.raises(RuntimeError, match="cannot read"):
        partition(
            X, da.ones(4, chunks=2), n_ranks=1, addresses=workers[:1], client=client
        )


# -- Already in worker memory --------------------------------------------------------


def test_persisted_blocks_stay(client, workers, clean, build, stack, Xy):
    X, y = lazy(*Xy, chunks=13)
    where = [workers[i % 4] for i in range(8)]
    X, y = place(client, X, where), place(client, y, where)
    before = client.who_has(X)
    result = partition(X, y, n_ranks=4, addresses=workers, client=client)
    shards = build(result, workers)
    assert result.bytes_moved == result.bytes_followed == 0
    assert client.who_has(X) == before
    for rank, shard in enumerate(shards):
        assert [b.index for b in shard.blocks] == list(range(rank, 8, 4))
    assert sum(s.n_rows for s in shards) == N
    del X, y, result, shards


def test_persisted_input_costs_one_round_trip(client, workers, clean, Xy, monkeypatch):
    X, y = lazy(*Xy, chunks=13)
    where = [workers[i % 4] for i in range(8)]
    X, y = place(client, X, where), place(client, y, where)
    calls = []
    sync = Client.sync

    def counted(self, function, *args, **kwargs):
        calls.append(function)
        return sync(self, function, *args, **kwargs)

    def refused(*args, **kwargs):
        raise AssertionError("a task was submitted")

    monkeypatch.setattr(Client, "sync", counted)
    monkeypatch.setattr(Client, "_graph_to_futures", refused)
    partition(X, y, n_ranks=4, addresses=workers, client=client)
    assert len(calls) == 1


def test_placement_contiguous_forces_order(client, workers, clean, build, stack, Xy):
    X, y = lazy(*Xy, chunks=13)
    where = [workers[i % 4] for i in range(8)]
    X, y = place(client, X, where), place(client, y, where)
    with dask.config.set({"dask-ma.data.placement": "contiguous"}):
        result = partition(X, y, n_ranks=4, addresses=workers, client=client)
    shards = build(result, workers)
    np.testing.assert_array_equal(stack(shards)[0], Xy[0])
    assert [s.n_rows for s in shards] == bounds(4)
    assert result.bytes_moved > 0


def test_placement_must_be_known(client, workers, Xy):
    X, y = client.persist(lazy(*Xy))
    with (
        dask.config.set({"dask-ma.data.placement": "anywhere"}),
        pytest.raises(ValueError, match="'anywhere', expected 'keep' or 'contiguous'"),
    ):
        partition(X, y, n_ranks=1, addresses=workers[:1], client=client)


def test_overloaded_worker_gives_away_the_excess(client, workers, clean, build):
    X = place(client, da.ones((100, 2), chunks=(10, 2)), [workers[0]] * 10)
    y = place(client, da.zeros(100, chunks=10), [workers[0]] * 10)
    result = partition(X, y, n_ranks=2, addresses=workers[:2], client=client)
    assert [s.n_rows for s in build(result, workers[:2])] == [55, 45]
    assert result.bytes_moved == 45 * 3 * 8


def test_blocks_on_a_worker_without_rank_move(client, workers, clean, build):
    where = [workers[0], workers[1], workers[3], workers[3]]
    X = place(client, da.ones((40, 2), chunks=(10, 2)), where)
    y = place(client, da.zeros(40, chunks=10), where)
    result = partition(X, y, n_ranks=2, addresses=workers[:2], client=client)
    assert [s.n_rows for s in build(result, workers[:2])] == [20, 20]
    assert result.bytes_moved >= 20 * 2 * 8


def test_labels_follow_their_rows(client, workers, clean, build):
    X = place(client, da.ones((20, 2), chunks=(10, 2)), workers[:2])
    y = place(client, da.arange(20, chunks=10), workers[2:])
    result = partition(X, y, n_ranks=2, addresses=workers[:2], client=client)
    shards = build(result, workers[:2])
    assert [s.blocks[0].y[0] for s in shards] == [0, 10]
    assert result.bytes_moved == 0
    assert result.bytes_followed == 20 * 8


def test_persisted_with_labels_in_memory_and_lazy_weights(
    client, workers, clean, build, Xy
):
    X, _ = lazy(*Xy)
    where = [workers[(3 * i) % 4] for i in range(11)]
    X = place(client, X, where)
    weights = da.arange(N, chunks=20) + 1.0
    result = partition(X, Xy[1], weights, n_ranks=4, addresses=workers, client=client)
    for shard in build(result, workers):
        for block in shard.blocks:
            first = int(block.X[0, 0]) // D
            assert block.start == first
            rows = slice(first, first + len(block.y))
            np.testing.assert_array_equal(block.y, Xy[1][rows])
            np.testing.assert_array_equal(block.sample_weight, np.arange(N)[rows] + 1)
    assert result.bytes_scattered == Xy[1].nbytes


def test_derived_from_persisted_stays_near_it(client, workers, clean, build):
    where = [workers[i % 4] for i in range(8)]
    X = place(client, da.ones((80, 2), chunks=(10, 2)), where)
    y = da.zeros(80, chunks=10)
    result = partition(X + 1, y, n_ranks=4, addresses=workers, client=client)
    shards = build(result, workers)
    assert sum(s.n_rows for s in shards) == 80
    assert max(s.n_rows for s in shards) <= 22
    assert all(b.X[0, 0] == 2 for s in shards for b in s.blocks)


def test_unknown_chunks_persisted(client, workers, clean, build, Xy):
    X, y = lazy(*Xy)
    even = X[:, 0] % 8 == 0
    X, y = client.persist([X[even], y[even]])
    result = partition(X, y, n_ranks=4, addresses=workers, client=client)
    shards = build(result, workers)
    assert result.n_rows == sum(s.n_rows for s in shards) == 52


# -- Frames --------------------------------------------------------------------------


def frame(y="y"):
    """A DataFrame whose labels are words."""
    table = pd.DataFrame(
        {"a": np.arange(30.0), "b": np.arange(30), y: ["no", "yes", "no"] * 10}
    )
    return dd.from_pandas(table, npartitions=5)


@pytest.mark.parametrize("persisted", [False, True])
def test_dataframe(client, workers, clean, build, stack, persisted):
    table = frame()
    X, y = table[["a", "b"]], table["y"]
    if persisted:
        X, y = client.persist([X, y])
    result = partition(X, y, n_ranks=4, addresses=workers, client=client)
    shards = build(result, workers)
    assert result.feature_names.tolist() == ["a", "b"]
    assert result.n_rows == 30
    rows, labels = stack(shards)
    order = np.argsort(rows[:, 0])
    np.testing.assert_array_equal(rows[order][:, 1], np.arange(30))
    assert labels[order].tolist() == ["no", "yes", "no"] * 10
    del X, y, result, shards


def test_columns_of_a_persisted_dataframe(client, workers, clean, build):
    table = client.persist(frame())
    result = partition(
        table[["a", "b"]], table["y"], n_ranks=2, addresses=workers[:2], client=client
    )
    assert sum(s.n_rows for s in build(result, workers[:2])) == 30
    del table, result


def test_dataframe_with_a_column_of_words(client, workers):
    table = frame("word")
    with pytest.raises(ValueError, match="hold no numbers: 'word'"):
        partition(table, np.zeros(30), n_ranks=1, addresses=workers[:1], client=client)


def test_input_persisted_on_another_cluster(client, workers):
    lazy = da.ones((30, 2), chunks=(10, 2)), np.zeros(30)
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        LocalCluster(**options, processes=False) as second,
        Client(second, set_as_default=False) as other,
    ):
        X = other.persist(lazy[0])
        wait(X)
        with pytest.raises(PeerLostError, match="in no worker's memory on") as caught:
            partition(X, lazy[1], n_ranks=1, addresses=workers[:1], client=client)
        text = str(caught.value)
        assert f"at {second.scheduler_address}. Fit within `with client.as_cu" in text
        assert f"current client, at {client.scheduler.address}:" in text
        addresses = list(other.nthreads())
        partition(X, lazy[1], n_ranks=1, addresses=addresses, client=other).release()


@pytest.mark.parametrize("chunks", [10, (6, 6, 6, 5, 7)])
def test_frame_and_labels_in_other_blocks(client, workers, clean, build, stack, chunks):
    y = da.arange(30, chunks=chunks)
    X = frame()[["a", "b"]]
    result = partition(X, y, n_ranks=4, addresses=workers, client=client)
    rows, labels = stack(build(result, workers))
    np.testing.assert_array_equal(labels, rows[:, 1])
    del result


def test_rows_missing_in_labels_of_a_frame(client, workers, clean):
    X = frame()[["a", "b"]].repartition(npartitions=1)
    y = da.zeros(29, chunks=29)
    with pytest.raises(ValueError, match="X has 30 rows and y has 29.*in block 0"):
        partition(X, y, n_ranks=2, addresses=workers[:2], client=client)


# -- Metadata ------------------------------------------------------------------------


def test_other_chunks_are_aligned(client, workers, clean, build, stack, Xy):
    X, _ = lazy(*Xy)
    y = da.arange(N, chunks=17) % 3
    result = partition(X, y, n_ranks=4, addresses=workers, client=client)
    np.testing.assert_array_equal(stack(build(result, workers))[1], Xy[1])


def test_column_chunks_are_joined_with_a_warning(
    client, workers, clean, build, stack, Xy
):
    X, y = lazy(*Xy)
    with pytest.warns(UserWarning, match="2 chunks of columns"):
        result = partition(
            X.rechunk((10, 2)), y, n_ranks=4, addresses=workers, client=client
        )
    np.testing.assert_array_equal(stack(build(result, workers))[0], Xy[0])


def test_column_of_labels_warns(client, workers, clean, build, stack, Xy):
    X, y = lazy(*Xy)
    with pytest.warns(DataConversionWarning):
        result = partition(X, y[:, None], n_ranks=4, addresses=workers, client=client)
    np.testing.assert_array_equal(stack(build(result, workers))[1], Xy[1])


def unknown_columns():
    """An array whose number of columns is not known."""
    X = da.ones((4, 2), chunks=(2, 2))
    return X[:, da.ones(2, chunks=2) > 0]


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (da.ones(4, chunks=2), None, "Expected 2D array, got 1D"),
        (da.ones((4, 2)).astype(object), None, "dtype object, expected real"),
        (da.ones((4, 2)).astype(str), None, "dtype <U"),
        (da.ones((4, 0)), None, "at least 1 feature"),
        (da.ones((0, 4)), None, "X has no rows"),
        (unknown_columns(), None, "number of columns is not known"),
        (da.ones((4, 2)), da.ones(5), r"\[4, 5\]. X has 4 rows and y has 5"),
        (da.ones((4, 2)), np.ones(5), r"\[4, 5\]. X has 4 rows and y has 5"),
        (da.ones((4, 2)), da.ones((4, 2)), "y should be a 1d array"),
    ],
)
def test_refused_by_metadata(client, workers, monkeypatch, X, y, message):
    def refused(*args, **kwargs):
        raise AssertionError("something was computed")

    monkeypatch.setattr(Client, "_graph_to_futures", refused)
    y = np.zeros(4) if y is None else y
    with pytest.raises(ValueError, match=message):
        partition(X, y, n_ranks=1, addresses=workers[:1], client=client)


def test_refused_types(client, workers):
    X = da.ones((4, 2))
    options = {"n_ranks": 1, "addresses": workers[:1], "client": client}
    with pytest.raises(TypeError, match="y is a Dask object of type Delayed"):
        partition(X, dask.delayed(1), **options)
    with pytest.raises(TypeError, match="X is a Dask object of type Delayed"):
        partition(dask.delayed(1), np.ones(4), **options)
    with pytest.raises(TypeError, match="y is a Dask object while X is in memory"):
        partition(np.ones((4, 2)), da.ones(4), **options)
    with pytest.raises(ValueError, match="sample_weight has dtype <U"):
        partition(X, np.ones(4), da.ones(4).astype(str), **options)
    with pytest.raises(ValueError, match="expected one for each of the 2 ranks"):
        partition(X, np.ones(4), n_ranks=2, addresses=workers[:1], client=client)


def test_rows_that_turn_out_to_be_none(client, workers, clean):
    X = da.ones((4, 2), chunks=2)
    none = X[:, 0] > 5
    with pytest.raises(ValueError, match="X has no rows"):
        partition(
            X[none],
            da.ones(4, chunks=2)[none],
            n_ranks=1,
            addresses=workers[:1],
            client=client,
        )
    del X, none


def test_memory_labels_of_another_length_than_unknown_rows(client, workers):
    X = da.ones((4, 2), chunks=2)
    X = X[X[:, 0] > 0]
    with pytest.raises(ValueError, match=r"\[4, 3\]. X has 4 rows and y has 3"):
        partition(X, np.ones(3), n_ranks=1, addresses=workers[:1], client=client)


# -- In memory -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "convert", [np.asarray, sp.csr_matrix, sp.csr_array, pd.DataFrame]
)
def test_memory_is_scattered_once(client, workers, clean, build, stack, Xy, convert):
    X = convert(Xy[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = partition(
            X, Xy[1], np.ones(N), n_ranks=4, addresses=workers, client=client
        )
    for address, spec in zip(workers, result.shards, strict=True):
        [piece] = spec.pieces
        assert client.who_has(piece.source)[piece.source.key] == [address]
    shards = build(result, workers)
    rows, labels = stack(shards)
    np.testing.assert_array_equal(rows, Xy[0])
    np.testing.assert_array_equal(labels, Xy[1])
    assert [s.n_rows for s in shards] == bounds(4)
    assert result.bytes_scattered >= N * D * 8 + N * 16


def test_rows_in_memory_are_sent_as_the_fit_wants_them(client, workers, clean, Xy):
    """Also those that are sent once more, in place of rows that were lost."""
    X, y = sp.csr_matrix(np.rint(Xy[0])), Xy[1]
    result = partition(
        X,
        y,
        n_ranks=4,
        addresses=workers,
        client=client,
        sent_as=lambda rows: rows.astype(np.int16),
    )
    spec, futures = result.resend(1, result.shards[1], workers[0])
    for found in (*result.shards, spec):
        [piece] = found.pieces
        block = piece.source.result()
        assert block.X.dtype == np.int16
        assert block.y.dtype == y.dtype
        stop = piece.first + piece.stop - piece.start
        assert not (block.X != X[piece.first : stop]).nnz
    assert result.bytes_scattered < X.nnz * 8 + N * 8
    result.owned += futures
    result.release()
    here = partition(
        X, y, n_ranks=2, addresses=None, client=None, sent_as=lambda rows: 1 / 0
    )
    assert here.shards[0].pieces[0].source[0] is X  # nothing is sent


def test_fewer_rows_in_memory_than_ranks(client, workers, clean, build):
    X = np.ones((2, 3))
    result = partition(X, [0, 1], n_ranks=4, addresses=workers, client=client)
    assert sum(bool(spec.pieces) for spec in result.shards) == 2
    assert sum(s.n_rows for s in build(result, workers)) == 2


def test_scatter_inside_a_task(client, workers, clean):
    def inner(addresses):
        from distributed import get_client

        result = partition(
            np.ones((8, 2)),
            np.ones(8),
            n_ranks=2,
            addresses=addresses,
            client=get_client(),
        )
        keys = [spec.pieces[0].source.key for spec in result.shards]
        held = get_client().who_has([s.pieces[0].source for s in result.shards])
        return [held[key] for key in keys]

    held = client.submit(inner, workers[:2], workers=[workers[3]], pure=False).result()
    assert held == [[workers[0]], [workers[1]]]


def test_closed_client(Xy):
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as closed,
    ):
        address = next(iter(closed.nthreads()))
    with pytest.raises(NoWorkersError, match="status is 'closed'"):
        partition(*Xy, n_ranks=1, addresses=[address], client=closed)


# -- Without a client ----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_dask_without_client(Xy, stack, kind):
    X, y = lazy(*Xy)
    X = X.map_blocks(KINDS[kind], meta=np.empty((0, 0)))
    result = partition(X, y, n_ranks=3, addresses=None)
    shards = [build_shard(spec.arguments) for spec in result.shards]
    rows, labels = stack(shards)
    np.testing.assert_array_equal(rows, Xy[0])
    np.testing.assert_array_equal(labels, Xy[1])
    assert [s.n_rows for s in shards] == bounds(3)
    assert sum(len(s.blocks) for s in shards) == 13


def test_dataframe_without_client(stack):
    table = frame()
    result = partition(
        table[["a", "b"]], table["y"].compute(), np.ones(30), n_ranks=2, addresses=None
    )
    rows, labels = stack([build_shard(spec.arguments) for spec in result.shards])
    np.testing.assert_array_equal(rows[:, 0], np.arange(30))
    assert labels.tolist() == ["no", "yes", "no"] * 10


def test_without_client_although_there_is_one(client, Xy, stack):
    X, y = lazy(*Xy)
    result = partition(X, y, n_ranks=1, addresses=None)
    [shard] = [build_shard(spec.arguments) for spec in result.shards]
    np.testing.assert_array_equal(stack([shard])[0], Xy[0])


def test_shares_of_rows_are_made_when_they_are_sent(monkeypatch, client, workers):
    """Together they would be a second copy of all rows in this process."""
    made, most = [], []

    def make(place):
        made.append(place)
        most.append(len(made) - len(sent))
        return np.full(10, place)

    sent = []
    scatter = client.scatter

    async def scattering(*args, **kwargs):
        future = await scatter(*args, **kwargs)
        sent.append(future)
        return future

    monkeypatch.setattr(client, "scatter", scattering)
    monkeypatch.setattr(_collections, "_UNDER_WAY", 160)
    for nbytes, together in ((4 * 80, 2), (4 * 1000, 1), (0, 4)):
        made.clear(), most.clear(), sent.clear()
        futures = _collections.scatter_each(client, make, workers, nbytes=nbytes)
        assert [future.result()[0] for future in futures] == made == [0, 1, 2, 3]
        assert max(most) == together
        where = client.who_has(futures)
        assert [where[f.key] for f in futures] == [[worker] for worker in workers]


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.int64])
def test_small_numbers_are_sent_as_they_are(client, workers, clean, build, dtype):
    X = np.arange(40).reshape(20, 2).astype(dtype)
    result = partition(X, np.ones(20), n_ranks=4, addresses=workers, client=client)
    assert result.bytes_scattered == X.nbytes + 20 * 8
    shards = build(result, workers)
    rows = np.concatenate([block.X for shard in shards for block in shard.blocks])
    assert rows.dtype == np.float64
    np.testing.assert_array_equal(rows, X)


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix, sp.csr_array])
def test_rows_of_the_client_lie_once_in_the_memory_of_their_worker(
    process_client, convert
):
    """Also where they have been dealt out in short runs, which are joined again."""
    rng = np.random.default_rng(0)
    X = convert(rng.random((4000, 30)) * (rng.random((4000, 30)) < 0.5))

    def share(arguments):
        shard = build_shard(arguments)
        received = np.ravel(arguments["sources"][0].X.data)
        one = join_shard(shard, 1 << 30)
        blocks = [block.X for block in (*shard.blocks, *one.blocks)]
        parts = [np.ravel(block.data) for block in blocks]
        if sp.issparse(blocks[-1]):
            parts.append(blocks[-1].T.data)  # nor does SciPy copy them
        alone = all(np.shares_memory(part, received) for part in parts)
        rows = [arguments["sources"][0].X, one.blocks[0].X]
        dense = [r.toarray() if sp.issparse(r) else r for r in rows]
        return alone, len(shard.blocks), len(one.blocks), np.array_equal(*dense)

    client, where = process_client, sorted(process_client.nthreads())[:2]
    result = partition(
        X, np.ones(4000), n_ranks=2, addresses=where, client=client, deal="memory"
    )
    for spec, address in zip(result.shards, where, strict=True):
        found = client.submit(
            share, spec.arguments, workers=[address], pure=False
        ).result()
        assert found[0] and found[1] > 10 and found[2:] == (1, True)


def test_blocks_that_do_not_lie_together_are_copied_together(build):
    for convert in (np.asarray, sp.csr_array):
        rows = np.arange(60.0).reshape(20, 3)
        blocks = [Block(convert(rows[i : i + 5]), None, None, 0, i) for i in (0, 5, 10)]
        apart = [blocks[0], blocks[2], blocks[1]]
        for some in (blocks, apart):
            one = join_shard(Shard(some, 3, np.dtype(float)), 1 << 20).blocks[0].X
            expected = [b.X.toarray() if sp.issparse(b.X) else b.X for b in some]
            found = one.toarray() if sp.issparse(one) else one
            np.testing.assert_array_equal(found, np.concatenate(expected))


def test_each_source_is_sent_once():
    """However many pieces it is cut into; Dask makes an object of all it finds."""
    first, second = (np.ones(3), None, None), (np.ones(5), None, None)
    pieces = [
        (first, 0, 1, 3, 0, 7),
        (second, 2, 4, 5, 1, 0),
        (first, 1, 3, 3, 0, 12),
    ]
    packed = pack_pieces(pieces)
    assert len(packed["sources"]) == 2 and packed["cuts"].shape == (3, 6)
    found = pieces_in(packed)
    assert all(
        a[0] is b[0] and a[1:] == b[1:] for a, b in zip(found, pieces, strict=True)
    )
    assert pieces_in(pack_pieces([])) == []
