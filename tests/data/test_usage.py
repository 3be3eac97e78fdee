"""Memory of workers: what they have taken, and whether rows fit beside it."""

import asyncio
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
from dask.utils import parse_bytes
from distributed import Client, Event, LocalCluster, futures_of, get_worker, wait
from scipy import sparse

from dask_ma.data import (
    Block,
    Kept,
    Shard,
    describe,
    join_limit,
    memory_here,
    part_of_memory,
    part_of_workers,
    partition,
    spare_memory,
)
from dask_ma.data import _collections as cluster
from dask_ma.data import _stream as stream
from dask_ma.data import _usage as usage_module
from dask_ma.data._blocks import n_bytes
from dask_ma.data._demand import Demand, refuse_beyond
from dask_ma.data._stream import RowCache
from dask_ma.data._usage import (
    Usage,
    by_process,
    measure_usage,
    usage_of,
    usage_of_workers,
)
from dask_ma.data._workers import workers_of
from dask_ma.engine._liveness import settle
from dask_ma.exceptions import InsufficientMemoryError
from dask_ma.layouts import _read_columns
from dask_ma.sfb._moved_rows import most_moved

MB = 10**6
#: Two workers of 600 MB with one thread, 230 MB of which are their modules.
SMALL = {name: Usage(600 * MB, 230 * MB, 0.7, 0.8) for name in "ab"}
ONE_EACH = {"a": 1, "b": 1}


#: Eight blocks that each of them has to make.
UNMADE = {"a": 8, "b": 8}


def demand(n_bytes, block=8 * MB, growth=1.0, times=0.0):
    return Demand(n_bytes, block, growth, Kept(times))


def is_beyond(wanted, known=SMALL, ranks=ONE_EACH, unmade=UNMADE):
    return bool(wanted.excess(known, Counter(ranks), Counter(unmade)))


# What is asked for, and what there is ------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "known", "expected"),
    [
        # 0.7 of 600 are 420: less 230 and two parts of 60, 70 are left for each.
        (demand(139 * MB), SMALL, False),
        (demand(141 * MB), SMALL, True),
        (demand(240 * MB), SMALL, True),
        # The whole of the share is left to each where nothing else takes memory.
        (demand(240 * MB), {a: u._replace(taken=0) for a, u in SMALL.items()}, False),
        # A worker of its own is full; together they would have enough.
        (demand(138 * MB), SMALL | {"b": SMALL["b"]._replace(taken=232 * MB)}, True),
        # What blocks are made of counts in place of copies later, if they are large.
        (demand(138 * MB, block=119 * MB), SMALL, False),
        (demand(138 * MB, block=122 * MB), SMALL, True),
        (demand(138 * MB, block=62 * MB), SMALL, False),
        (
            demand(138 * MB, block=91 * MB),
            {a: u._replace(n_threads=2) for a, u in SMALL.items()},
            True,
        ),
        # What is kept beside them, and integers of which floating numbers are made.
        (demand(90 * MB, times=0.5), SMALL, False),
        (demand(90 * MB, times=0.6), SMALL, True),
        (demand(15 * MB, growth=9.0), SMALL, False),
        (demand(16 * MB, growth=9.0), SMALL, True),
        # Dask is told to leave it alone for longer, or to spill earlier.
        (demand(180 * MB), {a: u._replace(quiet=0.8) for a, u in SMALL.items()}, False),
        (demand(138 * MB), {a: u._replace(quiet=0.6) for a, u in SMALL.items()}, True),
    ],
)
def test_rows_beside_all_else(wanted, known, expected):
    assert is_beyond(wanted, known) == expected


@pytest.mark.parametrize(
    ("unmade", "expected"), [({}, False), ({"a": 5}, False), ({"a": 6}, True)]
)
def test_blocks_that_are_made_no_more(unmade, expected):
    """16 threads need room for 16 blocks only while there are so many to make."""
    known = {"a": Usage(4000 * MB, 200 * MB, 0.7, 0.8, 16)}
    wanted = demand(1600 * MB, block=180 * MB)
    assert is_beyond(wanted, known, {"a": 16}, unmade) == expected


def test_few_persisted_blocks_of_many_threads():
    known = {"a": Usage(4000 * MB, 200 * MB, 0.7, 0.8, 16)}
    assert not is_beyond(demand(300 * MB, block=100 * MB), known, {"a": 16}, {})


