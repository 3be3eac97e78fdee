"""The cluster of a fit, and the placement of its ranks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from heapq import heapify, heapreplace
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from distributed import Client, get_client, get_worker, worker_client
from distributed.deploy.cluster import Cluster

from dask_ma import _config
from dask_ma.data import current_client, scheduler_workers
from dask_ma.engine._liveness import is_running
from dask_ma.exceptions import FitFailedError, NoWorkersError

_thread = threading.local()
_STARTING = ("newly-created", "connecting")
_SHORT_WAIT = 0.01  # seconds
_LOOK = 0.2  # seconds between looks at the workers of a cluster
# In which a cluster that adapts notices that there is a task. It may be busy with the
# end of another worker, which takes seconds.
_INTERVALS = 6


def mark_seceded() -> None:
    """Note that this thread has left the thread pool of its worker."""
    _thread.seceded = True


@contextmanager
def fit_client(client: Client | None = None) -> Iterator[Client | None]:
    """The client that a fit uses: the one given, the current one, or None.

    Inside a task the current client is that of the worker, and the task leaves the
    thread pool meanwhile, so that a rank of the fit can have its thread.
    """
    if not _in_task():
        yield _checked(client or current_client())
        return
    if getattr(_thread, "seceded", False):
        yield _checked(client or get_client())
        return
    with worker_client() as current:
        _thread.seceded = True
        try:
            yield _checked(client or current)
        finally:
            _thread.seceded = False


def await_workers(client: Client | None) -> None:
    """Wait for as many workers as the configuration wants a fit to begin with.

    Without any, a cluster that adapts to what there is to do is given something to do,
    as no task waits before the ranks have their places; and one that is starting some
    is waited for.

    Parameters
    ----------
    client : Client or None
        None: there is nothing to wait for.

    Raises
    ------
    NoWorkersError
        If they are not there after ``dask-ma.launch.min-workers-timeout``.
    """
    wanted = _config.get_count("launch.min-workers")
    if client is None or (wanted < 1 and not _is_known_empty(client.cluster)):
        return
    timeout = _config.get_timeout("launch.min-workers-timeout")
    started = monotonic()
    with ExitStack() as stack:
        is_asked = False
        while True:
            found = len(running_workers(client, allow_none=True))
            waited = monotonic() - started
            if found >= max(1, wanted):
                return
            is_late = waited >= _answer_time()
            if wanted < 1 and is_late and not _plans_workers(client.cluster):
                return  # nobody starts a worker, as the one who places ranks will say
            if waited >= timeout:
                raise NoWorkersError(_too_few(found, wanted, timeout))
            if not found and not is_asked:
                stack.enter_context(_something_to_do(client))
                is_asked = True
            sleep(_LOOK)


def _is_known_empty(cluster: Any) -> bool:
    """Whether this process has made a cluster that is without workers."""
    return isinstance(cluster, Cluster) and not cluster.scheduler_info["workers"]


def _plans_workers(cluster: Any) -> bool:
    """Whether a cluster is to have workers, as far as it says so."""
    return bool(getattr(cluster, "plan", None))


def _answer_time() -> float:
    """Seconds in which a cluster that adapts begins to start a worker."""
    interval = _config.get_dask_timeout("distributed.adaptive.interval")
    return _INTERVALS * interval


@contextmanager
def _something_to_do(client: Client) -> Iterator[None]:
    """Have a task wait for a worker."""
    task = client.submit(int, key=f"dask_ma-wake-{uuid4().hex}")
    try:
        yield
    finally:
        task.release()


def _too_few(found: int, wanted: int, timeout: float) -> str:
    """Message that workers have not come."""
    text = (
        f"{found} workers take tasks after {timeout:g} s "
        f"(dask-ma.launch.min-workers-timeout), expected {max(1, wanted)}"
    )
    if wanted < 1:
        return f"{text}, which the cluster has begun to start"
    return (
        f"{text} (dask-ma.launch.min-workers); a cluster that adapts starts more than "
        "one for a fit only where cluster.adapt(minimum=n) says so"
    )


def place_ranks(
    client: Client | None,
    n_ranks: int | None,
    n_rows: int | None = None,
    workers: dict[str, dict[str, Any]] | None = None,
) -> list[str] | None:
    """Choose the worker of each rank.

    Parameters
    ----------
    client : Client or None
        None: the ranks are threads of this process.
    n_ranks : int or None
        How many ranks; None means one per worker thread, and 1 without a client.
    n_rows : int, default=None
        Rows of the input if known: there are never more ranks than rows.
    workers : dict, default=None
        What the scheduler has said of its workers just now; None asks it.

    Returns
    -------
    addresses : list of str, or None
        Address of the worker of each rank, the ranks of one worker in succession, as
        many on each worker as its share of the threads. None without a client.

    Raises
    ------
    NoWorkersError
        If no worker is there that takes tasks.
    """
    if client is None:
        return None
    threads = running_workers(client, workers=workers)
    if n_ranks is None:
        n_ranks = sum(threads.values())
    if n_rows is not None:
        n_ranks = max(1, min(n_ranks, n_rows))
    return spread_ranks(threads, n_ranks)


def one_per_worker(client: Client) -> list[str]:
    """Address of every worker that takes tasks."""
    return list(running_workers(client))


def spread_ranks(threads: dict[str, int], n_ranks: int) -> list[str]:
    """Give each rank, in turn, to the worker with the most free threads."""
    counts = dict.fromkeys(threads, 0)
    # Load after taking one more; the first worker wins a tie.
    loads = [
        (1 / n, place, address) for place, (address, n) in enumerate(threads.items())
    ]
    heapify(loads)
    for _ in range(n_ranks):
        _, place, address = loads[0]
        counts[address] += 1
        heapreplace(loads, ((counts[address] + 1) / threads[address], place, address))
    return [address for address, count in counts.items() for _ in range(count)]


def known_workers(client: Client) -> dict[str, dict[str, Any]]:
    """What the scheduler says of each of its workers.

    Raises
    ------
    NoWorkersError
        If it does not answer, or the client is closed.
    """
    try:
        return scheduler_workers(client)
    except FitFailedError as error:
        if client.status != "running":
            raise NoWorkersError(
                f"the current Dask client is {client.status}, which it was not when "
                "the fit began; keep client and cluster until fit returns"
            ) from error
        raise NoWorkersError(
            f"the current Dask client cannot reach its scheduler: {error}"
        ) from error


def running_workers(
    client: Client,
    *,
    allow_none: bool = False,
    workers: dict[str, dict[str, Any]] | None = None,
) -> dict[str, int]:
    """Threads of each worker that takes tasks, in an order that does not change.

    Raises
    ------
    NoWorkersError
        If the scheduler does not answer; and if there is no such worker, unless
        `allow_none`.
    """
    if workers is None:
        workers = known_workers(client)
    running = {
        address: max(1, info["nthreads"])
        for address, info in workers.items()
        if is_running(info)
    }
    if not running and not allow_none:
        n_paused = sum(info.get("status") == "paused" for info in workers.values())
        paused = f" ({n_paused} paused, as their memory is full)" if n_paused else ""
        raise NoWorkersError(
            f"the cluster of the current Dask client ({client.scheduler.address}) has "
            f"{len(workers)} workers, none of them running{paused}; wait for them with "
            "client.wait_for_workers(n), or with dask-ma.launch.min-workers where the "
            "cluster starts workers when there are tasks, or close the client to fit "
            "in this process"
        )
    # Workers of one process side by side, whatever the order they joined in.
    return dict(sorted(running.items()))


def _in_task() -> bool:
    """Whether this thread runs a task of a worker."""
    try:
        get_worker()
    except ValueError:
        return False
    return True


def _checked(client: Client | None) -> Client | None:
    """Refuse a client that cannot be used."""
    if client is None:
        return None
    if client.asynchronous:
        raise TypeError(
            "the current Dask client is asynchronous; make one with "
            "asynchronous=False, or call fit from another thread"
        )
    _wait_until_connected(client)
    if client.status != "running":
        raise NoWorkersError(
            f"the current Dask client is {client.status}; make a new one, or drop it "
            "to fit in this process"
        )
    return client


def _wait_until_connected(client: Client) -> None:
    """Give a client that is being made the time it may take."""
    # Tasks that start together on one worker share its client, and all but the first
    # get it while the first is still making it.
    deadline = monotonic() + _config.get_dask_timeout(
        "distributed.comm.timeouts.connect"
    )
    while client.status in _STARTING and monotonic() < deadline:
        sleep(_SHORT_WAIT)
