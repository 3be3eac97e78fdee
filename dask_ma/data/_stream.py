"""Rows that workers cannot hold: when they go to local disks, and which way."""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import dask
import numpy as np
from dask.utils import format_bytes
from distributed import as_completed, futures_of

from dask_ma import _config
from dask_ma.data import _collections as cluster
from dask_ma.data._cache import remove_rows, store_rows, store_source
from dask_ma.data._inputs import InputInfo
from dask_ma.exceptions import FitFailedError, InsufficientMemoryError

if TYPE_CHECKING:
    from distributed import Client, Future

logger = logging.getLogger("dask_ma.data")

__all__ = ["Kept", "refuse_beyond_memory"]

# Less needs no look at the workers.
_LITTLE = 64 * 2**20
_MOST_BYTES = 16  # of an element: a CSR's, with its index
# Of the limits, what a fit may keep: Dask pauses a worker at 80 %.
_MOST = 0.7
# Before tasks that make more blocks: one that is written frees its memory.
_PRIORITY = 1000


class Kept(NamedTuple):
    """What a fit keeps in memory, whatever becomes of its rows.

    Attributes
    ----------
    times : float
        Bytes for each byte of the rows.
    what : str
        What that is, for messages.
    remedy : str
        What takes less, for messages: how ``take larger workers, or ...`` goes on.
    """

    times: float = 0.0
    what: str = ""
    remedy: str = ""


NOTHING_KEPT = Kept()


def persists() -> bool | None:
    """Whether blocks stay in memory; None where that depends on their size."""
    chosen = _config.get("data.persist")
    if chosen == "auto":
        return None
    if not isinstance(chosen, bool):
        raise ValueError(
            f"The configuration dask-ma.data.persist is {chosen!r}, expected true, "
            "false or 'auto'."
        )
    return chosen


def is_little(info: InputInfo) -> bool:
    """Whether metadata say that rows take little memory, whatever they are."""
    if info.n_rows is None or info.n_features is None:
        return False
    return _MOST_BYTES * info.n_rows * info.n_features < _LITTLE


@dataclass
class RowCache:
    """Files of the rows of one fit.

    Parameters
    ----------
    dtypes : sequence of dtypes
        Types that rows may have.
    copies : Kept
        What the fit keeps in memory.
    spills : bool, default=False
        Whether it can have these on disks itself.

    Attributes
    ----------
    is_used : bool
        Whether anything has been written.
    """

    dtypes: Sequence[Any]
    copies: Kept
    spills: bool = False
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    base: str | None = field(default_factory=lambda: _config.get("data.cache"))
    is_used: bool = False

    def store_here(self, X: Any) -> Any:
        """A dask.array as delayed blocks on the disk."""
        return self._stored(X.to_delayed().ravel())

    def _stored(self, blocks: Iterable[Any]) -> list[Any]:
        """Delayed blocks on the disk."""
        store = dask.delayed(store_rows, pure=False)
        arguments = self.run, self.base, self.dtypes
        name = f"dask_ma-rows-{self.run}"
        return [
            store(block, *arguments, dask_key_name=(name, number))
            for number, block in enumerate(blocks)
        ]

    def store_blocks(
        self,
        client: Client,
        blocks: Sequence[Future],
        pins: Sequence[str],
        priority: int = _PRIORITY,
    ) -> list[Future]:
        """Write blocks that are under way, each on its worker."""
        # Of futures, since their collection would be optimized together with what is
        # done here, and its keys be sent again with other tasks.
        stored = self._stored(blocks)
        places: defaultdict[Any, list[str]] = defaultdict(list)
        places.update(
            {block.key: [pin] for block, pin in zip(stored, pins, strict=True)}
        )
        with dask.annotate(workers=places.__getitem__, allow_other_workers=True):
            persisted = client.persist(stored, priority=priority)
        return [future for block in persisted for future in futures_of(block)]

    def store_futures(
        self, client: Client, blocks: Sequence[Future], places: Sequence[str]
    ) -> list[Future]:
        """Write blocks that are in the memory of workers, each on its worker."""
        arguments = self.run, self.base, self.dtypes
        calls = [
            (store_rows, (block, *arguments), place)
            for block, place in zip(blocks, places, strict=True)
        ]
        return cluster.run_together(client, calls, strict=False)

    def store_at(self, client: Client, source: Future, address: str) -> Future:
        """Write the rows of a (X, y, sample_weight) on another worker."""
        arguments = source, self.run, self.base, self.dtypes
        [stored] = cluster.run_together(
            client, [(store_source, arguments, address)], strict=False
        )
        return stored

    def remove(self, client: Client | None, addresses: Sequence[str]) -> None:
        """Remove the files, as far as their workers are there."""
        if client is None:
            remove_rows(self.run, self.base)
            return
        if client.status != "running":
            return
        try:
            there = client.sync(client.scheduler.ncores, workers=list(set(addresses)))
            arguments = self.run, self.base
            calls = [(remove_rows, arguments, worker) for worker in there]
            cluster.call_now(client, calls)
        except (FitFailedError, OSError) as error:
            # The fit has its result by then, and Dask removes folders of its workers.
            logger.warning("files of rows could not be removed: %s", error)


