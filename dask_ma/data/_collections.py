"""Everything that talks to Dask about collections: blocks, places, lengths.

Private parts of Dask used here; ``_standstill``, ``_usage`` and ``_workers`` say which
they use, and no other module of ``dask_ma.data`` does:

* ``dask._task_spec.Alias`` and ``DataNode``: a persisted DataFrame refers to its
  futures through aliases, and a locally persisted collection wraps its blocks; no
  public function follows either.
* ``GraphNode`` of that module: ``dask.core.get_dependencies`` is for tasks in another
  format, and leaves out keys that the graph lacks.
* ``Client.scheduler``: ``ncores`` for some addresses only, since the public
  ``scheduler_info`` describes the whole cluster, by default a few workers of it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any

import dask
import numpy as np
from dask._task_spec import Alias, DataNode, GraphNode
from dask.core import flatten, get_dependencies
from distributed import Client, Future, Scheduler, as_completed

from dask_ma import _config
from dask_ma.data._blocks import join_rows
from dask_ma.data._placement import Segment, cut_at
from dask_ma.data._standstill import Standstill
from dask_ma.exceptions import CommTimeoutError, NoWorkersError, PeerLostError

__all__: list[str] = []

_UNDER_WAY = 1 << 25  # bytes of the objects that are being sent at a time
_SHORT_WAY = 1.0  # seconds for a worker to take objects that do not pass the scheduler

_LOCAL_SCHEDULERS = {
    "threads",
    "threading",
    "sync",
    "synchronous",
    "single-threaded",
    "processes",
    "multiprocessing",
}


#: Beginning of the names of arrays whose blocks are taken from tasks that give several.
COLUMN = "dask_ma-column"


# -- Looking at graphs ---------------------------------------------------------------


def block_keys(collection: Any) -> list[Any]:
    """Keys of the row blocks of a collection, in order."""
    return list(flatten(collection.__dask_keys__()))


def _follow(graph: Mapping[Any, Any], key: Any) -> Any:
    """Value of a key, through aliases and wrappers."""
    value = graph[key]
    while isinstance(value, Alias):
        value = graph[value.target]
    return value.value if isinstance(value, DataNode) else value


def futures_of_blocks(collection: Any) -> list[Future] | None:
    """Futures of the blocks of a persisted collection, None if it is not persisted.

    None, too, if it has been pickled since, as with the arguments of a task: such
    futures belong to no client and know nothing of their blocks, until a client is sent
    the collection as a graph.
    """
    graph = collection.__dask_graph__()
    blocks = [_follow(graph, key) for key in block_keys(collection)]
    are_known = all(
        isinstance(block, Future) and block.client is not None for block in blocks
    )
    return blocks if are_known else None


def rests_on_futures(collection: Any) -> bool:
    """Whether any part of a collection has been sent to a cluster already."""
    return any(isinstance(v, Future) for v in collection.__dask_graph__().values())


def dependencies_of(graph: Mapping[Any, Any], key: Any) -> Collection[Any]:
    """Keys that a task refers to, also those that the graph lacks."""
    task = graph[key]
    is_node = isinstance(task, GraphNode)
    return task.dependencies if is_node else get_dependencies(graph, key)


# -- Computing -----------------------------------------------------------------------


def compute_locally(arrays: Sequence[Any]) -> list[list[Any]]:
    """Compute arrays in this process; the blocks of each stay separate."""
    scheduler = dask.config.get("scheduler", None)
    if not callable(scheduler) and scheduler not in _LOCAL_SCHEDULERS:
        scheduler = "threads"
    arrays = dask.persist(*arrays, scheduler=scheduler)
    return [
        [_follow(graph, key) for key in block_keys(array)]
        for array in arrays
        for graph in [array.__dask_graph__()]
    ]


def start_blocks(
    client: Client,
    collections: Sequence[Any],
    pins: Sequence[str] | None,
    owned: list[Future],
) -> list[list[Future]]:
    """Futures of the blocks of each collection, computed where they are not yet.

    Parameters
    ----------
    client : distributed.Client
    collections : sequence of dask.array, or of persisted dask.dataframe
    pins : sequence of str or None
        Worker that computes block i of every collection; None for any.
    owned : list of Future
        Gets the futures that were not the user's before.

    Returns
    -------
    list of list of Future
        One list per collection.
    """
    found = [futures_of_blocks(collection) for collection in collections]
    lazy = [c for c, blocks in zip(collections, found, strict=True) if not blocks]
    if lazy:
        persisted = _persist(client, lazy, pins)
        owned += [future for blocks in persisted for future in blocks]
        started = iter(persisted)
        found = [blocks or next(started) for blocks in found]
    return found  # type: ignore[return-value]


def _persist(
    client: Client, arrays: list[Any], pins: Sequence[str] | None
) -> list[list[Future]]:
    """Persist arrays in one graph, each block on its worker."""
    if pins is None:
        persisted = client.persist(arrays)
    else:
        places: defaultdict[Any, list[str]] = defaultdict(list)
        for array in arrays:
            keys = block_keys(array)
            if len(keys) != len(pins):
                continue  # cut to the blocks of X later
            places.update({k: [p] for k, p in zip(keys, pins, strict=True)})
            if array.name.startswith(COLUMN):
                graph = array.__dask_graph__()
                for key, pin in zip(keys, pins, strict=True):
                    places.update({k: [pin] for k in dependencies_of(graph, key)})
        # The scheduler calls this for every key of the graph and need not have this
        # package installed: a method of a standard type can always be sent. A key that
        # is no block of ours gets an empty list, that is any worker.
        # Where the worker has gone, another one may compute the block again.
        with dask.annotate(workers=places.__getitem__, allow_other_workers=True):
            persisted = client.persist(arrays)
    return [futures_of_blocks(array) for array in persisted]  # type: ignore[misc]


def wait_for_blocks(
    client: Client, futures: Sequence[Future], addresses: Sequence[str]
) -> None:
    """Wait until blocks are in memory, or raise what stopped them.

    Parameters
    ----------
    client : distributed.Client
    futures : sequence of Future
    addresses : sequence of str
        Workers that must stay alive meanwhile.

    Raises
    ------
    PeerLostError
        If one of the workers has gone, or a block was lost with another.
    CommTimeoutError
        If nobody works on anything for too long.
    Exception
        Whatever the computation of a block raised.
    """
    poll = _config.get_timeout("launch.poll-interval")
    standstill = Standstill(client)
    # A block that was lost with a worker is computed again where its graph is known.
    waiting = ("pending", "lost")
    pending = [future for future in futures if future.status in waiting]
    while pending:
        try:
            # `distributed.wait` would take the default client.
            for _ in as_completed(pending, loop=client.loop, timeout=poll):
                standstill.restart()
        except TimeoutError:
            check_workers(client, addresses)
            standstill.check([f for f in pending if f.status in waiting])
        left = [future for future in pending if future.status in waiting]
        if len(left) < len(pending):
            standstill.restart()
        pending = left
    for future in futures:
        if future.status == "error":
            future.result()
        if future.status != "finished":
            raise PeerLostError(
                f"The block with key {future.key!r} is {future.status}: its data were "
                "released or its worker has gone. Build or persist the input again."
            )


def check_workers(client: Client, addresses: Sequence[str]) -> None:
    """Raise if a worker that is to carry a rank has gone."""
    wanted = list(dict.fromkeys(addresses))
    alive = client.sync(client.scheduler.ncores, workers=wanted)
    gone = [address for address in wanted if address not in alive]
    if gone:
        raise PeerLostError(
            f"Workers {', '.join(gone)} have gone while the input was being placed. "
            "Call fit again to use the workers that are left."
        )


def release(futures: Sequence[Future]) -> None:
    """Give up futures at once, whoever still refers to them.

    Needed after an error. The exception refers, by its traceback, to the frames that
    hold the futures; the failed task's future, and with workers in this process the
    scheduler too, hold the exception. Nothing in that circle would ever be let go.
    """
    for future in futures:
        future.release()


def call_now(
    client: Client,
    calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...], str]],
    *,
    priority: int = 0,
) -> list[Any]:
    """Results of small calls on some workers, which nothing is left of.

    Parameters
    ----------
    client : distributed.Client
    calls : sequence of (callable, tuple, str)
        Function, arguments and worker.
    priority : int, default=0
        Above 0 for calls that other tasks wait for.

    Raises
    ------
    PeerLostError
        If one of the workers has gone.
    """
    # A paused worker would never take a call that is for it alone.
    tasks = run_together(client, calls, strict=False, priority=priority)
    timeout = _config.get_timeout("launch.abort-timeout")

    async def fetch() -> list[Any]:
        return await asyncio.wait_for(client.gather(tasks, asynchronous=True), timeout)

    try:
        while True:
            wait_for_blocks(client, tasks, [worker for *_, worker in calls])
            try:
                results: list[Any] = client.sync(fetch)
            except TimeoutError:
                continue  # lost since with a worker, perhaps
            return results
    finally:
        release(tasks)


# -- Places and sizes ----------------------------------------------------------------


def holders_of(client: Client, futures: Sequence[Future]) -> list[list[str]]:
    """Workers that hold each future, in one round trip to the scheduler."""
    places = client.who_has(list(futures))
    return [sorted(places.get(future.key, ())) for future in futures]


def run_together(
    client: Client,
    calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...], str]],
    *,
    strict: bool = True,
    priority: int = 0,
) -> list[Future]:
    """Submit calls, each pinned to a worker, without looking at their data.

    Unless `strict`, another worker may take a call over if its worker goes.
    """
    return [
        client.submit(
            function,
            *args,
            workers=[worker],
            allow_other_workers=not strict,
            pure=False,
            priority=priority,
        )
        for function, args, worker in calls
    ]


def lengths_of(
    client: Client, blocks: Sequence[Future], holders: Sequence[Sequence[str]]
) -> list[int]:
    """Rows of each block, counted by one task per worker."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for index, held_by in enumerate(holders):
        groups[held_by[0]].append(index)
    calls = [
        (count_rows, ([blocks[i] for i in group],), worker)
        for worker, group in groups.items()
    ]
    lengths = [0] * len(blocks)
    for group, counted in zip(groups.values(), call_now(client, calls), strict=True):
        for index, rows in zip(group, counted, strict=True):
            lengths[index] = rows
    return lengths


