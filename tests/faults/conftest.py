"""Clusters that lose workers, and what is expected of a run that meets it."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context

from dask_ma import run_spmd
from dask_ma.comm import allreduce
from dask_ma.data import scheduler_workers
from dask_ma.engine._liveness import is_running
from dask_ma.exceptions import PeerLostError

_MOST_SECONDS = 25.0  # from the loss of a worker to the error


@pytest.fixture(scope="module")
def cluster_client() -> Iterator[Client]:
    """Client of a cluster that starts no workers itself."""
    with (
        LocalCluster(n_workers=0, processes=True, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def nannied() -> Callable[[int], AbstractContextManager[Client]]:
    """``with nannied(n) as client:`` has worker processes that are started again."""
    return _nannied


@pytest.fixture(scope="module")
def nannied_client(
    request: pytest.FixtureRequest, assert_usable: Callable[..., None]
) -> Iterator[Client]:
    """Client of `N_WORKERS` of the module, processes that are started again."""
    with _nannied(request.module.N_WORKERS) as client:
        assert_usable(client, request.module.N_WORKERS)
        yield client


@pytest.fixture
def current_client(
    request: pytest.FixtureRequest,
    nannied_client: Client,
    assert_usable: Callable[..., None],
) -> Iterator[Client]:
    """The same as the current one, with all workers after the test as before it."""
    n_workers = request.module.N_WORKERS
    with nannied_client.as_current(), dask.config.set({"dask-ma.recovery.wait": 20}):
        yield nannied_client
    assert_usable(nannied_client, n_workers)


@contextmanager
def _nannied(n_workers: int) -> Iterator[Client]:
    """A cluster whose nannies start workers again, and which gives up none.

    It would give one up that is away when some time after an earlier loss has passed.
    """
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def here() -> Callable[..., Any]:
    """``here(fit, *rows)`` calls a function as if there was no client.

    On threads a fit takes a fraction of what it does on processes, with the same bits.
    """

    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return contextvars.Context().run(function, *args, **kwargs)

    return call


@pytest.fixture
def bare_workers() -> Callable[..., AbstractContextManager[list[BaseProcess]]]:
    """``with bare_workers(client, n, *options):`` has processes without a nanny."""
    return _bare_workers


@contextmanager
def _bare_workers(
    client: Client, n_workers: int, *options: str
) -> Iterator[list[BaseProcess]]:
    """Run ``dask worker --no-nanny`` in processes that start as quickly as others."""
    always = ["--no-nanny", "--nthreads=1", "--no-dashboard"]
    arguments = [client.scheduler.address, *always, *options]
    code = f"from distributed.cli.dask_worker import main; main({arguments})"
    n_before = len(client.nthreads())
    processes: list[BaseProcess] = []
    try:
        for _ in range(n_workers):
            process = get_mp_context().Process(target=exec, args=(code, {}))
            process.start()
            processes.append(process)
        client.wait_for_workers(n_before + n_workers, timeout=60)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join(30)


@pytest.fixture(scope="module")
def crew() -> Iterator[Callable[..., Client]]:
    """``crew(n, *options)`` is a client of `n` such workers, kept for later tests.

    Only those that the tests before have lost are started again. Workers with other
    options are on a cluster of their own.
    """
    with ExitStack() as stack:
        yield partial(_crew, stack, {})


def _crew(
    stack: ExitStack,
    crews: dict[tuple[str, ...], tuple[Client, list[BaseProcess]]],
    n_workers: int,
    *options: str,
) -> Client:
    """Client of workers without a nanny, as many as are wanted."""
    if options not in crews:
        cluster = LocalCluster(n_workers=0, processes=True, dashboard_address=":0")
        client = Client(stack.enter_context(cluster), set_as_default=False)
        crews[options] = stack.enter_context(client), []
    client, processes = crews[options]
    deadline = time.monotonic() + _MOST_SECONDS
    while True:  # until those that are about to go have gone
        running = [*map(is_running, scheduler_workers(client).values())]
        n_there = sum(process.is_alive() for process in processes)
        if running == [True] * n_there:
            break
        assert time.monotonic() < deadline, "workers are neither there nor gone"
        time.sleep(0.01)
    missing = _bare_workers(client, n_workers - n_there, *options)
    processes += stack.enter_context(missing)
    return client


@pytest.fixture
def struck_client(
    crew: Callable[..., Client], assert_usable: Callable[..., None]
) -> Iterator[Client]:
    """The current client, of three workers of which the test kills one."""
    client = crew(3)
    with client.as_current(), dask.config.set({"dask-ma.recovery.wait": "100 ms"}):
        yield client
    assert len(client.nthreads()) == 2
    assert_usable(client, 2)


@pytest.fixture
def loses(tmp_path: Path) -> Callable[..., AbstractContextManager[Path]]:
    """``with loses(client, ranks, n_ranks) as flag``: the block ends as it should.

    Whatever makes the ranks go away touches the file `flag` just before; the error has
    to come soon after that.
    """
    return partial(_loses, tmp_path / "lost")


@contextmanager
def _loses(
    flag: Path, client: Client, ranks: list[int], n_ranks: int
) -> Iterator[Path]:
    """Expect an error that names the ranks that are lost and their workers."""
    workers = sorted(client.nthreads())
    with pytest.raises(PeerLostError) as caught:
        yield flag
    assert time.time() - flag.stat().st_mtime < _MOST_SECONDS
    text = str(caught.value)
    named = {
        rank
        for rank in range(n_ranks)
        if f"rank {rank} of {n_ranks} (worker {workers[rank]})" in text
    }
    # Of several that go at once, the first that is missed is enough.
    assert named and named <= set(ranks), text


@pytest.fixture(scope="session")
def assert_usable(assert_clean: Callable[[Client], None]) -> Callable[..., None]:
    """``assert_usable(client, n)``: clean, and ready for a run on `n` workers."""

    def check(client: Client, n_workers: int) -> None:
        def program(group):
            return int(allreduce(group, np.array(group.rank + 1)))

        assert_clean(client)
        client.wait_for_workers(n_workers, timeout=60)
        results = run_spmd(program, client=client)
        assert results == [n_workers * (n_workers + 1) // 2] * n_workers

    return check
