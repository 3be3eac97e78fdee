"""The C library's allocator: what a process has in memory, and what it gives back."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import psutil

__all__ = ["allocator", "give_back_freed", "memory_taken"]


@cache
def allocator() -> Any:
    """The C library; None where it lacks the calls of that of GNU.

    Returns
    -------
    library : ctypes.CDLL or None
        With ``mallopt`` and ``malloc_trim``.
    """
    try:
        library = ctypes.CDLL(None)
        return library if library.mallopt and library.malloc_trim else None
    except (OSError, AttributeError, TypeError):
        return None


def give_back_freed() -> None:
    """Give what this process has freed back to the system, as far as possible."""
    library = allocator()
    if library is not None:
        library.malloc_trim(0)


def memory_taken() -> int:
    """Bytes that this process has in memory, as Dask counts them.

    What has been freed is given back to the system first, as far as that is possible.

    Returns
    -------
    n_bytes : int
    """
    give_back_freed()
    return int(psutil.Process().memory_info().rss)
