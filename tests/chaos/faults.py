"""What may happen to the workers of a fit."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from distributed import Client

from chaos.cluster import Cluster
from dask_ma.exceptions import FitFailedError, NoWorkersError, PeerLostError

#: Rows that only workers hold, which no graph and no client can bring back.
_ONLY_ON_WORKERS = ("scattered",)
#: Rows that go when somebody restarts the cluster: the scheduler forgets their graph.
_FORGOTTEN = ("scattered", "persisted")


@dataclass(frozen=True)
class Fault:
    """Something that happens in the middle of a fit.

    Parameters
    ----------
    strike : callable
        ``strike(cluster, pids, rng)``; `pids` has the process of each worker.
    weight : int
        How often it is drawn.
    settings : dict
        Configuration of the fit that meets it.
    seconds : float
        How long it may hold up a fit.
    errors : tuple of exception types
        With what the fit has to end whatever the input; empty if it has to go on.
    forgets : bool
        Whether input that only the cluster has is gone with it, so that an error is
        due there.
    early : bool
        Whether it happens as the fit begins: it takes a while to have an effect.
    """

    strike: Callable[[Cluster, dict[str, int], random.Random], Any]
    weight: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    errors: tuple[type[BaseException], ...] = ()
    forgets: bool = False
    early: bool = False

    def allowed_errors(self, kind: str) -> tuple[type[BaseException], ...]:
        """Errors that the user guide promises for this fault and kind of input."""
        if self.forgets and kind in _FORGOTTEN:
            return (PeerLostError, FitFailedError)
        if kind in _ONLY_ON_WORKERS:
            return (PeerLostError, *self.errors)
        return self.errors

    def may_lose_rows(self, kind: str) -> bool:
        """Whether rows may be lost that nobody has any more."""
        return kind in _ONLY_ON_WORKERS or (self.forgets and kind in _FORGOTTEN)


Pids = dict[str, int]


def _send(pid: int, sign: int) -> None:
    """Send a signal to a process that may have gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sign)


def _one(pids: Pids, rng: random.Random) -> int:
    return pids[rng.choice(sorted(pids))]


def kill(cluster: Cluster, pids: Pids, rng: random.Random) -> None:
    """A worker process dies; its nanny starts it again."""
    _send(_one(pids, rng), signal.SIGKILL)


def terminate(cluster: Cluster, pids: Pids, rng: random.Random) -> None:
    """A worker process is asked to end."""
    _send(_one(pids, rng), signal.SIGTERM)


def kill_two(cluster: Cluster, pids: Pids, rng: random.Random) -> None:
    """A second worker dies while the fit recovers from the loss of the first."""
    first, second = rng.sample(sorted(pids), 2)
    _send(pids[first], signal.SIGKILL)
    time.sleep(rng.uniform(0, 4))
    _send(pids[second], signal.SIGKILL)


def kill_all(cluster: Cluster, pids: Pids, rng: random.Random) -> None:
    """All worker processes die."""
    for pid in pids.values():
        _send(pid, signal.SIGKILL)


def stop(cluster: Cluster, pids: Pids, rng: random.Random) -> None:
    """A worker process stands still for a while."""
    pid = _one(pids, rng)
    _send(pid, signal.SIGSTOP)
    time.sleep(rng.uniform(0.5, 4))
    _send(pid, signal.SIGCONT)


def stop_for_long(cluster: Cluster, pids: Pids, rng: random.Random) -> None:
    """A worker process stands still for so long that it is given up."""
    pid = _one(pids, rng)
    _send(pid, signal.SIGSTOP)
    time.sleep(rng.uniform(6, 8))
    _send(pid, signal.SIGCONT)


def kill_nanny(cluster: Cluster, pids: Pids, rng: random.Random) -> None:
    """A nanny dies, and its worker with it; nobody starts them again."""
    rng.choice(cluster.jobs).end(signal.SIGKILL)


