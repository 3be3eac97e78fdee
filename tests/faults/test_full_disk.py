"""Workers whose disk is full: blocks that they want to spill stay in their memory."""

import gc
import time
from contextlib import contextmanager

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

from dask_ma import MASGDClassifier
from dask_ma.exceptions import FitFailedError

resource = pytest.importorskip("resource", reason="no limits on the size of files")
pytestmark = pytest.mark.slow

N_WORKERS = 3
PARAMS = {
    "loss": "log_loss",
    "alpha": 0.01,
    "max_iter": 6,
    "tol": None,
    "random_state": 0,
    "local_epochs": 1.0,
}
_LARGEST_FILE = 4096  # bytes; one block has 160000


@pytest.fixture(scope="module")
def cluster_client(assert_usable):
    """Client of three worker processes that are to hold half a megabyte each."""
    with (
        dask.config.set(
            {
                "distributed.worker.memory.target": 0.00045,
                "distributed.worker.memory.monitor-interval": "100ms",
                "distributed.scheduler.work-stealing": False,  # each keeps its share
            }
        ),
        LocalCluster(
            n_workers=N_WORKERS,
            threads_per_worker=1,
            processes=True,
            # Where PyTorch is one for GPUs a worker has 550 MB before it does anything.
            memory_limit="1100 MB",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        assert_usable(client, N_WORKERS)
        yield client


@pytest.fixture
def client(cluster_client, assert_usable):
    """The current client."""
    with current(cluster_client):
        yield cluster_client
    assert_usable(cluster_client, N_WORKERS)


@contextmanager
def current(client):
    """Blocks lie in the same places in each fit."""
    with (
        client.as_current(),
        dask.config.set({"dask-ma.data.placement": "contiguous"}),
    ):
        yield


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12000, 20))
    return X, (X @ np.arange(20) + rng.normal(size=12000) > 0).astype(int)


@pytest.fixture(scope="module")
def undisturbed(cluster_client, rows):
    """A fit while the workers spill what is too much."""
    with current(cluster_client):
        X, y = persist(cluster_client, rows)
        assert all(n_spilled for n_spilled, _ in memory(cluster_client))
        return MASGDClassifier(**PARAMS).fit(X, y)


@pytest.fixture
def full_disk(client, undisturbed):
    """From here on no worker can write a block to a file."""
    assert can_write(client) == [True] * N_WORKERS
    limit_files(client, _LARGEST_FILE)
    assert can_write(client) == [False] * N_WORKERS
    yield
    limit_files(client, None)
    # What could not be spilled is in circles with the errors that say so.
    client.run(gc.collect)


def persist(client, rows):
    """Blocks of 1000 rows, each worker's share in its memory."""
    workers = sorted(client.nthreads())

    def place(key):
        return workers[key[1] % N_WORKERS]

    with dask.annotate(workers=place, allow_other_workers=True):
        blocks = [da.from_array(part, chunks=(1000, *part.shape[1:])) for part in rows]
    blocks = client.persist(blocks, optimize_graph=False)
    wait(blocks)
    return blocks


def memory(client):
    """How many blocks each worker has on disk, and how full it is of the others."""

    def look(dask_worker):
        data = dask_worker.data
        return len(data.disk), data.memory.total_weight / data.n

    return list(client.run(look).values())


def limit_files(client, n_bytes):
    """Writes beyond so many bytes of a file fail as they do on a full disk."""

    def limit():
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        wanted = most if n_bytes is None else n_bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (wanted, most))

    client.run(limit)


def can_write(client):
    """Whether each worker can write a file as large as a block."""

    def write(dask_worker):
        from pathlib import Path

        path = Path(dask_worker.local_directory, "block")
        try:
            path.write_bytes(bytes(160000))
        except OSError:
            return False
        finally:
            path.unlink()
        return True

    return list(client.run(write).values())


def assert_nothing_spilled(client):
    """The workers hold more than they are to, and have put nothing on their disk."""
    for n_spilled, fullness in memory(client):
        assert n_spilled == 0
        assert fullness > 1


