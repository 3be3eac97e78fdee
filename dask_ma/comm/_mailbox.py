"""Incoming messages of one rank."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from math import inf
from time import monotonic
from typing import Any

from dask_ma.exceptions import CommTimeoutError

_EMPTY = object()


class Mailbox:
    """Messages by source and tag, in order of arrival.

    Any thread may put; the thread of the rank gets. Once closed, every call raises the
    error that it was closed with.

    Parameters
    ----------
    rank : int
        Rank that reads this mailbox; it appears in error messages.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        # Each with the time from which it can be received.
        self._messages: defaultdict[tuple[int, Hashable], deque[tuple[float, Any]]] = (
            defaultdict(deque)
        )
        self._changed = threading.Condition()
        self._error: BaseException | None = None

    def raise_if_closed(self) -> None:
        """Raise the error that the mailbox was closed with, if it was."""
        if self._error is not None:
            # A new object each time: several threads may raise it.
            raise type(self._error)(*self._error.args) from self._error

    def put(
        self, source: int, tag: Hashable, payload: Any, *, delay: float = 0.0
    ) -> None:
        """Add a message that can be received `delay` seconds from now."""
        due = monotonic() + delay if delay else 0.0
        with self._changed:
            self.raise_if_closed()
            self._messages[source, tag].append((due, payload))
            self._changed.notify_all()

    def get(self, source: int, tag: Hashable, timeout: float) -> Any:
        """Oldest message from `source` with `tag`, waiting up to `timeout` seconds."""
        deadline = monotonic() + timeout
        with self._changed:
            while (payload := self._take(source, tag)) is _EMPTY:
                self.raise_if_closed()
                remaining = deadline - monotonic()
                if remaining <= 0:
                    raise CommTimeoutError(
                        f"rank {self._rank} got no message from rank {source} with "
                        f"tag {tag!r} within {timeout:g} s; raise the configuration "
                        "value dask-ma.comm.timeout if a rank may compute that long"
                    )
                self._changed.wait(min(remaining, self._until_due(source, tag)))
        return payload

    def poll(self, source: int, tag: Hashable) -> tuple[bool, Any]:
        """Whether such a message had arrived, and the message, without waiting."""
        with self._changed:
            self.raise_if_closed()
            payload = self._take(source, tag)
        return (False, None) if payload is _EMPTY else (True, payload)

    def wait_any(self, wanted: Sequence[tuple[int, Hashable]], timeout: float) -> None:
        """Wait up to `timeout` seconds until one of several messages has arrived."""
        deadline = monotonic() + timeout
        with self._changed:
            while True:
                self.raise_if_closed()
                wait = min((self._until_due(*item) for item in wanted), default=inf)
                if wait == 0:
                    return
                remaining = deadline - monotonic()
                if remaining <= 0:
                    raise CommTimeoutError(
                        f"rank {self._rank} got none of the messages {list(wanted)!r} "
                        f"(rank, tag) within {timeout:g} s; raise the configuration "
                        "value dask-ma.comm.timeout if a rank may compute that long"
                    )
                self._changed.wait(min(remaining, wait))

    def close(self, error: BaseException) -> None:
        """Drop all messages and make every present and later call raise `error`."""
        with self._changed:
            if self._error is None:
                self._error = error
            self._messages.clear()
            self._changed.notify_all()

    def _take(self, source: int, tag: Hashable) -> Any:
        """Remove and return a message, or a marker where there is none."""
        queue = self._messages.get((source, tag))
        if not queue or queue[0][0] > monotonic():
            return _EMPTY
        _, payload = queue.popleft()
        if not queue:
            del self._messages[source, tag]
        return payload

    def _until_due(self, source: int, tag: Hashable) -> float:
        """Seconds until the oldest such message can be received, if there is one."""
        queue = self._messages.get((source, tag))
        return max(0.0, queue[0][0] - monotonic()) if queue else inf