def test_a_worker_with_more_ranks_gets_more_rows():
    rows = demand(120 * MB)
    assert not is_beyond(rows, ranks={"a": 2, "b": 2})
    assert is_beyond(rows, ranks={"a": 3, "b": 1})


def test_the_fullest_worker_is_named():
    full = SMALL | {"b": SMALL["b"]._replace(taken=300 * MB)}
    words = demand(200 * MB).excess(full, Counter("ab"), Counter())
    assert words == (
        "95.37 MiB of them on b, beside 286.10 MiB that it takes itself and 114.44 MiB "
        "to work with, more than the 400.54 MiB up to which Dask leaves it alone"
    )
    words = demand(500 * MB).excess(SMALL, Counter("ab"), Counter())
    assert words == (
        "which take 476.84 MiB, more than 40% of the 1.12 GiB of the workers"
    )


def test_large_workers_are_asked_for_their_part_alone():
    """What a process takes by itself is little of it."""
    known = {name: Usage(16_000 * MB, 300 * MB, 0.7, 0.8) for name in "ab"}
    assert not is_beyond(demand(12_700 * MB), known)
    assert is_beyond(demand(12_900 * MB), known)


def test_what_is_configured_counts(configured):
    """Joined blocks and freed memory, where these are less than a part of the limit."""
    with configured({"dask-ma.memory.keep-freed": 0, "dask-ma.data.join-limit": 0}):
        assert not is_beyond(demand(370 * MB, block=MB))
    with configured({"dask-ma.data.memory-fraction": 0.05}):
        assert is_beyond(demand(78 * MB))


def sharing(taken=300, held=(50, 30), limits=(1000, 2000)):
    """Usage of two workers of one process, as each of them sees it."""
    whole = taken + sum(held)
    return {
        name: Usage(limit * MB, (whole - own) * MB, 0.7, 0.8, 2, own * MB, "one")
        for name, own, limit in zip("ab", held, limits, strict=True)
    }


def test_workers_of_one_process_count_once():
    """Dask leaves them alone while the process is small to the smallest of them."""
    known = sharing() | {"c": Usage(500 * MB, 100 * MB, 0.7, 0.8)}
    found = by_process(known)
    assert list(found) == [("a", "b"), ("c",)]
    both = found["a", "b"]
    assert both[:2] == (3000 * MB, 300 * MB) and both[3:5] == (0.8, 4)
    assert both.quiet * both.limit == pytest.approx(700 * MB)
    assert found["c",] == known["c"]


def test_copies_in_workers_of_one_process():
    """What is in memory once is neither taken from each, nor too much for all."""
    kept = Kept(1.0, "its columns", "fewer of them")
    known = sharing(taken=900, held=(0, 0), limits=(1200, 1200))
    refuse_beyond(500 * MB, kept, known)
    apart = {name: usage._replace(process=name) for name, usage in known.items()}
    with pytest.raises(InsufficientMemoryError, match="the 1.68 GiB that the workers"):
        refuse_beyond(500 * MB, kept, apart)


def test_copies_count_beside_what_workers_have_taken():
    kept = Kept(1.0, "its columns", "fewer of them")
    refuse_beyond(259 * MB, kept, SMALL)
    wanted = (
        "248.* MiB beside the 438.* MiB that the workers take themselves and 228.* MiB "
        "to work with, but the workers have 1.12 GiB together, .* 80%; take more .*"
        r"larger workers \(these 2 would need 573.* MiB each\), or fewer of them"
    )
    with pytest.raises(InsufficientMemoryError, match=wanted):
        refuse_beyond(261 * MB, kept, SMALL)
    early = {name: usage._replace(most=0.7) for name, usage in SMALL.items()}
    with pytest.raises(InsufficientMemoryError, match="70%"):
        refuse_beyond(259 * MB, kept, early)
    refuse_beyond(10**15, kept, {})


@pytest.mark.parametrize("n_bytes", [261 * MB, 403 * MB, 10**10])
def test_workers_as_large_as_they_should_be_have_room(n_bytes):
    """What they take by themselves stays the same."""
    kept = Kept(1.0, "its columns", "fewer of them")
    with pytest.raises(InsufficientMemoryError) as caught:
        refuse_beyond(n_bytes, kept, SMALL)
    wanted = str(caught.value).partition("would need ")[2].partition(" each")[0]
    limit = int(1.01 * parse_bytes(wanted))  # it is rounded
    larger = {name: usage._replace(limit=limit) for name, usage in SMALL.items()}
    refuse_beyond(n_bytes, kept, larger)