def cut_like(
    blocks: Sequence[Any], lengths: Sequence[int], wanted: Sequence[int]
) -> list[tuple[list[Any], list[tuple[int, int]]]]:
    """Arguments of `join_rows` that give blocks of other lengths, of as many rows."""
    whole = [Segment(number, 0, rows) for number, rows in enumerate(lengths) if rows]
    return [
        ([blocks[s.block] for s in part], [(s.start, s.stop) for s in part])
        for part in cut_at(whole, np.cumsum(wanted).tolist())
    ]


def cut_on_workers(
    client: Client,
    blocks: Sequence[Future],
    lengths: Sequence[int],
    wanted: Sequence[int],
    holders: Sequence[Sequence[str]],
) -> list[Future]:
    """Blocks of other lengths, each on a worker that holds its block of X."""
    cuts = cut_like(blocks, lengths, wanted)
    places = [held_by[0] for held_by in holders]
    calls = [(join_rows, cut, at) for cut, at in zip(cuts, places, strict=True)]
    return run_together(client, calls, strict=False)


def count_rows(blocks: list[Any]) -> list[int]:
    """Rows of some blocks (runs on a worker)."""
    return [int(np.shape(b)[0]) if np.ndim(b) else 0 for b in blocks]


# -- Sending -------------------------------------------------------------------------