def exceed_memory(
    client: Client,
    blocks: Sequence[Future],
    addresses: Sequence[str],
    copies: Kept,
    *,
    spills: bool = False,
) -> bool:
    """Whether blocks under way are going to take too much of the workers' memory.

    Waits for the first few of them, whose mean size is taken for that of all.

    Parameters
    ----------
    client : distributed.Client
    blocks : sequence of Future
        Of X.
    addresses : sequence of str
        Worker of each rank.
    copies : Kept
        What the fit keeps in memory beside the rows.
    spills : bool, default=False
        Whether it can have these on disks itself.

    Raises
    ------
    InsufficientMemoryError
        If these alone are too much, and have to be in memory.
    """
    first = _wait_for_some(client, blocks, 2 * len(set(addresses)), addresses)
    sizes = client.nbytes([block.key for block in first], summary=False)
    expected = int(np.mean(list(sizes.values()))) * len(blocks) if sizes else 0
    if expected < _LITTLE:
        return False
    limits = _limits(client, addresses)
    if not limits:
        return False
    texts = format_bytes(expected), format_bytes(sum(limits))
    if not spills:
        _refuse_beyond(expected, copies, limits)
    part = float(_config.get("data.memory-fraction"))
    if (1 + copies.times) * expected <= part * sum(limits):
        return False
    logger.info(
        "about %s of rows for workers with %s of memory: they go to local disks "
        "(dask-ma.data.persist, dask-ma.data.memory-fraction)",
        *texts,
    )
    return True


def refuse_beyond_memory(n_bytes: int, copies: Kept) -> None:
    """Refuse rows that are too many for the workers, before anything is computed.

    Parameters
    ----------
    n_bytes : int
        Of the rows, by their metadata.
    copies : Kept
        What the fit keeps in memory.

    Raises
    ------
    InsufficientMemoryError
        If the workers of the current client cannot hold them.
    """
    client = cluster.current_client()
    if client is None or persists() is not None or n_bytes < _LITTLE:
        return
    _refuse_beyond(n_bytes, copies, _limits(client))


def _limits(client: Client, addresses: Iterable[str] | None = None) -> list[int]:
    """Bytes that each worker, or some, may use; none where one has no limit."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    chosen = set(workers if addresses is None else addresses)
    limits = [workers[a]["memory_limit"] for a in chosen if a in workers]
    return limits if all(limits) else []


def _refuse_beyond(expected: int, copies: Kept, limits: list[int]) -> None:
    """Refuse rows whose copies are too much for workers with some limits."""
    needed = copies.times * expected
    if not limits or needed <= _MOST * sum(limits):
        return
    raise InsufficientMemoryError(
        f"X has about {format_bytes(expected)}, of which the fit keeps "
        f"{copies.times:g} times as much in memory ({copies.what}): "
        f"{format_bytes(int(needed))}, but the workers have "
        f"{format_bytes(sum(limits))} together, of which it may take {_MOST:.0%}; take "
        f"more or larger workers, with {format_bytes(int(needed / _MOST))} together, "
        f"or {copies.remedy}"
    )


def _wait_for_some(
    client: Client, blocks: Sequence[Future], wanted: int, addresses: Sequence[str]
) -> list[Future]:
    """The first blocks to be finished; none once something has gone wrong."""
    poll = _config.get_timeout("launch.poll-interval")
    while True:
        if any(block.status not in ("pending", "finished") for block in blocks):
            return []
        finished = [block for block in blocks if block.status == "finished"]
        if len(finished) >= min(wanted, len(blocks)):
            return finished
        pending = [block for block in blocks if block.status == "pending"]
        try:
            for _ in as_completed(pending, loop=client.loop, timeout=poll):
                break
        except TimeoutError:
            cluster.check_workers(client, addresses)
