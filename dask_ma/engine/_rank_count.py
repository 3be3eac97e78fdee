"""The number of ranks of a fit that may have all threads: as many as pay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from distributed import Client, get_worker

from dask_ma import _config
from dask_ma.data import InputSize, Narrow, count_classes, size_of_input
from dask_ma.engine._client import place_ranks, running_workers
from dask_ma.engine._job import Job

Workers = dict[str, dict[str, Any]]

# Of a collective operation on little data, for each doubling of the ranks: mostly of
# the threads at both ends that have to be woken.
_SECONDS_OF_EXCHANGE = 1.5e-3

# Of the memory of workers, what rows may take that move to fewer of them.
_MOST_MEMORY = 0.25

_turns = itertools.count()  # of fits that this process has started


def choose_ranks(
    client: Client, job: Job, workers: Workers, size: InputSize | None = None
) -> tuple[int | None, Workers]:
    """How many ranks a fit is to have, and on which of the workers.

    Where more ranks would make a fit slower, its rows go to fewer of them: to those
    that have most of the rows already. All threads carry a rank where the user has
    asked for a number of them, nobody knows what they bring or, so far, how large the
    rows are, or the rows are larger than ``dask-ma.data.moved-rows``. Where rows would
    take more than a quarter of the memory of the workers with ranks, there are more of
    these, as long as there are others.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    job : Job
        What is to be fitted.
    workers : dict
        What the scheduler says of each worker.
    size : InputSize, default=None
        Of the rows, if it is known by now; None looks whether anybody knows it.

    Returns
    -------
    n_ranks : int or None
        None for one per thread of the workers.
    workers : dict
        Those among which they may be placed.
    """
    if job.n_ranks is not None or job.worthwhile_ranks is None:
        return job.n_ranks, workers
    threads = running_workers(client, allow_none=True, workers=workers)
    limit, n_threads = _config.get_bytes("data.moved-rows"), sum(threads.values())
    if not limit or n_threads < 2:
        return None, workers
    size = size or size_of_input(job.data[0], job.info, client)
    if size is None or size.nbytes > limit:
        return None, workers
    if job.is_labelled:
        size = size._replace(n_classes=count_classes(job.data[1]))
    n_ranks = job.worthwhile_ranks(size, n_threads)
    order = _in_turn(list(threads), n_ranks)
    # The sort is stable, so that of equal ones the first come first.
    order.sort(key=lambda address: -size.held.get(address, 0))
    nbytes = size.nbytes * (1 + job.copies.times)
    while n_ranks < n_threads:
        chosen = {address: workers[address] for address in order[:n_ranks]}
        # More ranks on the same workers would have no more memory.
        if len(chosen) == len(order) or _have_room(chosen, nbytes):
            return n_ranks, chosen
        n_ranks *= 2
    return None, workers


def narrowing(client: Client, job: Job, workers: Workers) -> Narrow:
    """What chooses fewer workers where blocks turn out to be few and small.

    Parameters
    ----------
    client, job, workers
        As in :func:`choose_ranks`.

    Returns
    -------
    narrow : callable
        Given an :class:`~dask_ma.data.InputSize`: the worker of each rank; None if all
        have one.
    """

    def narrow(size: InputSize) -> list[str] | None:
        n_ranks, chosen = choose_ranks(client, job, workers, size)
        if n_ranks is None:
            return None
        return place_ranks(client, n_ranks, size.n_rows, chosen)

    return narrow


def _have_room(workers: Workers, nbytes: float) -> bool:
    """Whether so many bytes are a small part of the memory of some workers."""
    limits = [int(info.get("memory_limit") or 0) for info in workers.values()]
    return not all(limits) or nbytes <= _MOST_MEMORY * sum(limits)


def _in_turn(addresses: list[str], n_ranks: int) -> list[str]:
    """Workers in an order in which not all fits of a search begin with the same."""
    try:
        own = get_worker().address  # where a task fits
        place = addresses.index(own)
    except ValueError:
        place = next(_turns) * n_ranks % len(addresses)
    return addresses[place:] + addresses[:place]


def worthwhile_ranks(
    size: InputSize,
    n_threads: int,
    *,
    shared: float,
    exchanges: float,
    nbytes: float = 0.0,
) -> int:
    """The number of ranks that is done soonest, where exchanges are all that is lost.

    Parameters
    ----------
    size : InputSize
        Of the rows.
    n_threads : int
        Ranks that there may be.
    shared : float
        Seconds of one rank alone for what several share among them.
    exchanges : float
        Collective operations of a fit.
    nbytes : float, default=0
        Bytes of what these add up.

    Returns
    -------
    n_ranks : int
        `n_threads`, or a power of two below.
    """
    bandwidth = _config.get_bytes("comm.link-bandwidth")

    def seconds(n_ranks: int) -> float:
        sent = nbytes * (n_ranks - 1) / n_ranks + size.moved(n_ranks)
        waits = exchanges * _SECONDS_OF_EXCHANGE * math.log2(n_ranks)
        return shared / n_ranks + waits + sent / bandwidth

    return quickest_of(n_threads, seconds)


def quickest_of(most: int, seconds: Callable[[int], float]) -> int:
    """The number of ranks that is done soonest: `most`, or a power of two below.

    Parameters
    ----------
    most : int
        Ranks that there may be.
    seconds : callable
        Given a number of ranks, what a fit takes. Of equal ones the least is chosen.
    """
    choices = [2**k for k in range(most.bit_length()) if 2**k < most]
    return min([*choices, most], key=seconds)
