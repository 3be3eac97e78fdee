"""The narrow waist of all communication: a rank among others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from copy import copy
from dataclasses import dataclass, fields
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import numpy as np

from dask_ma import _config
from dask_ma.comm._mailbox import Mailbox
from dask_ma.comm._topology import Layout
from dask_ma.comm._trace import SEND, WAIT, Trace
from dask_ma.exceptions import GroupClosedError


@dataclass
class Counters:
    """What one rank has exchanged since its group was opened.

    Attributes
    ----------
    messages_sent, messages_received : int
        Messages to and from ranks of other processes.
    bytes_sent, bytes_received : int
        Bytes of the arrays in those messages.
    bytes_shared : int
        Bytes of arrays handed to ranks of the same process, which costs no transfer.
    seconds_waiting : float
        Time spent waiting for messages to arrive or to be taken.
    """

    messages_sent: int = 0
    messages_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_shared: int = 0
    seconds_waiting: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """The counters as a dictionary."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


_WITHOUT_ARRAYS = {type(None), bool, int, float, str, bytes}


def payload_nbytes(payload: Any) -> int:
    """Bytes of the arrays in a message, looked for in lists, tuples and dicts."""
    # Of small messages this is a tenth of what the thread of a rank does.
    if isinstance(payload, np.ndarray):
        return payload.nbytes
    if isinstance(payload, dict):
        payload = list(payload.values())
    if not isinstance(payload, list | tuple):
        return 0
    total = 0
    for item in payload:
        if type(item) is np.ndarray:
            total += item.nbytes
        elif type(item) not in _WITHOUT_ARRAYS:
            total += payload_nbytes(item)
    return total


def map_arrays(payload: Any, function: Any) -> Any:
    """Apply `function` to the arrays of a message and rebuild what holds them."""
    if type(payload) in _WITHOUT_ARRAYS:
        return payload
    if isinstance(payload, np.ndarray):
        return function(payload)
    if isinstance(payload, list):
        return [map_arrays(item, function) for item in payload]
    if type(payload) is tuple:
        return tuple(map_arrays(item, function) for item in payload)
    if isinstance(payload, dict):
        return {key: map_arrays(item, function) for key, item in payload.items()}
    return payload


def aligned(array: np.ndarray) -> np.ndarray:
    """The array, or a copy if its elements lie where the processor expects none.

    A message puts arrays at any byte. On such an array NumPy goes without BLAS, which
    is slower and rounds in another way.
    """
    return np.require(array, requirements="A")