def test_blocks_that_cannot_be_spilled(client, rows, undisturbed, full_disk):
    """They stay in memory, and nothing else changes."""
    X, y = persist(client, rows)
    assert_nothing_spilled(client)
    model = MASGDClassifier(**PARAMS).fit(X, y)
    assert_nothing_spilled(client)
    np.testing.assert_array_equal(model.coef_, undisturbed.coef_)


def test_a_worker_that_is_paused(client, rows, undisturbed, full_disk, monkeypatch):
    """It has no other way to save memory, and keeps its rank."""

    def agent(context, arguments, params):
        from distributed import Status, get_worker

        from dask_ma.ma.sgd import _agent

        keep, worker = context.save_state, get_worker()
        manager = worker.memory_manager
        limit = manager.memory_limit

        def keep_in_little_memory(n_rounds, *args, **kwargs):
            keep(n_rounds, *args, **kwargs)
            if context.group.rank == 1 and n_rounds == 2:
                used = worker.monitor.get_process_memory()
                manager.memory_limit = int(used / 0.87)
                while worker.status != Status.paused:
                    time.sleep(0.01)
            if context.group.rank == 1 and n_rounds == 5:
                assert worker.status == Status.paused
                manager.memory_limit = limit

        context.save_state = keep_in_little_memory
        return _agent.train(context, arguments, params)

    monkeypatch.setattr("dask_ma.ma.sgd._linear.train", agent)
    X, y = persist(client, rows)
    model = MASGDClassifier(**PARAMS).fit(X, y)
    assert_nothing_spilled(client)
    np.testing.assert_array_equal(model.coef_, undisturbed.coef_)


@pytest.fixture
def takes_too_much(monkeypatch, tmp_path):
    """A file that is there once rank 1 has taken more memory than its worker may."""
    mark = tmp_path / "too much"

    def agent(context, arguments, params):
        from dask_ma.ma.sgd import _agent

        keep = context.save_state

        def keep_too_much(n_rounds, *args, **kwargs):
            keep(n_rounds, *args, **kwargs)
            if context.group.rank == 1 and n_rounds == 3 and not mark.exists():
                mark.touch()
                too_much = np.ones(2**27)  # 1 GiB
                while too_much.size:
                    time.sleep(0.01)

        context.save_state = keep_too_much
        return _agent.train(context, arguments, params)

    monkeypatch.setattr("dask_ma.ma.sgd._linear.train", agent)
    return mark


def test_a_worker_that_its_nanny_ends(
    client, rows, undisturbed, full_disk, takes_too_much, caplog
):
    """What it held is computed again, and its rank goes on in its successor."""
    before = set(client.nthreads())
    X, y = persist(client, rows)
    with caplog.at_level("WARNING", "dask_ma.engine"):
        model = MASGDClassifier(**PARAMS).fit(X, y)
    assert "nannies ended workers that took too much memory" in caplog.text
    assert takes_too_much.exists()
    assert len(before - set(client.nthreads())) == 1
    assert [record["round"] for record in model.history_] == [1, 2, 3, 4, 5, 6]
    assert model.history_[-1]["n_samples"] == len(X)
    wanted = undisturbed.history_[-1]["objective"]
    assert model.history_[-1]["objective"] == pytest.approx(wanted, rel=0.01)


def test_an_error_names_memory(client, rows, full_disk, takes_too_much):
    [lost] = [a for rank, a in enumerate(sorted(client.nthreads())) if rank == 1]
    with (
        dask.config.set({"dask-ma.on-worker-loss": "raise"}),
        pytest.raises(FitFailedError) as raised,
    ):
        MASGDClassifier(**PARAMS).fit(*persist(client, rows))
    [note] = [n for n in raised.value.__notes__ if "memory" in n]
    assert f"took too much memory: {lost} with" in note
    assert "larger workers" in note
    client.wait_for_workers(N_WORKERS)
