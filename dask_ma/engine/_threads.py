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
    """One limit for all ranks of a process, set by the first and lifted by the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    def acquire(self, threads: int) -> None:
        with self._lock:
            # Were each rank to restore what it found, one that began second and ended
            # last would restore the limit of the first.
            if self._users == 0:
                self._lift = threading.Event()
                is_set = threading.Event()
                # threadpoolctl lets only the thread that set a limit change it, and no
                # rank lives as long as the limit.
                self._states = threading.Thread(
                    target=_keep_limit,
                    args=(threads, is_set, self._lift),
                    name="dask_ma-blas-limit",
                    daemon=True,
                )
                self._states.start()
                is_set.wait()
            self._users += 1

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._lift.set()
                self._states.join()


def _keep_limit(threads: int, is_set: threading.Event, lift: threading.Event) -> None:
    """Set a limit, wait, and lift it."""
    with _controller().limit(limits=threads, user_api="blas"):
        is_set.set()
        lift.wait()


_shared = _SharedLimit()


@contextmanager
def limited_blas(threads: int) -> Iterator[None]:
    """Let BLAS use at most `threads` threads in this process meanwhile."""
    _shared.acquire(threads)
    try:
        # Once more here, for libraries with a limit for each thread, and for a thread
        # that has set the limit of the process before.
        with _controller().limit(limits=threads, user_api="blas"):
            yield
    finally:
        _shared.release()
