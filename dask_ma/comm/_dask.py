"""Ranks on the workers of a Dask cluster."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

import numpy as np

from dask_ma import _config
from dask_ma.comm._group import Group, frozen_view
from dask_ma.comm._lines import Message, Route, line_of
from dask_ma.comm._mailbox import Mailbox
from dask_ma.comm._packing import Header, as_message, message_nbytes
from dask_ma.comm._plugin import registry
from dask_ma.comm._topology import Layout
from dask_ma.comm._trace import SEND
from dask_ma.exceptions import CommTimeoutError, FitFailedError, PeerLostError

if TYPE_CHECKING:
    from distributed import Worker


def node_of(address: str) -> str:
    """Name of the process behind a worker address.

    Workers of one process have addresses ``inproc://<host>/<pid>/<number>``.
    """
    return address.rpartition("/")[0] if address.startswith("inproc://") else address


class Pace:
    """Keeps a worker from sending faster than it may.

    Parameters
    ----------
    bytes_per_second : float
        Of the arrays in all messages of the worker, above 0.
    """

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def wait(self, nbytes: int) -> None:
        """Wait as long as a message of some bytes takes, after those before it."""
        now = monotonic()
        self._free_at = max(now, self._free_at) + nbytes / self._rate
        await asyncio.sleep(self._free_at - now)


_ADDRESSES = "addresses"  # label of the messages by which ranks hear of all others
_MOST_UNDER_WAY = 4096  # messages of a rank, however short
_LOOK = 0.5  # seconds between looks whether a run has ended that waits for a delivery

_paces: WeakKeyDictionary[Worker, tuple[int, Pace]] = WeakKeyDictionary()


def pace_of(worker: Worker) -> Pace | None:
    """The pace of a worker, shared by its ranks; None if it may send at any rate."""
    rate = _config.get_bytes("comm.max-bandwidth")
    if rate == 0:
        return None
    known = _paces.get(worker)
    if known is None or known[0] != rate:
        known = _paces[worker] = rate, Pace(rate)
    return known[1]


def _clock_of_loop(worker: Worker) -> int:
    """Number of the clock that counts a worker's event loop."""

    async def find() -> int:
        return time.pthread_getcpuclockid(threading.get_ident())

    loop = worker.loop.asyncio_loop
    timeout = _config.get_timeout("comm.timeout")
    return asyncio.run_coroutine_threadsafe(find(), loop).result(timeout)


def _hear(run_id: str, rank: int, mailbox: Mailbox) -> list[str]:
    """Addresses of all ranks, from the rank above this one in a binary tree."""
    try:
        addresses: list[str] = mailbox.get(
            parent_of(rank), _ADDRESSES, _config.get_timeout("comm.timeout")
        )
    except BaseException:
        registry.close(run_id, rank)  # nobody else will
        raise
    return addresses


def parent_of(rank: int) -> int:
    """Rank right above one in a binary tree over all ranks."""
    return (rank - 1) // 2


def children_of(rank: int, size: int) -> list[int]:
    """Ranks right below a rank in a binary tree over all ranks, the lowest first."""
    # A rank of a binomial tree would send a list of all ranks, as long as they are
    # many, to as many others as the logarithm of their number.
    return list(range(2 * rank + 1, min(2 * rank + 3, size)))


