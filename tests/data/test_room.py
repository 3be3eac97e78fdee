"""Room in memory and on disks: what is written stays, and leaves nothing behind."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dask_ma.data import Room, RoomSettings, Shelf, is_on_disk, memory_here
from dask_ma.data._mapped import Pages, _drop, residency


def pages_of(array):
    """The map that an array lies in."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array.obj if isinstance(array, memoryview) else array


def test_arrays_on_a_disk_keep_what_is_written(tmp_path):
    room = Room(str(tmp_path / "made"), on_disk=True)
    array = room.empty((2, 3000), np.int32)
    assert is_on_disk(array)
    assert array.shape == (2, 3000)
    array[:] = np.arange(6000).reshape(2, 3000)
    view = array[1, 10:20]
    assert isinstance(pages_of(view), Pages)
    _drop(pages_of(array))  # as where much of it is in memory
    np.testing.assert_array_equal(array.ravel(), np.arange(6000))
    view += 1
    _drop(pages_of(array))
    assert array[1, 10] == 3011
    assert os.listdir(tmp_path / "made") == []  # the file has no name
    assert pages_of(array) in residency._maps
    assert not is_on_disk(room.empty((2, 0), np.int32))


def test_arrays_in_memory():
    room = Room()
    assert not is_on_disk(room.empty(5, np.float32))
    assert room.empty(5, np.float32).dtype == np.float32


@pytest.mark.parametrize("on_disk", [False, True])
def test_packed_arrays_lie_behind_one_another(tmp_path, on_disk):
    room = Room(str(tmp_path), on_disk=on_disk)
    given = [np.arange(4), np.empty(0, np.int64), np.array([9, 8])]
    packed = room.pack(given, np.int64)
    assert [array.tolist() for array in packed] == [[0, 1, 2, 3], [], [9, 8]]
    assert packed[0].base is packed[2].base
    assert is_on_disk(packed[0]) == on_disk
    assert room.pack([], np.int32) == []


@pytest.mark.parametrize("on_disk", [False, True])
def test_arrays_of_a_shelf_lie_behind_one_another(tmp_path, on_disk):
    """Those that come when there is no more room lie elsewhere."""
    shelf = Shelf(Room(str(tmp_path), on_disk=on_disk), 6)
    first, none = shelf.pack([np.arange(3), np.empty(0, np.int64)], np.int64)
    second = shelf.empty(2, np.int64)
    second[:] = 8, 9
    last = shelf.pack([np.arange(4)], np.int64)[0]
    other = shelf.empty(1, np.float32)
    assert [a.tolist() for a in (first, none, second, last)] == [
        [0, 1, 2],
        [],
        [8, 9],
        [0, 1, 2, 3],
    ]
    assert other.dtype == np.float32
    assert [is_on_disk(a) for a in (first, second, last, other)] == [on_disk] * 4
    if not on_disk:
        assert second.ctypes.data == first.ctypes.data + first.nbytes
        assert last.base is not first.base


@pytest.mark.skipif(
    not hasattr(os, "posix_fallocate"), reason="room cannot be taken beforehand"
)
def test_a_disk_that_is_full(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    room = Room(str(tmp_path), on_disk=True)
    with pytest.raises(OSError, match=r"400 bytes cannot be had in .*data\.cache"):
        room.empty(100, np.int32)


def test_settings(configured, inproc_client):
    values = {
        "dask-ma.data.persist": False,
        "dask-ma.data.memory-fraction": 0.25,
        "dask-ma.data.cache": "there",
    }
    with configured(values):
        assert RoomSettings.configured() == RoomSettings(False, 0.25, "there")
    assert memory_here() > 2**20
    limits = inproc_client.run(memory_here)
    assert set(limits.values()) == {memory_here()}  # no limit of their own


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells of maps")
def test_nothing_looks_after_a_room_that_is_closed(tmp_path):
    room = Room(str(tmp_path), on_disk=True)
    array = room.empty((3, 2), np.int64)
    array[:] = 7
    kept = array[1:]
    del array
    assert any(t.name == "dask_ma-pages" for t in threading.enumerate())
    room.close()
    deadline = time.monotonic() + 10
    while any(t.name == "dask_ma-pages" for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert (kept == 7).all()