def test_copies_are_refused_by_what_is_measured(client, monkeypatch):
    """Not by a heartbeat, which counts memory that is free."""
    kept, asked = Kept(1.0, "its columns", "fewer of them"), []
    full = {name: usage._replace(taken=600 * MB) for name, usage in SMALL.items()}

    def measure(client):
        asked.append(client)
        return found

    monkeypatch.setattr(stream, "usage_of_workers", lambda client: full)
    monkeypatch.setattr(stream, "measure_usage", measure)
    found = SMALL
    with client.as_current():
        stream.refuse_beyond_memory(100 * MB, kept)
        assert asked == [client]
        found = full
        with pytest.raises(InsufficientMemoryError):
            stream.refuse_beyond_memory(100 * MB, kept)
        asked.clear()
        full = SMALL
        stream.refuse_beyond_memory(100 * MB, kept)
        assert not asked  # as there seems to be room


@pytest.mark.parametrize(
    ("dtype", "allowed", "expected"),
    [
        (np.float64, (np.float64, np.float32), 1),
        (np.float32, (np.float64, np.float32), 1),
        (np.int8, (np.float64, np.float32), 9),
        (np.float16, (np.float32,), 3),
        (np.dtype("S0"), (np.float64,), 1),
    ],
)
def test_rows_grow_where_they_are_cast(dtype, allowed, expected):
    assert RowCache(allowed, Kept()).growth(np.dtype(dtype)) == expected


def test_indices_of_sparse_rows_do_not_grow(client, workers, monkeypatch):
    X = sparse.random(2000, 500, density=0.1, format="csr", rng=0).astype(np.int8)
    futures = client.map(lambda _: X, range(2), pure=False)
    wait(futures)
    found = []
    monkeypatch.setattr(stream, "_LITTLE", 0)
    monkeypatch.setattr(Demand, "excess", lambda self, *args: found.append(self) or "")
    cache = RowCache((np.float64,), Kept())
    stream.go_to_disks(client, futures, describe(X), workers, cache)
    [growth] = [each.growth for each in found]
    taken = n_bytes(X) + n_bytes(X.astype(np.float64))
    assert growth * n_bytes(X) == pytest.approx(taken, rel=0.05)
    assert stream._index_bytes(client.map(np.ones, [3])) == 0
    cluster.release(futures)


def test_copies_are_those_of_rows_that_are_cast():
    """Eight bytes of each of integers that take one: rows, numbers and a copy."""
    rows = demand(10 * MB, growth=9.0, times=0.5)
    assert rows.cast == 80 * MB
    words = rows._replace(n_bytes=100 * MB).excess(SMALL, Counter("ab"), Counter())
    assert "which take 1.21 GiB" in words  # 100, 800 and 400 MB
    assert demand(10 * MB, times=0.5).cast == 10 * MB


def test_blocks_still_to_be_made_are_counted(client, workers, monkeypatch):
    """Those that are there are among the rows alone."""
    monkeypatch.setattr(stream, "_LITTLE", 0)
    seen, rest = [], Event("rest-to-make", client)

    def make(number):
        if number == 11:
            Event("rest-to-make").wait()
        return np.ones(100)

    def excess(self, known, ranks, unmade):
        seen.append(dict(unmade))
        return ""

    monkeypatch.setattr(Demand, "excess", excess)
    cache = RowCache((np.float64,), Kept())
    blocks = client.map(make, range(12), pure=False)
    wait(blocks[:11])
    info = describe(da.ones((12, 100), chunks=(1, 100)))
    arguments = client, blocks, info, workers, cache
    try:
        assert not stream.go_to_disks(*arguments, workers * 3, measure_usage(client))
    finally:
        rest.set()
    assert seen == [{workers[3]: 1}]
    assert not stream.go_to_disks(*arguments)
    assert seen[1:] == [{}]
    cluster.release(blocks)


# What processes have -----------------------------------------------------------------


def test_usage_by_a_heartbeat():
    metrics = {
        "memory": 300 * MB,
        "managed_bytes": 150 * MB,
        "spilled_bytes": {"memory": 100 * MB, "disk": 90 * MB},
    }
    info = {"memory_limit": 600 * MB, "nthreads": 3, "metrics": metrics}
    tcp, inside = "tcp://10.0.0.1:5", "inproc://10.0.0.1/12/4"
    found = usage_of(tcp, info)
    assert found == Usage(600 * MB, 250 * MB, 0.7, 0.8, 3, 50 * MB, tcp)
    assert usage_of(inside, info).process == "inproc://10.0.0.1/12"
    with dask.config.set(
        {
            "distributed.worker.memory.spill": False,
            "distributed.worker.memory.pause": False,
        }
    ):
        found = usage_of(tcp, {**info, "metrics": {}})
        assert found == Usage(600 * MB, 0, 0.95, 0.95, 3, 0, tcp)
        with dask.config.set({"distributed.worker.memory.terminate": False}):
            found = usage_of(tcp, {**info, "memory_limit": None})
            assert (found.limit, found.quiet, found.most) == (0, 1.0, 1.0)


