"""Freed memory stays with a process while ranks run in it, and no longer."""

from pathlib import Path

import dask
import numpy as np
import pytest

from dask_ma.engine import _process
from dask_ma.engine._process import kept_memory


class Library:
    """Stands in for the C library."""

    def __init__(self):
        self.calls = []

    def mallopt(self, option, value):
        self.calls.append((option, value))

    def malloc_trim(self, pad):
        self.calls.append(("trim", pad))


@pytest.fixture
def library(monkeypatch):
    found = Library()
    monkeypatch.setattr(_process, "allocator", lambda: found)
    begin_with(monkeypatch, MALLOC_TRIM_THRESHOLD_="65536")
    return found


def begin_with(monkeypatch, **variables):
    """As if the process had begun with these environment variables."""
    monkeypatch.setattr(_process, "_first_environment", lambda: variables)


def test_the_first_rank_sets_and_the_last_undoes(library):
    with dask.config.set({"dask-ma.memory.keep-freed": "8 MiB"}):
        with kept_memory(), kept_memory():
            assert library.calls == [(-1, 2**23), (-3, 2**23)]
            library.calls.clear()
        assert library.calls == [(-1, 65536), (-3, 131072), ("trim", 0)]


def test_what_the_allocator_takes(library, monkeypatch):
    monkeypatch.setattr("dask_ma.data._usage.MEMORY_LIMIT", 2**40)
    with dask.config.set({"dask-ma.memory.keep-freed": "8 GiB"}), kept_memory():
        assert library.calls == [(-1, 2**31 - 1), (-3, 2**25)]


def test_a_tenth_of_little_memory_at_most(library, monkeypatch):
    monkeypatch.setattr("dask_ma.data._usage.MEMORY_LIMIT", 10 * 2**23)
    with dask.config.set({"dask-ma.memory.keep-freed": "1 GiB"}), kept_memory():
        assert library.calls == [(-1, 2**23), (-3, 2**23)]


@pytest.mark.parametrize("value", [None, "-1", "much"])
def test_an_allocator_that_nobody_has_set_up_is_left_alone(library, monkeypatch, value):
    given = {} if value is None else {"MALLOC_TRIM_THRESHOLD_": value}
    begin_with(monkeypatch, **given)
    with kept_memory():
        pass
    assert not library.calls


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="nobody tells")
def test_what_is_set_for_other_processes(monkeypatch):
    """By a nanny, whose own allocator had begun before."""
    library = Library()
    monkeypatch.setattr(_process, "allocator", lambda: library)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "4321")
    with kept_memory():
        pass
    assert (-1, 4321) not in library.calls


@pytest.mark.parametrize("text", [b"dask worker\0\0\0", b"\0\0\0"])
def test_a_title_in_the_place_of_the_environment(library, monkeypatch, text):
    """As setproctitle writes it, which workers call where it is installed."""
    monkeypatch.undo()
    monkeypatch.setattr(_process, "allocator", lambda: library)
    monkeypatch.setattr(Path, "read_bytes", lambda path: text)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "4321")
    _process._first_environment.cache_clear()
    try:
        with kept_memory():
            pass
    finally:
        _process._first_environment.cache_clear()
    assert (-1, 4321) in library.calls


def test_zero_leaves_it_alone(library):
    with dask.config.set({"dask-ma.memory.keep-freed": 0}), kept_memory():
        assert not library.calls


def test_without_such_a_library(library, monkeypatch):
    monkeypatch.setattr(_process, "allocator", lambda: None)
    with kept_memory():
        assert np.zeros(10).sum() == 0
    assert not library.calls


def test_errors_undo_it_too(library):
    with pytest.raises(RuntimeError, match="stop"), kept_memory():
        raise RuntimeError("stop")
    assert library.calls[-1] == ("trim", 0)
