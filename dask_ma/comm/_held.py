"""Messages for ranks that have not started: kept for a while, and not too many."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable

from dask_ma import _config
from dask_ma.exceptions import FitFailedError

_Place = tuple[Hashable, Hashable, Hashable]


class Held:
    """A message that waits for its rank.

    Parameters
    ----------
    place : tuple
        Run, source and destination.
    nbytes : int
        Bytes of its arrays.
    """

    def __init__(self, place: _Place, nbytes: int) -> None:
        self.place = place
        self.nbytes = nbytes
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._error: BaseException | None = None

    async def wait(self, timeout: float) -> None:
        """Return once something has changed for the rank, or after `timeout` seconds.

        Raises
        ------
        FitFailedError
            If the message has been given up.
        """
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            pass
        if self._error is not None:
            raise self._error
        self._changed.clear()

    def wake(self, error: BaseException | None = None) -> None:
        """Have :meth:`wait` return, or raise; any thread may call it."""
        self._error = self._error or error
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)


class WaitingRoom:
    """The messages of this process that wait for a rank to start. Thread-safe.

    A rank sends its next message to another only when the one before has been taken, so
    there is at most one of each source for each rank; a second one takes its place.
    Beyond ``dask-ma.comm.held-messages``, the one that has waited longest is given up,
    and beyond ``dask-ma.comm.held-bytes`` that of another run: what a run sends itself
    at its start is limited by ``dask-ma.comm.push-buffer``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[_Place, Held] = {}  # in the order of arrival
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes of all messages."""
        return self._nbytes

    def enter(self, run_id: str, source: int, dest: int, nbytes: int) -> Held:
        """Hold a message; called on the event loop that waits for it."""
        held = Held((run_id, source, dest), nbytes)
        with self._lock:
            if (before := self._held.get(held.place)) is not None:
                self._give_up(before, "another one of its source came after it")
            self._held[held.place] = held
            self._nbytes += nbytes
            self._make_room(run_id)
        return held

    def leave(self, held: Held) -> None:
        """The message has been taken, or nobody wants it any more."""
        with self._lock:
            if self._held.get(held.place) is held:
                self._forget(held)

    def wake(self, run_id: str, rank: int | None = None) -> None:
        """Something has changed for the ranks of a run, or for one of them."""
        with self._lock:
            for (run, _, dest), held in self._held.items():
                if run == run_id and rank in (None, dest):
                    held.wake()

    def withdraw(self, run_id: str, source: int) -> None:
        """A rank has ended: nobody waits for its messages."""
        with self._lock:
            for held in list(self._held.values()):
                if held.place[:2] == (run_id, source):
                    self._give_up(held, "its rank has ended")

    def _make_room(self, newest: str) -> None:
        """Give up messages that are too many."""
        most = _config.get_count("comm.held-messages")
        while len(self._held) > max(1, most):
            self._give_up_first(
                lambda held: True, f"more than {most} wait (dask-ma.comm.held-messages)"
            )
        most_bytes = _config.get_bytes("comm.held-bytes")
        reason = f"more than {most_bytes} bytes wait (dask-ma.comm.held-bytes)"
        while self._nbytes > most_bytes:
            if not self._give_up_first(lambda held: held.place[0] != newest, reason):
                break

    def _give_up_first(self, may: Callable[[Held], bool], reason: str) -> bool:
        """Give up the first message of those that may; whether there was one."""
        held = next((held for held in self._held.values() if may(held)), None)
        if held is not None:
            self._give_up(held, reason)
        return held is not None

    def _give_up(self, held: Held, reason: str) -> None:
        run_id, source, dest = held.place
        self._forget(held)
        held.wake(
            FitFailedError(
                f"a message of rank {source} for rank {dest} of run {run_id}, which "
                f"has not started here, was given up: {reason}"
            )
        )

    def _forget(self, held: Held) -> None:
        del self._held[held.place]
        self._nbytes -= held.nbytes