@pytest.mark.parametrize("spill", [0.5, False])
def test_usage_is_measured(spill):
    """Without the data that Dask has; also of a worker that cannot spill."""
    target = {
        "distributed.worker.memory.target": spill,
        "distributed.worker.memory.spill": spill,
    }
    with (
        dask.config.set(target),
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=False,
            memory_limit="8 GiB",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        [address] = client.nthreads()
        before = measure_usage(client, [address, address], np.mean)[address]
        assert before[2:5] == (spill or 0.8, 0.8, 2)
        assert before.limit == 8 * 2**30
        held = client.submit(np.ones, 2**25)  # 256 MiB
        held.result()
        after = measure_usage(client, [address], None)[address]
        assert abs(after.taken - before.taken) < 2**27
        assert after.held - before.held == pytest.approx(2**28, rel=0.01)


def test_parts_of_the_memory_of_a_worker(client):
    """Of what it may take, or of what the machine has."""
    assert part_of_memory(1000) == 1000
    assert part_of_memory(1 << 60) == memory_here() // 10

    def look():
        manager = get_worker().memory_manager
        before, manager.memory_limit = manager.memory_limit, 800
        try:
            return memory_here(), part_of_memory(1 << 60), part_of_memory(7)
        finally:
            manager.memory_limit = before

    assert client.submit(look).result() == (800, 80, 7)


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        (0, 100 * MB),  # a tenth of the limit
        (390 * MB, 100 * MB),  # a third of the rest of 700
        (550 * MB, 50 * MB),
        (690 * MB, 2**24),
        (900 * MB, 2**24),
    ],
)
def test_full_processes_spare_memory(monkeypatch, taken, expected):
    """Less of mapped files and freed memory is kept there."""
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=taken))
    monkeypatch.setattr("dask_ma.data._usage.MEMORY_LIMIT", 1000 * MB)
    monkeypatch.setattr("dask_ma.data._usage.psutil.Process", lambda: process)
    assert spare_memory(10**12) == expected
    assert spare_memory(7) == 7


def test_a_part_of_the_smallest_worker(client, configured, monkeypatch):
    """Of many rows; what little ones take nobody has to ask."""
    many = describe(da.zeros((10**6, 1000), chunks=(10**5, 1000)))
    few = describe(da.zeros((10, 10)))
    limits = [info["memory_limit"] for info in workers_of(client).values()]
    with client.as_current():
        assert part_of_workers(1 << 60, 0.25, many) == min(limits) // 4
        assert part_of_workers(1 << 60, 0.25, few) == 1 << 60
        assert part_of_workers(1000, 0.25, many) == 1000
        assert most_moved(many) == min(2**29, int(0.15 * min(limits)))
        with configured({"dask-ma.sfb.moved-rows": 1000}):
            assert most_moved(many) == 1000
    others = [None, SimpleNamespace(status="running", asynchronous=True)]
    monkeypatch.setattr("dask_ma.data._collections.current_client", others.pop)
    assert part_of_workers(1 << 60, 0.25, many) == 1 << 60
    assert part_of_workers(1 << 60, 0.25, many) == 1 << 60


def test_blocks_are_joined_up_to_the_same_size_on_all_workers(
    client, monkeypatch, caplog, configured
):
    """That of the worker with the least memory for a thread."""
    many = describe(da.zeros((10**6, 1000), chunks=(10**5, 1000)))
    memory = [(4000 * MB, 2), (1000 * MB, 4), (0, 16), (300 * MB, 1)]
    known = {
        f"tcp://{number}": {"memory_limit": limit, "nthreads": n_threads}
        for number, (limit, n_threads) in enumerate(memory)
    }
    monkeypatch.setattr("dask_ma.data._stream.workers_of", lambda client: known)
    with client.as_current(), caplog.at_level("INFO", "dask_ma.data"):
        with configured({"dask-ma.data.join-limit": 25 * MB}):
            assert join_limit(many) == 25 * MB
        assert not caplog.text
        with configured({"dask-ma.data.join-limit": "30 MiB"}):
            assert join_limit(many) == 25 * MB
    assert "up to 23.84 MiB, not 30.00 MiB (dask-ma.data.join-limit)" in caplog.text
    assert "10 % of its memory" in caplog.text


