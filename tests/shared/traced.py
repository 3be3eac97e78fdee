"""Memory that code takes, as Python's allocators see it."""

import tracemalloc
from contextlib import contextmanager
from types import SimpleNamespace


@contextmanager
def traced():
    """``with traced() as memory:``, and ``memory.peak`` is how many bytes that took.

    ``memory.left`` is how many of them there are at the end.
    """
    memory = SimpleNamespace(peak=None, left=None)
    tracemalloc.start()
    try:
        yield memory
        memory.left, memory.peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
