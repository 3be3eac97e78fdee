"""Memory of worker processes: what they may take, and what they have taken.

Of a Dask worker, ``memory_manager`` is used for its limit and fractions, ``data.fast``
for the bytes that are not spilled, and ``state`` for its threads, and for bytes where
nothing is spilled: heartbeats, which have them too, may be old.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import dask
import psutil
from distributed import get_worker
from distributed.protocol import pickle
from distributed.system import MEMORY_LIMIT

from dask_ma import _config
from dask_ma.data._allocator import memory_taken
from dask_ma.data._workers import workers_of

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["memory_here", "part_of_memory", "spare_memory"]

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


def part_of_memory(n_bytes: int) -> int:
    """What is configured, or a tenth of what this process may take if that is less.

    Parameters
    ----------
    n_bytes : int
        What is configured.

    Returns
    -------
    n_bytes : int
    """
    return min(n_bytes, int(PART * memory_here()))


class Usage(NamedTuple):
    """Memory of a worker, or of all workers of a process.

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
    held : int, default=0
        Bytes of Dask's data that it has in memory.
    process : str, default=""
        What tells its process from all others.
    """

    limit: int
    taken: int
    quiet: float
    most: float
    n_threads: int = 1
    held: int = 0
    process: str = ""


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


def usage_of_workers(
    client: Client, addresses: Iterable[str] | None = None
) -> dict[str, Usage]:
    """Usage of workers by their last heartbeats.

    They may lack modules by then that a fit is going to load, and have memory that the
    allocator only has to give back.

    Parameters
    ----------
    client : distributed.Client
    addresses : iterable of str, optional
        By default all workers.

    Returns
    -------
    usage : dict of str to Usage
        By address; nothing where one of them has no limit.
    """
    workers = workers_of(client)
    chosen = dict.fromkeys(workers if addresses is None else addresses)
    known = {a: usage_of(a, workers[a]) for a in chosen if a in workers}
    return known if all(usage.limit for usage in known.values()) else {}


def usage_of(address: str, info: Mapping[str, Any]) -> Usage:
    """Usage of a worker by its last heartbeat, as its scheduler knows it.

    Parameters
    ----------
    address : str
    info : dict
        What the scheduler says of the worker.
    """
    metrics = info.get("metrics", {})
    spilled = metrics.get("spilled_bytes", {}).get("memory", 0)
    held = max(metrics.get("managed_bytes", 0) - spilled, 0)
    taken = max(metrics.get("memory", 0) - held, 0)
    spill, pause = (dask.config.get(f"{_MEMORY}{name}") for name in ("spill", "pause"))
    limit = int(info["memory_limit"] or 0)
    parts = _parts(spill, pause)
    return Usage(limit, taken, *parts, info["nthreads"], held, _process_at(address))


def measure_usage(
    client: Client, addresses: Iterable[str] | None = None, needed: Any = None
) -> dict[str, Usage]:
    """Usage of workers, by address, once they have loaded what a fit needs.

    Threads of the workers may all be busy meanwhile.

    Parameters
    ----------
    client : distributed.Client
    addresses : iterable of str, optional
        By default all workers.
    needed : object, default=None
        Is sent to them, which loads the modules that it comes from.

    Returns
    -------
    usage : dict of str to Usage
        By its last heartbeat for a worker that has not answered within
        ``dask-ma.launch.worker-timeout``; nothing where one of them has no limit.
    """
    known = usage_of_workers(client, addresses)
    timeout = _config.get_timeout("launch.worker-timeout")
    sent = pickle.dumps(needed)

    async def ask(address: str) -> Any:
        call = client.run(usage_here, sent, workers=[address])
        return (await asyncio.wait_for(call, timeout))[address]

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*map(ask, known), return_exceptions=True)

    answers = zip(known, client.sync(ask_all) if known else [], strict=True)
    return known | {a: found for a, found in answers if isinstance(found, Usage)}


async def usage_here(needed: bytes, dask_worker: Any) -> Usage:
    """Usage of the worker that this runs on."""
    rss = await asyncio.to_thread(_taken_with, needed)  # others are answered meanwhile
    manager, data = dask_worker.memory_manager, dask_worker.data
    # What is spilled takes no memory.
    fast = getattr(data, "fast", None)
    held = int(dask_worker.state.nbytes if fast is None else fast.total_weight)
    parts = _parts(manager.memory_spill_fraction, manager.memory_pause_fraction)
    limit, n_threads = int(manager.memory_limit or 0), dask_worker.state.nthreads
    process = _process_at(dask_worker.address, _process_with(os.getpid()))
    return Usage(limit, max(rss - held, 0), *parts, n_threads, held, process)


def usage_of_process(workers: Sequence[Usage]) -> Usage:
    """Usage of all workers of a process together.

    Dask leaves them alone as long as the whole process is small to each of them.

    Parameters
    ----------
    workers : sequence of Usage
        At least one.
    """
    limit, held = sum(w.limit for w in workers), sum(w.held for w in workers)
    return Usage(
        limit,
        max(max(w.taken + w.held for w in workers) - held, 0),
        min(w.quiet * w.limit for w in workers) / limit,
        min(w.most for w in workers),
        sum(w.n_threads for w in workers),
        held,
        workers[0].process,
    )


def by_process(known: Mapping[str, Usage]) -> dict[tuple[str, ...], Usage]:
    """Usage of each process, by the addresses of its workers.

    Parameters
    ----------
    known : dict of str to Usage
        Of workers, by address.
    """
    together: defaultdict[str, list[str]] = defaultdict(list)
    for address, usage in known.items():
        together[usage.process or address].append(address)
    return {
        tuple(places): usage_of_process([known[address] for address in places])
        for places in together.values()
    }


def _taken_with(needed: bytes) -> int:
    """Bytes in memory once an object has been loaded."""
    pickle.loads(needed)
    return memory_taken()


def _process_at(address: str, name: str = "") -> str:
    """Process of a worker; an address of a process itself tells which."""
    is_inside = address.startswith("inproc://")
    return address.rpartition("/")[0] if is_inside else name or address


@cache
def _process_with(number: int) -> str:
    """Name of this process, which has that number; those on other hosts may, too."""
    return f"{number}-{uuid.uuid4().hex}"


def _parts(spill: Any, pause: Any) -> tuple[float, float]:
    """Parts of the limit that a process may take, where False is for no such step."""
    terminate = dask.config.get(f"{_MEMORY}terminate")
    most = min(part for part in (pause, terminate, 1.0) if part is not False)
    return min(part for part in (spill, most) if part is not False), most