def scatter_each(
    client: Client,
    make: Callable[[int], Any],
    addresses: Sequence[str],
    *,
    nbytes: int = 0,
) -> list[Future]:
    """Send each worker an object, once; together as many as fit into 32 MB.

    Dask sends what it scatters by way of the scheduler, and a scheduler in this process
    would hold each object a second time, as a message: large ones go without it.

    Parameters
    ----------
    client : distributed.Client
    make : callable
        ``make(place)`` gives the object for an address. Not hashed and never part of a
        graph.
    addresses : sequence of str
        Worker that receives each object.
    nbytes : int, default=0
        Of all objects together.

    Returns
    -------
    list of Future
    """

    shortens = nbytes > _UNDER_WAY and _has_scheduler(client)

    async def send(turns: asyncio.Semaphore, place: int, address: str) -> Future:
        async with turns:
            # Cut off by Ctrl-C, it would leave an object that no future stands for.
            return await asyncio.shield(_send(client, make(place), address, shortens))

    async def send_all() -> list[Future]:
        at_once = _UNDER_WAY * len(addresses) // max(nbytes, 1)
        turns = asyncio.Semaphore(max(at_once, 1))
        return list(
            await asyncio.gather(*(send(turns, *pair) for pair in enumerate(addresses)))
        )

    try:
        # In a context of its own: inside a task, scatter would otherwise find the
        # task's worker and leave everything there, whatever `workers` says.
        return Context().run(client.sync, send_all)
    except KeyError as error:
        raise PeerLostError(
            f"Worker {error.args[0]} has gone while data were being sent to it. Call "
            "fit again to use the workers that are left."
        ) from error
    except TimeoutError as error:
        raise CommTimeoutError(
            f"data could not be sent to {', '.join(sorted(set(addresses)))}: {error}; "
            "is one of these workers paused?"
        ) from error


async def _send(client: Client, item: Any, address: str, shortens: bool) -> Future:
    """Send one object, past the scheduler where a short way is wanted and open."""
    send = partial(
        client.scatter, [item], workers=[address], hash=False, asynchronous=True
    )
    if shortens:
        # The scheduler knows best what is wrong with a worker that does not answer.
        with suppress(TimeoutError, OSError):
            [future] = await send(direct=True, timeout=_SHORT_WAY)
            return future
    [future] = await send()
    return future


def _has_scheduler(client: Client) -> bool:
    """Whether the scheduler is in this process, which so reaches what it reaches."""
    return isinstance(getattr(client.cluster, "scheduler", None), Scheduler)


def scatter_one(client: Client, item: Any) -> Future:
    """Send an object to some worker, from which the others fetch it."""
    [future] = client.scatter([item], hash=False)
    return future


def current_client() -> Client | None:
    """The client that Dask would use here, None without one."""
    try:
        return Client.current(allow_global=True)
    except ValueError:
        return None


def check_client(client: Client) -> None:
    """Raise if the client cannot reach a scheduler any more."""
    if client.status != "running":
        raise NoWorkersError(
            f"The client's status is {client.status!r}, expected 'running'. Open a new "
            "distributed.Client, or close this one wholly to run in this process."
        )
