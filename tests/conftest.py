"""Clusters and checks that the tests share.

Functions that go to a worker process are defined inside a test or a helper: those are
pickled by value, and test modules cannot be imported there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

from dask_ma.comm import LocalGroup
from dask_ma.engine import _events
from dask_ma.exceptions import GroupClosedError

_SETTLE = 2.0  # seconds that a cluster has to forget a run
_JOIN = 60.0  # seconds after which a rank counts as stuck


@pytest.fixture(scope="session")
def _inproc_cluster() -> Iterator[Client]:
    """Client of four one-thread workers in this process."""
    with _cluster(n_workers=4, threads_per_worker=1, processes=False) as client:
        yield client


@pytest.fixture(scope="session")
def _process_cluster() -> Iterator[Client]:
    """Client of four one-thread worker processes."""
    with _cluster(n_workers=4, threads_per_worker=1, processes=True) as client:
        yield client


@pytest.fixture(scope="session")
def _wide_cluster() -> Iterator[Client]:
    """Client of two worker processes with four threads each."""
    with _cluster(n_workers=2, threads_per_worker=4, processes=True) as client:
        yield client


@contextmanager
def _cluster(**options: Any) -> Iterator[Client]:
    """A cluster whose client is not the current one, for tests without a client."""
    with (
        LocalCluster(dashboard_address=":0", **options) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def inproc_client(_inproc_cluster: Client) -> Iterator[Client]:
    """Client of four one-thread workers in this process; clean after the test."""
    yield _inproc_cluster
    check_clean(_inproc_cluster)


@pytest.fixture
def process_client(_process_cluster: Client) -> Iterator[Client]:
    """Client of four one-thread worker processes; clean after the test."""
    yield _process_cluster
    check_clean(_process_cluster)


@pytest.fixture
def wide_client(_wide_cluster: Client) -> Iterator[Client]:
    """Client of two four-thread worker processes; clean after the test."""
    yield _wide_cluster
    check_clean(_wide_cluster)


@pytest.fixture(params=["inproc", "process"])
def any_client(request: pytest.FixtureRequest) -> Client:
    """Each kind of cluster in turn."""
    return request.getfixturevalue(f"{request.param}_client")


@pytest.fixture
def assert_clean() -> Callable[[Client], None]:
    """Assert that a cluster has forgotten all runs, for clusters of a test's own."""
    return check_clean


def check_clean(client: Client) -> None:
    """Assert that nothing of any run is left, on the cluster and in this process."""
    deadline = time.monotonic() + _SETTLE
    while (left := _leftovers(client)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


def _leftovers(client: Client) -> dict[str, Any]:
    """What a run leaves behind unless it is cleaned up."""

    def on_scheduler(dask_scheduler: Any) -> tuple[list[str], list[str]]:
        tasks = [
            str(key) for key in dask_scheduler.tasks if str(key).startswith("dask_ma")
        ]
        return tasks, list(dask_scheduler._broker._topics["dask_ma"].subscribers)

    def on_worker() -> tuple[Any, ...]:
        from dask_ma.comm._plugin import registry
        from dask_ma.engine import _events, _threads

        return registry.open_ranks(), list(_events._links), _threads._shared._users

    tasks, subscribers = client.run_on_scheduler(on_scheduler)
    busy = {
        address: state for address, state in client.run(on_worker).items() if any(state)
    }
    threads = [
        thread.name
        for thread in threading.enumerate()
        if "dask_ma" in thread.name or "_close_everywhere" in thread.name
    ]
    found = {
        "tasks": tasks,
        "subscribers": subscribers,
        "ranks, links, users of the BLAS limit": busy,
        "threads": threads,
        "followed runs": list(_events.subscriptions._handlers),
    }
    return {name: value for name, value in found.items() if value}


@pytest.fixture
def configured() -> Callable[..., AbstractContextManager[None]]:
    """``configured(values, client=None)`` sets values here and on all workers."""
    return _configured


@contextmanager
def _configured(values: dict[str, Any], client: Client | None = None) -> Iterator[None]:
    """Set configuration values here and on the workers, and put the old ones back."""

    def exchange(new: dict[str, Any]) -> dict[str, Any]:
        old = {key: dask.config.get(key) for key in new}
        dask.config.set(new)
        return old

    with dask.config.set(values):
        before = {} if client is None else client.run(exchange, values)
        try:
            yield
        finally:
            for address, old in before.items():
                client.run(exchange, old, workers=[address])


@pytest.fixture
def run_ranks() -> Callable[..., list[Any]]:
    """``run_ranks(program, n_ranks, ranks_per_node=None)`` on threads."""
    return _run_ranks


def _run_ranks(
    program: Callable[[LocalGroup], Any],
    n_ranks: int,
    ranks_per_node: int | None = None,
) -> list[Any]:
    """Call ``program(group)`` for each rank of a LocalGroup, in a thread of its own.

    Return the results in rank order, or raise the error that came first in rank order;
    an error on one rank ends the others.
    """
    groups = LocalGroup.create(n_ranks, ranks_per_node)

    def run(group: LocalGroup) -> Any:
        try:
            return program(group)
        except BaseException as error:
            group.abort(GroupClosedError(f"rank {group.rank} failed: {error!r}"))
            raise

    with ThreadPoolExecutor(n_ranks) as pool:
        futures = [pool.submit(run, group) for group in groups]
        try:
            errors = [future.exception(_JOIN) for future in futures]
        except TimeoutError:
            groups[0].abort(GroupClosedError("a rank is stuck"))
            raise
    found = [error for error in errors if error is not None]
    if found:
        raise min(found, key=lambda error: isinstance(error, GroupClosedError))
    return [future.result() for future in futures]
