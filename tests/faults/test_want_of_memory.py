"""Workers whose memory is too small for what a fit would like to have there."""

import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context

from dask_ma import MASGDClassifier
from dask_ma.data import _stream
from dask_ma.data._allocator import memory_taken
from dask_ma.exceptions import InsufficientMemoryError

pytestmark = pytest.mark.slow

N_WORKERS = 2
PARAMS = {
    "loss": "log_loss",
    "alpha": 0.01,
    "max_iter": 6,
    "tol": None,
    "random_state": 0,
    "local_epochs": 1.0,
}

# Workers that are said to have been ended for want of memory -------------------------


@pytest.fixture
def client(current_client):
    """The current client of worker processes that their nannies start again."""
    return current_client


@pytest.fixture
def rows(monkeypatch):
    """Lazy rows that count as many."""
    monkeypatch.setattr(_stream, "_LITTLE", 0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 10))
    y = (X @ np.arange(10) + rng.normal(size=2000) > 0).astype(int)
    return da.from_array(X, chunks=(250, 10)), da.from_array(y, chunks=250)


@pytest.fixture
def ended(monkeypatch, tmp_path):
    """``ended(n_times)``: the worker of rank 1 is, in the middle of a round."""

    def arm(n_times):
        monkeypatch.setattr(
            "dask_ma.ma.sgd._linear.train", greedy_agent(n_times, tmp_path)
        )

    return arm


def greedy_agent(n_times, directory):
    """The agent of model averaging, with a worker that goes so many times."""

    def agent(context, arguments, params):
        from distributed import get_client, get_worker

        from dask_ma.ma.sgd import _agent
        from dask_ma.ma.sgd._solver import LocalSGD

        run, before = LocalSGD.run, len(list(directory.glob("ended-*")))

        def run_greedily(self, *args):
            result = run(self, *args)
            if before < n_times:
                (directory / f"ended-{before}").touch()
                event = {"worker": get_worker().address, "rss": 2**30}
                get_client().log_event("worker-restart-memory", event)
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        if context.group.rank == 1 and before < n_times:
            LocalSGD.run = run_greedily  # this process dies of it
        return _agent.train(context, arguments, params)

    return agent


def test_rows_go_to_disks_after_the_first_loss(client, rows, ended, caplog, tmp_path):
    """Those of the other ranks, too; where all is in memory, and may be on disks."""
    undisturbed = MASGDClassifier(n_ranks=N_WORKERS, **PARAMS)
    with dask.config.set({"dask-ma.data.persist": True}):
        undisturbed.fit(*(part.compute() for part in rows))
    ended(1)
    with caplog.at_level("INFO", "dask_ma"):
        model = MASGDClassifier(**PARAMS).fit(*rows)
    assert "nannies ended workers that took too much memory" in caplog.text
    assert "rows go to local disks from here on" in caplog.text
    assert (tmp_path / "ended-0").exists()
    wanted = undisturbed.history_[-1]["objective"]
    assert model.history_[-1]["objective"] == pytest.approx(wanted, rel=0.01)
    assert model.history_[-1]["n_samples"] == 2000


def test_a_fit_that_takes_too_much_again_and_again(client, rows, ended):
    ended(100)
    found = (
        r"given up after 3 losses .* to round 0 .*with 1.00 GiB. Take more or larger"
    )
    with pytest.raises(InsufficientMemoryError, match=found):
        MASGDClassifier(**PARAMS).fit(*rows)


# Workers that are small --------------------------------------------------------------


@pytest.fixture(scope="module")
def small_cluster():
    """Client of two processes that may take 350 MB more than they begin with."""
    with ProcessPoolExecutor(1, mp_context=get_mp_context()) as forked:
        taken = forked.submit(memory_taken).result()
    values = {
        "distributed.worker.memory.monitor-interval": "100ms",
        "distributed.deploy.lost-worker-timeout": "1 hour",
    }
    with (
        dask.config.set(values),
        LocalCluster(
            n_workers=N_WORKERS,
            threads_per_worker=1,
            memory_limit=taken + 350 * 10**6,
            dashboard_address=":0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def small_workers(small_cluster, assert_clean):
    """The current client; no worker has gone at the end, but for `may_go`."""
    small_cluster.wait_for_workers(N_WORKERS, timeout=60)
    with small_cluster.as_current(), dask.config.set({"dask-ma.recovery.wait": 20}):
        yield small_cluster
    assert_clean(small_cluster)


def made_rows(n_blocks, n_rows=15_000, wasted=0):
    """Blocks of 24 MB, the making of which takes so many bytes besides."""

    def make(number):
        much = np.ones(wasted // 8)
        while wasted and much.size:  # until the nanny looks
            time.sleep(0.01)
        return np.random.default_rng(number).standard_normal((n_rows, 200))

    X = da.concatenate(
        [
            da.from_delayed(dask.delayed(make, pure=False)(i), (n_rows, 200), float)
            for i in range(n_blocks)
        ]
    )
    y = da.random.default_rng(0).integers(0, 2, X.shape[0], chunks=n_rows)
    return X, y


def processes(client):
    """Process of each worker."""
    return client.run(os.getpid)


def test_rows_that_would_fill_the_workers(small_workers, caplog):
    """240 of 700 MB beside their modules, where a joined copy takes as much."""
    before = processes(small_workers)
    with caplog.at_level("INFO", "dask_ma.data"):
        model = MASGDClassifier(max_iter=2, tol=None, refine=None, random_state=0)
        model.fit(*made_rows(10))
    assert len(model.history_) == 2
    assert "they go to local disks" in caplog.text
    assert processes(small_workers) == before


def test_rows_that_have_to_be_held(small_workers):
    before = processes(small_workers)
    found = "rows that early stopping has split.*set early_stopping=False"
    with pytest.raises(InsufficientMemoryError, match=found):
        MASGDClassifier(early_stopping=True).fit(*made_rows(25))
    assert processes(small_workers) == before


def test_blocks_that_no_worker_can_make(small_workers):
    """Nannies end all workers that try, and the fit says so."""
    found = "given up after 2 losses .* smaller blocks of rows"
    few = dask.config.set({"dask-ma.recovery.max-memory-restarts": 1})
    with few, pytest.raises(InsufficientMemoryError, match=found):
        MASGDClassifier().fit(*made_rows(1, wasted=400 * 10**6))
    small_workers.wait_for_workers(N_WORKERS, timeout=60)