def end_jobs(cluster: Cluster, pids: Pids, rng: random.Random) -> None:
    """The batch system ends all jobs; new ones come later."""
    _end_all(cluster)
    time.sleep(rng.uniform(0, 3))
    for _ in range(len(pids)):
        cluster.add()


def end_jobs_for_good(cluster: Cluster, pids: Pids, rng: random.Random) -> None:
    """The batch system ends all jobs, and no new ones come in time."""
    _end_all(cluster)


def _end_all(cluster: Cluster) -> None:
    for job in list(cluster.jobs):
        job.end(signal.SIGTERM)


def restart(cluster: Cluster, pids: Pids, rng: random.Random) -> None:
    """Somebody else restarts all workers."""
    with Client(cluster.address, set_as_default=False) as client:
        client.restart(timeout=60)


def retire(cluster: Cluster, pids: Pids, rng: random.Random) -> None:
    """A worker is asked to hand over its data and leave."""
    with Client(cluster.address, set_as_default=False) as client:
        workers = cluster.workers()
        client.retire_workers([workers[rng.choice(sorted(workers))]])


def fill_memory(cluster: Cluster, pids: Pids, rng: random.Random) -> None:
    """A task of somebody else takes all memory of a worker; its nanny ends it."""

    def fill() -> None:
        import numpy as np

        taken = []
        for _ in range(100):
            taken.append(np.ones(4_000_000))
            time.sleep(0.02)

    with Client(cluster.address, set_as_default=False) as client:
        workers = cluster.workers()
        address = workers[rng.choice(sorted(workers))]
        future = client.submit(
            fill, workers=[address], allow_other_workers=False, pure=False
        )
        deadline = time.monotonic() + 15
        while address in cluster.workers().values() and not future.done():
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        future.cancel(force=True)


def join(cluster: Cluster, pids: Pids, rng: random.Random) -> None:
    """One more worker joins."""
    cluster.add()


def join_and_kill(cluster: Cluster, pids: Pids, rng: random.Random) -> None:
    """One more worker joins, and one of the others dies soon after."""
    cluster.add()
    time.sleep(rng.uniform(0.3, 3))
    _send(_one(pids, rng), signal.SIGKILL)


_ELASTIC = {"dask-ma.elastic": True, "dask-ma.launch.heartbeat-interval": "200 ms"}
_IMPATIENT = {
    "dask-ma.launch.worker-timeout": "3 s",
    "dask-ma.launch.heartbeat-interval": "250 ms",
    "dask-ma.launch.abort-timeout": "1 s",
}
_LONG = {"dask-ma.recovery.wait": "60 s"}

FAULTS = {
    "kill": Fault(kill, weight=3),
    "terminate": Fault(terminate),
    "stop": Fault(stop, seconds=4),
    "stop for long": Fault(stop_for_long, settings=_IMPATIENT, seconds=15),
    "kill two": Fault(kill_two, weight=3, seconds=10),
    "kill all": Fault(kill_all, weight=2, settings=_LONG, seconds=10),
    "kill nanny": Fault(kill_nanny, weight=2, seconds=10),
    "end jobs": Fault(end_jobs, weight=2, settings=_LONG, seconds=30),
    "end jobs for good": Fault(
        end_jobs_for_good,
        settings={"dask-ma.recovery.wait": "1 s"},
        seconds=10,
        errors=(NoWorkersError,),
    ),
    "restart": Fault(restart, weight=2, settings=_LONG, seconds=20, forgets=True),
    "retire": Fault(retire, seconds=10),
    "fill memory": Fault(fill_memory, seconds=10),
    "join": Fault(join, early=True),
    "join elastic": Fault(join, weight=3, settings=_ELASTIC, seconds=10, early=True),
    "join elastic, kill": Fault(
        join_and_kill, weight=2, settings=_ELASTIC, seconds=15, early=True
    ),
}
