"""Ranks on the workers of a Dask cluster."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np

from dask_ma import _config
from dask_ma.comm._group import Group, frozen_view
from dask_ma.comm._mailbox import Mailbox
from dask_ma.comm._packing import Header, as_message
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
_LOOK = 0.5  # seconds between looks whether a run has ended that waits for a delivery
_FIRST_PAUSE = 0.01  # seconds after which a message that was not taken is sent again

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


class _Parcel(NamedTuple):
    """A message under way, its bytes and who gets it."""

    future: Future[None]
    nbytes: int
    dest: int
    is_lent: bool  # its arrays are those of the rank


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
        self._under_way: deque[_Parcel] = deque()
        self._bytes_under_way = self._n_lent = 0
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
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
        second._bytes_under_way = second._n_lent = 0
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
        while self._under_way:
            self._wait_for_oldest()
        self.raise_if_closed()

    def take_back(self) -> None:
        """Wait until arrays that were pushed without a copy may be changed.

        A short message is a copy already; that a collective operation need not wait for
        the answer to it saves a third of the time of a small one.
        """
        while self._under_way and (self._n_lent or self._under_way[0].future.done()):
            self._wait_for_oldest()
        self.raise_if_closed()

    def close(self) -> None:
        """Leave the group; messages that are still under way are dropped."""
        for parcel in self._under_way:
            parcel.future.cancel()
        self._under_way.clear()
        registry.close(self.run_id, self.rank)

    def _deliver(
        self, payload: Any, dest: int, tag: Hashable, nbytes: int, copy: bool
    ) -> None:
        while self._under_way and self._bytes_under_way + nbytes > self._push_buffer:
            self._wait_for_oldest()
        header = Header(self.run_id, self.rank, dest, tag)
        message = as_message(header, payload, np.copy if copy else frozen_view)
        is_copy = "payload" not in message
        loop = self._worker.loop.asyncio_loop
        carried = self._carry(message, nbytes, dest)
        future = asyncio.run_coroutine_threadsafe(carried, loop)
        self._under_way.append(_Parcel(future, nbytes, dest, not is_copy))
        self._bytes_under_way += nbytes
        self._n_lent += not is_copy

    def _deliver_local(self, payload: Any, dest: int, tag: Hashable) -> None:
        timeout = _config.get_timeout("launch.start-timeout")
        mailbox = registry.wait_for(self.run_id, dest, timeout)
        registry.put(mailbox, self.run_id, self.rank, dest, tag, payload)

    def _wait_for_oldest(self) -> None:
        """Wait for the delivery of the message that was pushed first."""
        future, nbytes, dest, is_lent = self._under_way.popleft()
        self._bytes_under_way -= nbytes
        self._n_lent -= is_lent
        timeout = _config.get_timeout("comm.timeout")
        start = perf_counter()
        try:
            while not self._is_delivered(future):
                if perf_counter() - start >= timeout:
                    raise CommTimeoutError(
                        f"a message of rank {self.rank} was not taken within "
                        f"{timeout:g} s (dask-ma.comm.timeout)"
                    )
        finally:
            future.cancel()
            stop = perf_counter()
            self.counters.seconds_waiting += stop - start
            # The bytes have been counted where the message was handed over.
            self.trace.add(SEND, start, stop, dest)

    def _is_delivered(self, future: Future[None]) -> bool:
        """Wait a while for a delivery, or raise what ended it or the run."""
        try:
            # Not longer: a worker that hangs would be waited for after the run.
            future.result(_LOOK)
        except FutureTimeoutError:
            if future.done():  # the time-out of the other side
                raise
            self.raise_if_closed()
            return False
        return True

    @property
    def may_leave(self) -> bool:
        """Whether this rank's worker closes some day by itself (``--lifetime``)."""
        return bool(self._worker.lifetime)

    @property
    def is_leaving(self) -> bool:
        """Whether this rank's worker wants to close as soon as the rank has ended."""
        return registry.is_leaving(self._worker.address)

    def heed_leaving(self) -> None:
        """Have a worker that wants to close wait a while for this rank to end."""
        registry.heed(self.run_id, self.rank)

    def carrier_time(self) -> float:
        """Processor time of the worker's event loop; see :meth:`Group.carrier_time`."""
        if not hasattr(time, "pthread_getcpuclockid"):  # as on Windows
            return 0.0
        if self._carrier_clock is None:
            self._carrier_clock = _clock_of_loop(self._worker)
        return time.clock_gettime(self._carrier_clock)

    # Event loop of the worker --------------------------------------------------------

    async def _carry(self, message: dict[str, Any], nbytes: int, dest: int) -> None:
        """Send one message; wake this rank with the error if that fails."""
        address = self._addresses[dest]
        try:
            # One at a time to each rank: two connections could overtake each other.
            async with self._turns[dest]:
                if self._pace is not None:
                    await self._pace.wait(nbytes)
                await self._post(message, dest)
        except FitFailedError as error:  # before OSError, which a time-out is, too
            self._mailbox.close(error)
            raise
        except OSError as error:  # CommClosedError and refused connections
            lost = PeerLostError(
                f"rank {self.rank} cannot reach rank {dest} on worker {address}: "
                f"{type(error).__name__}: {error}",
                [address],
            )
            self._mailbox.close(lost)
            raise lost from error
        except Exception as error:
            self._mailbox.close(error)
            raise

    async def _post(self, message: dict[str, Any], dest: int) -> None:
        """Send a message until the worker at the other end takes it."""
        timeout = _config.get_timeout("launch.start-timeout")
        deadline = monotonic() + timeout
        pause = _FIRST_PAUSE
        # A scheduler says that the plugin is installed while it is still on its way to
        # some workers for another run. Those answer None, and drop the message.
        far_end = self._worker.rpc(self._addresses[dest])
        while not await far_end.dask_ma_receive(**message):
            if monotonic() >= deadline:
                raise CommTimeoutError(
                    f"worker {self._addresses[dest]} of rank {dest} has taken no "
                    f"messages for {timeout:g} s (dask-ma.launch.start-timeout): the "
                    "plugin dask_ma-comm is not there"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LOOK)