class DaskGroup(Group):
    """A rank on a Dask worker; messages travel over Dask's own connections.

    Parameters
    ----------
    run_id : str
        Name of the run; a message of another run is refused.
    rank : int
        This rank.
    addresses : sequence of str
        Address of the worker of each rank.
    worker : Worker
        The worker that this rank runs on.
    hears : bool, default=False
        Whether rank 0 alone is given the addresses, and the others hear them from the
        rank above them, which calls :meth:`tell_addresses`.
    """

    def __init__(
        self,
        run_id: str,
        rank: int,
        addresses: Sequence[str],
        worker: Worker,
        *,
        hears: bool = False,
    ) -> None:
        mailbox = registry.open(run_id, rank, worker.address)
        if hears and rank:
            addresses = _hear(run_id, rank, mailbox)
        layout = Layout.from_nodes([node_of(address) for address in addresses])
        super().__init__(rank, layout, mailbox)
        self.run_id = run_id
        self._addresses = tuple(addresses)
        self._worker = worker
        self._under_way: deque[Message] = deque()
        self._bytes_under_way = 0
        self._routes: dict[int, Route] = {}
        self._push_buffer = _config.get_bytes("comm.push-buffer")
        self._pace = pace_of(worker)
        self._carrier_clock: int | None = None

    @property
    def n_beside(self) -> int:
        """Ranks on the worker of this one, itself included."""
        return self._addresses.count(self._addresses[self.rank])

    # Thread of the rank ------------------------------------------------------------

    def tell_addresses(self) -> None:
        """Tell the ranks right below this one where all ranks are."""
        for dest in children_of(self.rank, self.size):
            self.push(list(self._addresses), dest, _ADDRESSES, copy=False)

    def for_thread(self) -> Self:
        """The same rank for a second thread; see :meth:`Group.for_thread`."""
        second = super().for_thread()
        second._under_way = deque()
        second._bytes_under_way = 0
        return second

    def flush(self) -> None:
        """Wait until everything pushed so far lies in the mailboxes of its receivers.

        Raises
        ------
        PeerLostError
            If the worker of a receiver has gone.
        CommTimeoutError
            If it takes longer than ``dask-ma.comm.timeout``.
        """
        self._ask_for_answers()
        while self._under_way:
            self._wait_for(self._under_way[0])
        self.raise_if_closed()

    def _ask_for_answers(self) -> None:
        """Have the answers come now that nobody has waited for so far."""
        late = {
            message.route
            for message in self._under_way
            if not (message.is_awaited or message.future.done())
        }
        for route in late:
            route.ask()

    def take_back(self) -> None:
        """Wait until arrays that were pushed without a copy may be changed.

        A short message is a copy already; that a collective operation need not wait for
        the answer to it saves a third of the time of a small one.
        """
        for message in [message for message in self._under_way if message.is_lent]:
            self._wait_for(message)
        self._forget_delivered()
        self.raise_if_closed()

    def _forget_delivered(self) -> None:
        """Forget the messages at the head of the row that have been delivered."""
        while self._under_way and self._under_way[0].future.done():
            self._wait_for(self._under_way[0])

    def close(self) -> None:
        """Leave the group; messages that are still under way are dropped."""
        registry.close(self.run_id, self.rank)
        for message in self._under_way:
            message.future.cancel()
        self._under_way.clear()
        for route in list(self._routes.values()):  # a second thread may add one
            route.leave(self.run_id, self.rank)

    def _deliver(
        self,
        payload: Any,
        dest: int,
        tag: Hashable,
        nbytes: int,
        copy: bool,
        is_awaited: bool,
    ) -> None:
        self._forget_delivered()
        self._make_room(nbytes)
        route = self._routes.get(dest) or self._make_route(dest)
        # The next one waits until the first has been taken.
        is_awaited = is_awaited or not route.is_open
        header = Header(self.run_id, self.rank, dest, tag, is_awaited)
        content = as_message(header, payload, np.copy if copy else frozen_view)
        is_long = not isinstance(content, bytes)
        size = max(nbytes, message_nbytes(content))
        message = Message(
            route,
            content,
            nbytes,
            size,
            is_lent=is_long,
            is_awaited=is_awaited or is_long,
            pace=self._pace,
        )
        self._make_room(size)  # it may be more than its arrays
        route.line.put(message)
        self._under_way.append(message)
        self._bytes_under_way += size

    def _make_room(self, size: int) -> None:
        """Wait while a message of some bytes would be too much to be under way."""
        if self._is_too_much(size):
            self._ask_for_answers()
        while self._is_too_much(size):
            self._wait_for(self._under_way[0])

    def _is_too_much(self, size: int) -> bool:
        """Whether a message of some bytes has to wait for those before it."""
        n_under_way = len(self._under_way)
        nbytes = self._bytes_under_way + size
        return n_under_way >= _MOST_UNDER_WAY or (
            n_under_way > 0 and nbytes > self._push_buffer
        )

    def _make_route(self, dest: int) -> Route:
        """The way to another rank, made for the first message to it."""
        line = line_of(self._worker, self._addresses[dest])
        route = Route(line, dest, partial(self._explain, dest))
        return self._routes.setdefault(dest, route)  # two threads may have made one

    def _deliver_local(self, payload: Any, dest: int, tag: Hashable) -> None:
        timeout = _config.get_timeout("launch.start-timeout")
        mailbox = registry.wait_for(self.run_id, dest, timeout)
        registry.put(mailbox, Header(self.run_id, self.rank, dest, tag), payload)

    def _wait_for(self, message: Message) -> None:
        """Wait for the delivery of a message that was pushed."""
        self._under_way.remove(message)
        self._bytes_under_way -= message.size
        timeout = _config.get_timeout("comm.timeout")
        start = perf_counter()
        try:
            while not self._is_delivered(message.future):
                if perf_counter() - start >= timeout:
                    raise CommTimeoutError(
                        f"a message of rank {self.rank} was not taken within "
                        f"{timeout:g} s (dask-ma.comm.timeout)"
                    )
        finally:
            message.future.cancel()
            stop = perf_counter()
            self.counters.seconds_waiting += stop - start
            # The bytes have been counted where the message was handed over.
            self.trace.add(SEND, start, stop, message.route.dest)

    def _is_delivered(self, future: Future[None]) -> bool:
        """Wait a while for a delivery, or raise what ended it or the run."""
        try:
            # Not longer: a worker that hangs would be waited for after the run.
            future.result(_LOOK)
        except FutureTimeoutError:
            if not future.done():
                self.raise_if_closed()
                return False
            future.result()  # that of the other side, or it has just arrived
        return True

    @property
    def may_leave(self) -> bool:
        """Whether this rank's worker closes some day by itself (``--lifetime``)."""
        return bool(self._worker.lifetime)

    @property
    def is_leaving(self) -> bool:
        """Whether this rank's worker wants to close as soon as the rank has ended."""
        return registry.is_leaving(self._worker.address)

    def agree_on_leaving(self, *, heeds: bool) -> None:
        """Have a worker that wants to close wait a while for this rank, or not."""
        registry.agree(self.run_id, self.rank, heeds=heeds)

    def carrier_time(self) -> float:
        """Processor time of the worker's event loop; see :meth:`Group.carrier_time`."""
        if not hasattr(time, "pthread_getcpuclockid"):  # as on Windows
            return 0.0
        if self._carrier_clock is None:
            self._carrier_clock = _clock_of_loop(self._worker)
        return time.clock_gettime(self._carrier_clock)

    # Event loop of the worker --------------------------------------------------------

    def _explain(self, dest: int, error: Exception) -> BaseException:
        """Wake this rank with what a message to another one has failed by."""
        explained: BaseException = error
        # A time-out is an OSError, too; others are CommClosedError and refusals.
        if isinstance(error, OSError) and not isinstance(error, FitFailedError):
            address = self._addresses[dest]
            explained = PeerLostError(
                f"rank {self.rank} cannot reach rank {dest} on worker {address}: "
                f"{type(error).__name__}: {error}",
                [address],
            )
            explained.__cause__ = error
        self._mailbox.close(explained)
        return explained
