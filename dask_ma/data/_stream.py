"""Rows that workers cannot hold: when they go to local disks, and which way."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
from dask.utils import format_bytes
from distributed import as_completed, futures_of

from dask_ma import _config
from dask_ma.data import _collections as cluster
from dask_ma.data._cache import remove_rows, store_rows, store_source
from dask_ma.data._demand import (
    Demand,
    Foresight,
    Kept,
    Share,
    lacks,
    refuse_beyond,
    shares_of,
)
from dask_ma.data._inputs import InputInfo, is_dask_collection
from dask_ma.data._standstill import Standstill
from dask_ma.data._usage import (
    PART,
    Usage,
    measure_usage,
    usage_of_workers,
)
from dask_ma.data._workers import workers_of
from dask_ma.exceptions import FitFailedError

if TYPE_CHECKING:
    from distributed import Client, Future

logger = logging.getLogger("dask_ma.data")

__all__ = [
    "Kept",
    "join_limit",
    "may_spare",
    "part_of_workers",
    "refuse_beyond_memory",
]

# Less needs no look at the workers.
_LITTLE = 64 * 2**20
_MOST_BYTES = 16  # of an element: a CSR's, with its index
_INDEX_BYTES = 4  # of an element of sparse rows, beside its value
# Bytes of a block from which the first one of each worker tells enough.
_LARGE = 2**24
# Before tasks that make more blocks: one that is written frees its memory.
_PRIORITY = 1000


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


def may_spare(X: Any, info: InputInfo) -> bool:
    """Whether rows that are in memory by default can be had on disks by a restart.

    Parameters
    ----------
    X : array-like or Dask collection
    info : InputInfo
        Of `X`.
    """
    return is_dask_collection(X) and persists() is None and not is_little(info)


def part_of_workers(
    n_bytes: int, part: float, info: InputInfo, *, is_per_thread: bool = False
) -> int:
    """What is configured, or a part of what each worker may take if that is less.

    Parameters
    ----------
    n_bytes : int
        What is configured.
    part : float
        Of the limit of the smallest worker of the current client.
    info : InputInfo
        Of the rows: for little ones nobody is asked.
    is_per_thread : bool, default=False
        Whether each thread of a worker takes so much.

    Returns
    -------
    n_bytes : int
    """
    client = cluster.current_client()
    if client is None or client.status != "running" or is_little(info):
        return n_bytes
    limits = [
        int(part * each["memory_limit"] / (each["nthreads"] if is_per_thread else 1))
        for each in workers_of(client).values()
        if each["memory_limit"]
    ]
    return min([n_bytes, *limits])


def join_limit(info: InputInfo) -> int:
    """Bytes up to which each rank joins its blocks: the same on all workers.

    What steps are made from follows from it, and must not change where a rank moves.

    Parameters
    ----------
    info : InputInfo
        Of the rows.

    Returns
    -------
    n_bytes : int
        ``dask-ma.data.join-limit``, or less where workers are small.
    """
    configured = _config.get_bytes("data.join-limit")
    chosen = part_of_workers(configured, PART, info, is_per_thread=True)
    if chosen < configured:
        logger.info(
            "blocks are joined up to %s, not %s (dask-ma.data.join-limit), since all "
            "threads of a worker are to take no more than %.0f %% of its memory for it",
            format_bytes(chosen),
            format_bytes(configured),
            100 * PART,
        )
    return chosen


@dataclass
class RowCache:
    """Files of the rows of one fit.

    Parameters
    ----------
    dtypes : sequence of dtypes
        Types that rows may have.
    copies : Kept
        What the fit keeps in memory.
    is_certain : bool, default=False
        Whether rows go there whatever they take.
    needed : object, default=None
        Comes from modules that the fit loads on the workers.

    Attributes
    ----------
    is_used : bool
        Whether anything has been written.
    """

    dtypes: Sequence[Any]
    copies: Kept
    is_certain: bool = False
    needed: Any = None
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    base: str | None = field(default_factory=lambda: _config.get("data.cache"))
    is_used: bool = False

    @property
    def asks(self) -> bool:
        """Whether what workers have in memory decides anything."""
        kept = self.copies
        return not self.is_certain or kept.is_certain or kept.foresight is not None

    def growth(self, dtype: np.dtype, beside: int = 0) -> float:
        """Bytes that rows in memory take, for each byte of them as they come.

        `beside` are those of an index, which each value has beside it.
        """
        allowed = [np.dtype(each) for each in self.dtypes]
        if dtype in allowed or not dtype.itemsize:
            return 1.0
        # Both are there.
        return 1.0 + (allowed[0].itemsize + beside) / (dtype.itemsize + beside)

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


def usage_before(
    client: Client, addresses: Sequence[str], cache: RowCache | None
) -> dict[str, Usage]:
    """Usage of workers before they make blocks, which would count twice later.

    Parameters
    ----------
    client : distributed.Client
    addresses : sequence of str
        Worker of each rank.
    cache : RowCache or None
        Where rows may go.

    Returns
    -------
    usage : dict of str to Usage
        Nothing where that decides nothing.
    """
    if cache is None or not cache.asks:
        return {}
    return measure_usage(client, addresses, cache.needed)


def go_to_disks(
    client: Client,
    blocks: Sequence[Future],
    info: InputInfo,
    addresses: Sequence[str],
    cache: RowCache,
    pins: Sequence[str] | None = None,
    known: Mapping[str, Usage] | None = None,
) -> bool:
    """Whether rows go to disks, as they are to, or would take too much memory.

    Waits for the first few blocks, whose mean size is taken for that of all, unless
    nothing follows from it.

    Parameters
    ----------
    client : distributed.Client
    blocks : sequence of Future
        Of X, under way.
    info : InputInfo
        What metadata say of X.
    addresses : sequence of str
        Worker of each rank.
    cache : RowCache
        Where the rows would go.
    pins : sequence of str, optional
        Worker that makes each block; by default they are not the fit's, which waits for
        all of them: what they take meanwhile is not its choice.
    known : dict of str to Usage, optional
        Of the workers, before they began to make the blocks. By default it is measured.

    Raises
    ------
    InsufficientMemoryError
        If what the fit keeps in memory is too much, whatever becomes of the rows.
    """
    if not cache.asks:
        return cache.is_certain
    if pins is None:
        cluster.wait_for_blocks(client, blocks, addresses)
    first, sizes = _first_blocks(client, blocks, addresses)
    n_bytes = int(np.mean(sizes)) * len(blocks) if sizes else 0
    if n_bytes < _LITTLE:
        return cache.is_certain
    if known is None:
        known = measure_usage(client, addresses, cache.needed)
    if not known:
        return cache.is_certain
    growth = cache.growth(info.dtype, _index_bytes(blocks))
    demand = Demand(n_bytes, max(sizes), growth, cache.copies)
    if cache.copies.is_certain:
        refuse_beyond(int(demand.cast), cache.copies, known)
    unmade = Counter(
        pin
        for block, pin in zip(blocks, pins or (), strict=pins is not None)
        if block.status != "finished"
    )
    ranks = Counter(addresses)
    reason = "" if cache.is_certain else demand.excess(known, ranks, unmade)
    if cache.copies.foresight is not None:
        stay = not reason and not cache.is_certain
        shares = shares_of(int(growth * n_bytes) if stay else 0, known, ranks)
        foresight = cache.copies.foresight
        _foresee(client, foresight, first, info.n_rows, len(blocks), shares)
    if reason:
        logger.info(
            "about %s of rows, %s: they go to local disks (dask-ma.data.persist, "
            "dask-ma.data.memory-fraction)",
            format_bytes(n_bytes),
            reason,
        )
    return cache.is_certain or bool(reason)


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
    if client is None or persists() is True or n_bytes < _LITTLE:
        return
    if lacks(n_bytes, copies, usage_of_workers(client)):
        # What a heartbeat says may be out of date.
        refuse_beyond(n_bytes, copies, measure_usage(client))


def _index_bytes(blocks: Sequence[Future]) -> int:
    """Bytes of an index beside each value, as far as blocks are known to be sparse."""
    kinds = {block.type for block in blocks if block.status == "finished"}
    modules = [getattr(kind, "__module__", "").split(".") for kind in kinds]
    return _INDEX_BYTES * any("sparse" in names for names in modules)


def _foresee(
    client: Client,
    foresight: Foresight,
    first: Sequence[Future],
    n_rows: int | None,
    n_blocks: int,
    shares: Sequence[Share],
) -> None:
    """Refuse what cannot be done by the first blocks, if these can be counted."""
    places = zip(first, cluster.holders_of(client, first), strict=True)
    calls = [(_counted, (block, foresight.count), at[0]) for block, at in places if at]
    found = cluster.call_now(client, calls, priority=_PRIORITY)
    known = [each for each in found if each is not None]
    n_known = sum(rows for rows, _ in known)
    if not n_known:
        return
    if n_rows is None:
        n_rows = n_known * n_blocks // len(known)
    foresight.check(n_rows, sum(each for _, each in known) * n_rows // n_known, shares)


def _counted(X: Any, count: Callable[[Any], int]) -> tuple[int, int] | None:
    """Rows of a block and their count; None if it is not what it should be."""
    try:
        return int(X.shape[0]), int(count(X))
    except Exception:  # the fit says what is wrong, with the block's number
        return None


def _first_blocks(
    client: Client, blocks: Sequence[Future], addresses: Sequence[str]
) -> tuple[list[Future], list[int]]:
    """The first blocks to be finished, fewer of large ones, and their bytes."""
    n_workers, sizes = len(set(addresses)), [0]
    first: list[Future] = []
    for wanted in (n_workers, 2 * n_workers):
        if max(sizes, default=_LARGE) < _LARGE:
            first = _wait_for_some(client, blocks, wanted, addresses)
            sizes = _sizes(client, first)
    return first[: 2 * n_workers], sizes


def _sizes(client: Client, blocks: Sequence[Future]) -> list[int]:
    """Bytes of finished blocks, or none if they have gone again."""
    # Where a fit has just given up the same blocks, news of them may still be under
    # way: the scheduler does not know them yet, or any more.
    keys = [block.key for block in blocks]
    deadline = time.monotonic() + _config.get_timeout("launch.start-timeout")
    while True:
        try:
            return list(client.nbytes(keys, summary=False).values())
        except KeyError:
            if time.monotonic() > deadline:
                return []
        time.sleep(_config.get_timeout("launch.poll-interval"))


def _wait_for_some(
    client: Client, blocks: Sequence[Future], wanted: int, addresses: Sequence[str]
) -> list[Future]:
    """The first blocks to be finished; none once something has gone wrong."""
    poll = _config.get_timeout("launch.poll-interval")
    standstill, n_finished = Standstill(client), 0
    while True:
        states = [block.status for block in blocks]
        if "error" in states or "cancelled" in states:
            return []
        finished = [
            b for b, state in zip(blocks, states, strict=True) if state == "finished"
        ]
        if len(finished) >= min(wanted, len(blocks)):
            return finished
        if len(finished) > n_finished:
            standstill.restart()
        n_finished = len(finished)
        pending = [
            b for b, state in zip(blocks, states, strict=True) if state != "finished"
        ]
        try:
            next(as_completed(pending, loop=client.loop, timeout=poll))
        except TimeoutError:
            cluster.check_workers(client, addresses)
            standstill.check(pending)