@pytest.mark.parametrize(("n_here", "expected"), [(1, False), (2, True)])
def test_columns_are_read_where_a_process_is_full(
    monkeypatch, run_ranks, n_here, expected
):
    """A copy of them would not fit beside what it has already."""
    monkeypatch.setattr(_read_columns, "memory_here", lambda: 1000)
    monkeypatch.setattr(_read_columns, "is_on_disk", lambda X: True)
    shard = Shard([Block(np.ones((5, 5)), None, None, 0, 0)], 5, np.dtype(float))

    def found():  # 300 bytes of columns for each rank
        return run_ranks(lambda group: _read_columns.is_read(group, shard), n_here)

    monkeypatch.setattr(_read_columns, "memory_taken", lambda: 0)
    assert not any(found())
    monkeypatch.setattr(_read_columns, "memory_taken", lambda: 390)
    assert found() == [expected] * n_here
    monkeypatch.setattr(_read_columns, "memory_taken", lambda: 410)
    assert all(found())


def test_columns_of_a_neighbour_do_not_count_twice(monkeypatch, run_ranks):
    """A rank that has its own by now has looked at the memory after the others."""
    monkeypatch.setattr(_read_columns, "memory_here", lambda: 1000)
    monkeypatch.setattr(_read_columns, "is_on_disk", lambda X: True)
    shard = Shard([Block(np.ones((5, 5)), None, None, 0, 0)], 5, np.dtype(float))
    nothing = Shard([], 5, np.dtype(float))
    taken = [90]
    monkeypatch.setattr(_read_columns, "memory_taken", lambda: taken[0])

    def on_rank(group):
        found = _read_columns.is_read(group, nothing if group.rank == 2 else shard)
        taken[0] += 300  # its columns
        return found

    assert run_ranks(on_rank, 3) == [False, False, False]
    taken[0] = 110
    assert run_ranks(on_rank, 3) == [True, True, False]


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_rows_in_memory_ask_nothing_of_it(monkeypatch, run_ranks, n_ranks):
    """To ask takes a third of a short fit, as freed memory is given back for it."""
    shard = Shard([Block(np.ones((5, 5)), None, None, 0, 0)], 5, np.dtype(float))

    def refused():
        raise AssertionError("nobody wants to know")

    monkeypatch.setattr(_read_columns, "memory_taken", refused)
    found = run_ranks(lambda group: _read_columns.is_read(group, shard), n_ranks)
    assert found == [False] * n_ranks


# What becomes of rows ---------------------------------------------------------------


@pytest.fixture
def lazy():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 6))
    return da.from_array(X, chunks=(20, 6)), da.from_array(X[:, 0] > 0, chunks=20)


@pytest.fixture
def share_out(client, workers, lazy, clean, configured, monkeypatch, tmp_path):
    """``share_out(**options)``: whether the rows have gone to a disk."""
    monkeypatch.setattr(stream, "_LITTLE", 0)

    def share(**options):
        settle(client)  # or tasks of the same names would be released with others
        with configured({"dask-ma.data.cache": str(tmp_path)}):
            shared = partition(
                *lazy, n_ranks=4, addresses=workers, client=client, **options
            )
        is_written = bool(list(tmp_path.iterdir()))
        assert is_written == (shared.remove_files is not None)
        persists = dask.config.get("dask-ma.data.persist")
        assert shared.can_spare == (persists == "auto" and not is_written)
        shared.release()
        assert not list(tmp_path.iterdir())
        return is_written

    return share


def test_rows_go_to_disks_where_processes_are_full(share_out, monkeypatch, caplog):
    """As is measured once the modules of the fit are loaded."""
    assert not share_out()
    found, given = Usage(10**9, 10**9, 0.7, 0.8), []

    def measure(client, addresses, needed):
        given.append(needed)
        return dict.fromkeys(addresses, found)

    monkeypatch.setattr(stream, "measure_usage", measure)
    with caplog.at_level("INFO", "dask_ma.data"):
        assert share_out(needed=len)
    assert given == [len]
    assert "beside 0.93 GiB that it takes itself" in caplog.text
    kept = Kept(1.0, "columns", "fewer")
    assert share_out(copies=kept._replace(spills=True))
    full, found = found, found._replace(taken=0)
    assert not share_out(copies=kept)
    found = full
    # At the end: its blocks are under way still, which others of their names would see.
    with pytest.raises(InsufficientMemoryError, match=r"\(columns\)"):
        share_out(copies=kept)