def frozen_view(array: np.ndarray) -> np.ndarray:
    """A view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


class Group(ABC):
    """One rank among the ranks of a run.

    Every rank of a run holds its own `Group`. Messages between two ranks with the same
    tag arrive in the order in which they were sent. All calls raise
    :class:`~dask_ma.exceptions.GroupClosedError` (or the error that ended the run) once
    the group is closed.

    Parameters
    ----------
    rank : int
        Number of this rank, ``0 <= rank < size``.
    layout : Layout
        Which ranks share a process.
    mailbox : Mailbox
        Where the messages to this rank arrive.

    Attributes
    ----------
    rank : int
        Number of this rank.
    size : int
        Number of ranks.
    counters : Counters
        Messages, bytes and waiting time so far.
    trace : Trace
        What this rank has done when.
    """

    def __init__(self, rank: int, layout: Layout, mailbox: Mailbox) -> None:
        self.rank = rank
        self.layout = layout
        self.counters = Counters()
        self.trace = Trace()
        self._mailbox = mailbox
        self._collectives = 0

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.layout.size

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """Ranks in this process, this one among them."""
        return self.layout.ranks_of(self.layout.node_of(self.rank))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size}>"

    def raise_if_closed(self) -> None:
        """Raise the error that ended the run, if it has ended."""
        self._mailbox.raise_if_closed()

    def send(self, payload: Any, dest: int, tag: Hashable = 0) -> None:
        """Send a message and wait until it lies in the mailbox of the other rank.

        Parameters
        ----------
        payload : object
            An array, a list, tuple or dict of arrays, or any object that can be
            pickled. It may be changed as soon as the call returns.
        dest : int
            Rank to send to.
        tag : hashable, default=0
            Label that the receiver asks for: an int, a str, or a tuple of them.

        Raises
        ------
        PeerLostError
            If the worker that carries `dest` has gone.
        CommTimeoutError
            If the other side does not take it within ``dask-ma.comm.timeout``.
        """
        # A message to another process is delivered before the call returns.
        copy = dest in self.local_ranks
        self._start(payload, dest, tag, copy=copy, is_awaited=True)
        self.flush()

    def push(
        self, payload: Any, dest: int, tag: Hashable = 0, *, copy: bool = True
    ) -> None:
        """Send a message without waiting for its delivery.

        Waits only while more than ``dask-ma.comm.push-buffer`` bytes are under way.

        Parameters
        ----------
        payload, dest, tag
            As in :meth:`send`.
        copy : bool, default=True
            Whether arrays are copied first. With False, they must not change until
            everybody who got them is done with them.
        """
        self._start(payload, dest, tag, copy=copy)

    def recv(
        self, source: int, tag: Hashable = 0, *, timeout: float | None = None
    ) -> Any:
        """Wait for a message and return it.

        Parameters
        ----------
        source : int
            Rank that sends it.
        tag : hashable, default=0
            Its label.
        timeout : float, default=None
            Seconds to wait; ``dask-ma.comm.timeout`` if None.

        Returns
        -------
        payload : object
            What was sent. Arrays in it may be read-only.

        Raises
        ------
        CommTimeoutError
            If nothing came in time.
        """
        self._check_rank(source, "source")
        if timeout is None:
            timeout = _config.get_timeout("comm.timeout")
        nbytes = 0
        start = perf_counter()
        try:
            payload = self._mailbox.get(source, tag, timeout)
            nbytes = payload_nbytes(payload)
        finally:
            stop = perf_counter()
            self.counters.seconds_waiting += stop - start
            self.trace.add(WAIT, start, stop, source, nbytes)
        self._count_received(source, nbytes)
        return payload

    def poll(self, source: int, tag: Hashable = 0) -> tuple[bool, Any]:
        """Look for a message without waiting.

        Parameters
        ----------
        source : int
            Rank that sends it.
        tag : hashable, default=0
            Its label.

        Returns
        -------
        arrived : bool
            Whether there was one.
        payload : object
            The message, None where there was none.
        """
        self._check_rank(source, "source")
        arrived, payload = self._mailbox.poll(source, tag)
        if arrived:
            self._count_received(source, payload_nbytes(payload))
        return arrived, payload

    def wait_any(
        self,
        wanted: Sequence[tuple[int, Hashable]],
        *,
        timeout: float | None = None,
    ) -> None:
        """Wait until one of several messages has arrived, which :meth:`poll` then gets.

        Parameters
        ----------
        wanted : sequence of (int, hashable)
            Rank and tag of each message.
        timeout : float, default=None
            Seconds to wait; ``dask-ma.comm.timeout`` if None.

        Raises
        ------
        CommTimeoutError
            If none came in time.
        """
        if timeout is None:
            timeout = _config.get_timeout("comm.timeout")
        start = perf_counter()
        try:
            self._mailbox.wait_any(wanted, timeout)
        finally:
            stop = perf_counter()
            self.counters.seconds_waiting += stop - start
            self.trace.add(WAIT, start, stop, -1)

    @property
    def may_leave(self) -> bool:
        """Whether this rank's worker closes some day by itself (``--lifetime``)."""
        return False

    @property
    def is_leaving(self) -> bool:
        """Whether this rank's worker wants to close as soon as the rank has ended."""
        return False

    def agree_on_leaving(self, *, heeds: bool) -> None:
        """Have a worker that wants to close wait a while for this rank, or not."""

    def carrier_time(self) -> float:
        """Processor time of the thread that carries this process's messages.

        Returns
        -------
        seconds : float
            Since that thread began; 0 where there is none, or the system does not tell.
        """
        return 0.0

    def fail(self, error: BaseException) -> None:
        """Make each present and later call of this rank's threads raise `error`.

        Parameters
        ----------
        error : BaseException
            What has gone wrong in another thread of the rank.
        """
        self._mailbox.close(error)

    def for_thread(self) -> Self:
        """The same rank for a second thread.

        The two share the mailbox, and end together; each has counters, a trace and
        pushed messages of its own. Messages must not be awaited by both with one tag,
        and collective calls belong to the first.

        Returns
        -------
        group : Group
        """
        second = copy(self)
        second.counters = Counters()
        second.trace = Trace()
        return second

    @abstractmethod
    def flush(self) -> None:
        """Wait until all that was pushed lies in the mailboxes of its receivers."""

    def take_back(self) -> None:
        """Wait until arrays that were pushed without a copy may be changed.

        For ranks of other processes: those of this one read them where they are.
        """
        self.flush()

    def close(self) -> None:
        """Leave the group; messages that are still under way are dropped."""
        self._mailbox.close(GroupClosedError(f"rank {self.rank} has left its group"))

    @abstractmethod
    def _deliver(
        self,
        payload: Any,
        dest: int,
        tag: Hashable,
        nbytes: int,
        copy: bool,
        is_awaited: bool,
    ) -> None:
        """Start to carry a message elsewhere; it may change soon if it is copied."""

    @abstractmethod
    def _deliver_local(self, payload: Any, dest: int, tag: Hashable) -> None:
        """Put a message into the mailbox of a rank of this process."""

    def _start(
        self,
        payload: Any,
        dest: int,
        tag: Hashable,
        *,
        copy: bool,
        is_awaited: bool = False,
    ) -> None:
        """Count and carry a message, through memory where the ranks share it."""
        self._check_rank(dest, "dest")
        self.raise_if_closed()
        nbytes = payload_nbytes(payload)
        self.trace.begin(SEND, dest)
        try:
            if dest in self.local_ranks:
                self.counters.bytes_shared += nbytes
                isolated = map_arrays(payload, np.copy if copy else frozen_view)
                self._deliver_local(isolated, dest, tag)
            else:
                self.counters.messages_sent += 1
                self.counters.bytes_sent += nbytes
                self._deliver(payload, dest, tag, nbytes, copy, is_awaited)
        finally:
            self.trace.end(nbytes)

    def _next_tag(self) -> int:
        """Number of the next collective, the same on every rank."""
        self._collectives += 1
        return self._collectives

    def _count_received(self, source: int, nbytes: int) -> None:
        if source not in self.local_ranks:
            self.counters.messages_received += 1
            self.counters.bytes_received += nbytes

    def _check_rank(self, rank: int, name: str) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(
                f"{name} must be a rank from 0 to {self.size - 1}, got {rank}"
            )
