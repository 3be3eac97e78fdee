"""Memory of workers: what they have taken, and whether rows fit beside it."""

from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, get_worker

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
from dask_ma.data import _stream as stream
from dask_ma.data._collections import workers_of
from dask_ma.data._stream import RowCache, _Demand
from dask_ma.data._usage import Usage, measure_usage, usage_here, usage_of
from dask_ma.engine._liveness import settle
from dask_ma.exceptions import InsufficientMemoryError
from dask_ma.layouts import _read_columns
from dask_ma.sfb._gathered import most_moved

MB = 10**6
#: Two workers of 600 MB with one thread, 230 MB of which are their modules.
SMALL = {name: Usage(600 * MB, 230 * MB, 0.7, 0.8) for name in "ab"}
ONE_EACH = {"a": 1, "b": 1}


def demand(n_bytes, block=8 * MB, growth=1.0, times=0.0):
    return _Demand(n_bytes, block, growth, Kept(times))


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
        # Blocks that are made take what copies of them take later, if they are large.
        (demand(138 * MB, block=60 * MB), SMALL, False),
        (demand(138 * MB, block=62 * MB), SMALL, True),
        (demand(138 * MB, block=31 * MB), SMALL, False),
        (
            demand(138 * MB, block=31 * MB),
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
    assert wanted.is_beyond(known, ONE_EACH) == expected


def test_a_worker_with_more_ranks_gets_more_rows():
    rows = demand(120 * MB)
    assert not rows.is_beyond(SMALL, {"a": 2, "b": 2})
    assert rows.is_beyond(SMALL, {"a": 3, "b": 1})


def test_large_workers_are_asked_for_their_part_alone():
    """What a process takes by itself is little of it."""
    known = {name: Usage(16_000 * MB, 300 * MB, 0.7, 0.8) for name in "ab"}
    assert not demand(12_700 * MB).is_beyond(known, ONE_EACH)
    assert demand(12_900 * MB).is_beyond(known, ONE_EACH)


def test_what_is_configured_counts(configured):
    """Joined blocks and freed memory, where these are less than a part of the limit."""
    with configured({"dask-ma.memory.keep-freed": 0, "dask-ma.data.join-limit": 0}):
        assert not demand(370 * MB, block=MB).is_beyond(SMALL, ONE_EACH)
    with configured({"dask-ma.data.memory-fraction": 0.05}):
        assert demand(78 * MB).is_beyond(SMALL, ONE_EACH)


def test_copies_count_beside_what_workers_have_taken():
    kept = Kept(1.0, "its columns", "fewer of them")
    stream._refuse_beyond(259 * MB, kept, SMALL.values())
    wanted = (
        "248.* MiB beside the 438.* MiB that the workers take themselves and 228.* MiB "
        "to work with, but the workers have 1.12 GiB together, .* 80%; take .*, with "
        "1.12 GiB together, or fewer"
    )
    with pytest.raises(InsufficientMemoryError, match=wanted):
        stream._refuse_beyond(261 * MB, kept, SMALL.values())
    found = "with 1.34 GiB together"  # which would be enough: 0.6 of it is 863 MB
    with pytest.raises(InsufficientMemoryError, match=found):
        stream._refuse_beyond(403 * MB, kept, SMALL.values())
    early = {name: usage._replace(most=0.7) for name, usage in SMALL.items()}
    with pytest.raises(InsufficientMemoryError, match="70%"):
        stream._refuse_beyond(259 * MB, kept, early.values())
    stream._refuse_beyond(10**15, kept, [])


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


# What processes have -----------------------------------------------------------------


def test_usage_by_a_heartbeat():
    metrics = {
        "memory": 300 * MB,
        "managed_bytes": 150 * MB,
        "spilled_bytes": {"memory": 100 * MB, "disk": 90 * MB},
    }
    info = {"memory_limit": 600 * MB, "nthreads": 3, "metrics": metrics}
    assert usage_of(info) == Usage(600 * MB, 250 * MB, 0.7, 0.8, 3)
    with dask.config.set(
        {
            "distributed.worker.memory.spill": False,
            "distributed.worker.memory.pause": False,
        }
    ):
        assert usage_of({**info, "metrics": {}}) == Usage(600 * MB, 0, 0.95, 0.95, 3)
        with dask.config.set({"distributed.worker.memory.terminate": False}):
            assert usage_of({**info, "memory_limit": None})[::2] == (0, 1.0, 3)


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
        assert before[2:] == (spill or 0.8, 0.8, 2)
        assert before.limit == 8 * 2**30
        held = client.submit(np.ones, 2**25)  # 256 MiB
        held.result()
        after = measure_usage(client, [address], None)[address]
        assert abs(after.taken - before.taken) < 2**27


def test_parts_of_the_memory_of_a_worker(client):
    """Of what it may take, or of what the machine has."""
    assert part_of_memory(1000) == 1000
    assert part_of_memory(1 << 60) == memory_here() // 10

    def look():
        manager = get_worker().memory_manager
        before, manager.memory_limit = manager.memory_limit, 800
        try:
            each = part_of_memory(1 << 60, is_per_thread=True)
            return memory_here(), part_of_memory(1 << 60), part_of_memory(7), each
        finally:
            manager.memory_limit = before

    assert client.submit(look).result() == (800, 80, 7, 80)


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
    monkeypatch.setattr("dask_ma.data._collections.workers_of", lambda client: known)
    with client.as_current(), caplog.at_level("INFO", "dask_ma.data"):
        with configured({"dask-ma.data.join-limit": 25 * MB}):
            assert join_limit(many) == 25 * MB
        assert not caplog.text
        with configured({"dask-ma.data.join-limit": "30 MiB"}):
            assert join_limit(many) == 25 * MB
    assert "up to 23.84 MiB, not 30.00 MiB (dask-ma.data.join-limit)" in caplog.text
    assert "10 % of its memory" in caplog.text


@pytest.mark.parametrize(("n_here", "expected"), [(1, False), (2, True)])
def test_columns_are_read_where_a_process_is_full(monkeypatch, n_here, expected):
    """A copy of them would not fit beside what it has already."""
    monkeypatch.setattr(_read_columns, "memory_here", lambda: 1000)
    monkeypatch.setattr(_read_columns, "is_on_disk", lambda X: True)
    shard = Shard([Block(np.ones((5, 5)), None, None, 0, 0)], 5, np.dtype(float))
    group = SimpleNamespace(local_ranks=range(n_here))  # 300 bytes for each
    monkeypatch.setattr(_read_columns, "memory_taken", lambda: 0)
    assert not _read_columns.is_read(group, shard)
    monkeypatch.setattr(_read_columns, "memory_taken", lambda: 390)
    assert _read_columns.is_read(group, shard) == expected
    monkeypatch.setattr(_read_columns, "memory_taken", lambda: 410)
    assert _read_columns.is_read(group, shard)


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
    """By the heartbeat, or only once the modules of the fit are loaded."""
    assert not share_out()
    full = Usage(10**9, 10**9, 0.7, 0.8)
    found = {"heartbeat": full._replace(taken=0), "measured": full}
    monkeypatch.setattr(stream, "usage_of", lambda info: found["heartbeat"])
    given = []

    def measure(client, addresses, needed):
        given.append(needed)
        return dict.fromkeys(addresses, found["measured"])

    monkeypatch.setattr(stream, "measure_usage", measure)
    with caplog.at_level("INFO", "dask_ma.data"):
        assert share_out(needed=len)
    assert given == [len]
    assert "of which they take 3.73 GiB themselves" in caplog.text
    found["measured"] = found["heartbeat"]
    assert not share_out()
    found["heartbeat"] = full
    given.clear()
    assert share_out() and not given
    # What has to be in memory is compared with what is left, once that is known.
    kept = Kept(1.0, "columns", "fewer")
    assert share_out(copies=kept) and given
    found["measured"] = full
    with pytest.raises(InsufficientMemoryError, match=r"\(columns\)"):
        share_out(copies=kept)
    assert share_out(copies=kept, spills=True)


def test_rows_spare_the_memory_of_workers_that_were_ended(share_out, configured):
    assert share_out(spares_memory=True)
    with configured({"dask-ma.data.persist": True}):
        assert not share_out(spares_memory=True)


def test_the_first_large_block_of_each_worker_is_enough(client, workers, monkeypatch):
    waited = []

    def wait(client, blocks, wanted, addresses):
        waited.append(wanted)
        return blocks[:wanted]

    monkeypatch.setattr(stream, "_wait_for_some", wait)
    blocks = client.map(np.ones, [100] * 12, pure=False)
    for block in blocks:
        block.result()
    assert stream._sizes_of_some(client, blocks, workers) == [800] * 8
    assert waited == [4, 8]
    monkeypatch.setattr(stream, "_LARGE", 800)
    assert stream._sizes_of_some(client, blocks, workers) == [800] * 4
    assert waited == [4, 8, 4]
    monkeypatch.setattr(stream, "_wait_for_some", lambda *args: [])  # one has failed
    assert stream._sizes_of_some(client, blocks, workers) == []


def test_usage_comes_with_its_worker(client, workers):
    found = client.submit(usage_here, None, workers=[workers[2]]).result()
    assert found[0] == workers[2]
    assert set(measure_usage(client, workers, None)) == set(workers)