def test_a_full_heartbeat_decides_nothing(share_out, monkeypatch):
    """It counts what the allocator has been given back."""
    original = usage_module.usage_of

    def full(address, info):
        return original(address, info)._replace(taken=10**15)

    monkeypatch.setattr(usage_module, "usage_of", full)
    assert not share_out()


def test_blocks_that_are_made_are_not_measured(share_out, monkeypatch):
    """Workers are measured before they begin, or after they have ended."""
    started, seen = [], []
    original = cluster.start_blocks
    monkeypatch.setattr(
        cluster, "start_blocks", lambda *args: started.append(1) or original(*args)
    )
    monkeypatch.setattr(
        stream, "measure_usage", lambda *args: seen.append(bool(started)) or {}
    )
    share_out()
    assert seen == [False]


def test_persisted_blocks_are_waited_for_before(client, workers, monkeypatch):
    """What they are made of is no more there when workers are measured."""
    monkeypatch.setattr(stream, "_LITTLE", 0)
    rest, seen, original = Event("rest", client), [], cluster.wait_for_blocks

    def make(block, block_id):
        if block_id[0] == 11:  # eight others are enough to know their sizes
            Event("rest").wait()
        return block

    def wait(*args):
        rest.set()
        return original(*args)

    def measure(*args):
        seen.append({block.status for block in blocks})
        return {}

    monkeypatch.setattr(cluster, "wait_for_blocks", wait)
    monkeypatch.setattr(stream, "measure_usage", measure)
    X = da.ones((240, 6), chunks=(20, 6)).map_blocks(make, dtype=float).persist()
    blocks = futures_of(X)
    shared = partition(X, np.ones(240), n_ranks=4, addresses=workers, client=client)
    assert seen == [{"finished"}]
    shared.release()
    cluster.release(blocks)


# Workers that are busy ----------------------------------------------------------------


def test_usage_of_workers_of_one_process(client, workers):
    found = measure_usage(client, workers)
    assert set(found) == set(workers)
    pids = client.run(os.getpid)
    assert len(by_process(found)) == len(set(pids.values()))
    assert set(usage_of_workers(client)) == set(client.nthreads())


def test_processes_are_told_apart_by_themselves():
    """Where the address of a worker does not tell."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            memory_limit="8 GiB",
            dashboard_address=":0",
        ) as two,
        Client(two, set_as_default=False) as client,
    ):
        assert len(by_process(usage_of_workers(client))) == 2
        [both] = by_process(measure_usage(client)).values()
    assert both.limit == 2**34


def test_busy_threads_are_not_waited_for(client, workers):
    """Of another client's tasks, which may go on for long."""

    def wait(number):
        Event(f"inside-{number}").set()
        Event("go").wait()

    events = [Event(f"inside-{number}", client) for number in range(len(workers))]
    go = Event("go", client)
    calls = [
        client.submit(wait, number, workers=[address], pure=False)
        for number, address in enumerate(workers)
    ]
    with ThreadPoolExecutor(1) as executor:
        try:
            assert all(event.wait(timeout=60) for event in events)
            found = executor.submit(measure_usage, client, workers).result(60)
        finally:
            go.set()
    assert set(found) == set(workers)
    client.gather(calls)


def test_a_worker_that_does_not_answer_is_known_by_its_heartbeat(
    client, workers, configured, monkeypatch
):
    async def never(needed, dask_worker):
        await asyncio.sleep(60)
        return Usage(10**9, 1, 0.7, 0.8)

    original = usage_of

    def heartbeat(address, info):
        return original(address, info)._replace(taken=123)

    monkeypatch.setattr(usage_module, "usage_of", heartbeat)
    monkeypatch.setattr(usage_module, "usage_here", never)
    with configured({"dask-ma.launch.worker-timeout": "50 ms"}):
        found = measure_usage(client, workers)
    assert {a: usage.taken for a, usage in found.items()} == dict.fromkeys(workers, 123)


def test_a_worker_that_lacks_a_module_is_known_by_its_heartbeat(client, workers):
    class Lacking:
        def __reduce__(self):
            return __import__, ("no_such_module_anywhere",)

    assert set(measure_usage(client, workers, Lacking())) == set(workers)
