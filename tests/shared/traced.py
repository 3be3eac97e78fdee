"""Memory that code takes, as Python's allocators see it."""

import tracemalloc
from contextlib import contextmanager
from types import SimpleNamespace


@contextmanager
def traced():
    """``with traced() as memory:``, and ``memory.peak`` is how many bytes that took."""
    memory = SimpleNamespace(peak=None)
    tracemalloc.start()
    try:
        yield memory
        memory.peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
