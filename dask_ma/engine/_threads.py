"""BLAS threads limited to what a rank may use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    """The thread pools of this process; finding them takes milliseconds, so once."""
    return ThreadpoolController()


class _SharedLimit:
    """One limit for all ranks of a process, set by the first and lifted by the last.

    The limit is a property of the process. Were each rank to restore what it found, a
    rank that began second and ended last would restore the limit of the first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    def acquire(self, threads: int) -> None:
        with self._lock:
            if self._users == 0:
                self._limiter = _controller().limit(limits=threads, user_api="blas")
            self._users += 1

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._limiter.restore_original_limits()


_shared = _SharedLimit()


@contextmanager
def limited_blas(threads: int) -> Iterator[None]:
    """Let BLAS use at most `threads` threads in this process meanwhile."""
    _shared.acquire(threads)
    try:
        yield
    finally:
        _shared.release()
