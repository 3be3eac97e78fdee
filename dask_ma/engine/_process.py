"""Settings of a process while ranks run in it: threads of BLAS, freed memory.

Dask's nannies start workers with an allocator that gives freed memory back at once
(``MALLOC_TRIM_THRESHOLD_``), which is right between tasks. A rank that needs the same
temporary arrays over and over would get each of them page by page from the kernel: on
arrays of a megabyte that took twice as long as the computation itself.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

from dask_ma import _config

# Options of mallopt in the C library of GNU, and the defaults of that library.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_DEFAULT_MMAP_THRESHOLD = 128 * 2**10
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
_MOST = 2**31 - 1  # mallopt takes an int


# Were each rank to restore what it found, one that began second and ended last would
# restore the setting of the first.
class _Shared:
    """One setting for all ranks of a process, made by the first, undone by the last."""

    def __init__(self, make: Callable[[int], Callable[[], None]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._users = 0

    @contextmanager
    def hold(self, value: int) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._undo = self._make(value)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._undo()


@cache
def _controller() -> ThreadpoolController:
    """The thread pools of this process; finding them takes milliseconds, so once."""
    return ThreadpoolController()


def _limit(threads: int) -> Callable[[], None]:
    """Limit the threads of BLAS; return what lifts the limit."""
    is_set, lift = threading.Event(), threading.Event()

    def keep() -> None:
        with _controller().limit(limits=threads, user_api="blas"):
            is_set.set()
            lift.wait()

    # threadpoolctl lets only the thread that set a limit change it, and no rank lives
    # as long as the limit.
    keeper = threading.Thread(target=keep, name="dask_ma-blas-limit", daemon=True)
    keeper.start()
    is_set.wait()

    def undo() -> None:
        lift.set()
        keeper.join()

    return undo


@cache
def _library() -> Any:
    """The C library, or None where it has no such options."""
    try:
        library = ctypes.CDLL(None)
        return library if library.mallopt and library.malloc_trim else None
    except (OSError, AttributeError, TypeError):
        return None


def _number(name: str, default: int) -> int | None:
    """Value of an environment variable; None if it is no number."""
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return None


def _keep(n_bytes: int) -> Callable[[], None]:
    """Let the allocator keep freed memory; return what undoes it."""
    before = _number("MALLOC_TRIM_THRESHOLD_", -1)
    mapped = _number("MALLOC_MMAP_THRESHOLD_", _DEFAULT_MMAP_THRESHOLD)
    library = _library()
    # Where the environment says nothing, the allocator adapts by itself.
    if library is None or before is None or before < 0 or mapped is None or not n_bytes:
        return lambda: None
    library.mallopt(_TRIM_THRESHOLD, min(n_bytes, _MOST))
    library.mallopt(_MMAP_THRESHOLD, min(n_bytes, _LARGEST_MMAP_THRESHOLD))

    def undo() -> None:
        library.mallopt(_TRIM_THRESHOLD, before)
        library.mallopt(_MMAP_THRESHOLD, mapped)
        library.malloc_trim(0)

    return undo


_blas, _memory = _Shared(_limit), _Shared(_keep)


@contextmanager
def limited_blas(threads: int) -> Iterator[None]:
    """Let BLAS use at most `threads` threads in this process meanwhile."""
    # Once more here, for libraries with a limit for each thread, and for a thread that
    # has set the limit of the process before.
    with (
        _blas.hold(threads),
        _controller().limit(limits=threads, user_api="blas"),
    ):
        yield


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep up to ``dask-ma.memory.keep-freed`` of freed memory in this process."""
    with _memory.hold(_config.get_bytes("memory.keep-freed")):
        yield
