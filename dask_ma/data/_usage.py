"""Memory of worker processes: what they may take, and what they have taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import dask
import psutil
from distributed import get_worker
from distributed.system import MEMORY_LIMIT

from dask_ma.data import _collections as cluster
from dask_ma.data._allocator import memory_taken

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["memory_here", "part_of_memory", "spare_memory"]

# Before all else that waits on a worker: rows go on being computed meanwhile.
_PRIORITY = 10_000
_MEMORY = "distributed.worker.memory."
#: Of the limit, what a process may take for each of several purposes: freed memory that
#: it keeps, mapped files, copies of joined blocks.
PART = 0.1
_PURPOSES, _QUIET = 3, 0.7
_LEAST = 2**24


def memory_here() -> int:
    """Bytes that this process may take: the limit of its worker, else the machine's."""
    try:
        limit = get_worker().memory_manager.memory_limit
    except ValueError:  # no worker
        limit = None
    return int(limit or MEMORY_LIMIT)


def part_of_memory(n_bytes: int, *, is_per_thread: bool = False) -> int:
    """What is configured, or a tenth of what this process may take if that is less.

    Parameters
    ----------
    n_bytes : int
        What is configured.
    is_per_thread : bool, default=False
        Whether each thread of the worker takes so much.

    Returns
    -------
    n_bytes : int
    """
    n_threads = 1
    if is_per_thread:
        try:
            n_threads = get_worker().state.nthreads
        except ValueError:  # no worker
            pass
    return min(n_bytes, int(PART * memory_here() / n_threads))


class Usage(NamedTuple):
    """Memory of a worker process.

    Attributes
    ----------
    limit : int
        Bytes that it may take; 0 where there is no limit.
    taken : int
        Bytes that it has in memory beside Dask's data: its modules, and what it is
        working on.
    quiet : float
        Part of the limit up to which Dask leaves it alone: beyond, it writes data to
        disks, or worse.
    most : float
        Part of the limit up to which it works: beyond, Dask has it pause or ends it.
    n_threads : int, default=1
        Tasks that it runs side by side.
    """

    limit: int
    taken: int
    quiet: float
    most: float
    n_threads: int = 1


def spare_memory(n_bytes: int) -> int:
    """What is configured, or less where this process has little memory left by now.

    Parameters
    ----------
    n_bytes : int
        What is configured.

    Returns
    -------
    n_bytes : int
        A tenth of what the process may take at most, and a third of what it has not
        taken of it, up to where Dask begins to spill; but 16 MiB are left to it.
    """
    taken = int(psutil.Process().memory_info().rss)
    left = int((_QUIET * memory_here() - taken) / _PURPOSES)
    return min(part_of_memory(n_bytes), max(left, _LEAST))


def usage_of(info: Mapping[str, Any]) -> Usage:
    """Usage of a worker by its last heartbeat, as its scheduler knows it.

    It may lack modules by then that a fit is going to load.

    Parameters
    ----------
    info : dict
        What the scheduler says of the worker.
    """
    metrics = info.get("metrics", {})
    spilled = metrics.get("spilled_bytes", {}).get("memory", 0)
    held = metrics.get("managed_bytes", 0) - spilled
    taken = max(metrics.get("memory", 0) - held, 0)
    spill, pause = (dask.config.get(f"{_MEMORY}{name}") for name in ("spill", "pause"))
    limit = int(info["memory_limit"] or 0)
    return Usage(limit, taken, *_parts(spill, pause), info["nthreads"])


def measure_usage(
    client: Client, addresses: Sequence[str], needed: Any
) -> dict[str, Usage]:
    """Usage of workers, by address, once they have loaded what a fit needs.

    Parameters
    ----------
    client : distributed.Client
    addresses : sequence of str
        Workers.
    needed : object
        Is sent to them, which loads the modules that it comes from.

    Returns
    -------
    usage : dict of str to Usage
        Without workers that are paused, for which others have answered.

    Raises
    ------
    PeerLostError
        If one of the workers has gone.
    """
    calls = [(usage_here, (needed,), address) for address in dict.fromkeys(addresses)]
    return dict(cluster.call_now(client, calls, priority=_PRIORITY))


def usage_here(needed: Any) -> tuple[str, Usage]:
    """Address and usage of the worker that this runs on."""
    worker = get_worker()
    manager = worker.memory_manager
    data = worker.data
    # What is spilled takes no memory.
    fast = getattr(data, "fast", None)
    held = worker.state.nbytes if fast is None else fast.total_weight
    parts = _parts(manager.memory_spill_fraction, manager.memory_pause_fraction)
    limit = int(manager.memory_limit or 0)
    taken = max(memory_taken() - int(held), 0)
    return worker.address, Usage(limit, taken, *parts, worker.state.nthreads)


def _parts(spill: Any, pause: Any) -> tuple[float, float]:
    """Parts of the limit that a process may take, where False is for no such step."""
    terminate = dask.config.get(f"{_MEMORY}terminate")
    most = min(part for part in (pause, terminate, 1.0) if part is not False)
    return min(part for part in (spill, most) if part is not False), most
