"""Rows in a message whose arrays lie where the processor expects them.

Dask reads a message into one buffer, and the arrays in it begin at any byte. To use
them, each would be copied to an even address, and its rows would take their size twice.
Here a few bytes that nobody needs go ahead, so that the one who receives the rows can
move them to an even address within the buffer.

Dask also cuts arrays of more than 64 MiB (``distributed.comm.shard``), and the one who
receives them joins the pieces in a copy, unless all lie in the buffer with the first
array of the message. So large arrays are laid into one piece of memory before they go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import numpy as np
import scipy.sparse
from dask.utils import parse_bytes
from distributed.protocol import dask_deserialize, dask_serialize

from dask_ma.data._blocks import as_whole, csr_of
from dask_ma.data._checks import RawBlock

__all__: list[str] = []

_ROOM = bytes(8)  # as many as the largest elements have
_AT_ONCE = 1 << 20  # bytes that are moved at a time
_CSR = {"csr_array": scipy.sparse.csr_array, "csr_matrix": scipy.sparse.csr_matrix}
_PLAIN = "biufSU"  # kinds of elements that are their bytes


@dask_serialize.register(RawBlock)
def to_frames(block: RawBlock) -> tuple[dict[str, Any], list[Any]]:
    """Header and buffers of some rows; other kinds of rows are left to pickle."""
    parts = [_describe(part) for part in block]
    arrays = [array for part in block for array in _arrays_of(part)]
    if not all(a.flags.c_contiguous and a.dtype.kind in _PLAIN for a in arrays):
        raise NotImplementedError("these rows are not bytes in a row")
    layout = [(array.dtype.str, array.shape) for array in arrays]
    frames = [frame for array in arrays for frame in (_ROOM, _bytes_of(array))]
    return {"parts": parts, "layout": layout}, frames


@dask_deserialize.register(RawBlock)
def from_frames(header: dict[str, Any], frames: list[Any]) -> RawBlock:
    """The rows, in the buffer that they came in if it can be written to."""
    arrays = [
        as_whole(_at_even_address(room, frame).view(np.dtype(dtype)).reshape(shape))
        for (dtype, shape), room, frame in zip(
            header["layout"], frames[::2], frames[1::2], strict=True
        )
    ]
    found = iter(arrays)
    return RawBlock(*(_rebuild(part, found) for part in header["parts"]))


def in_one_place(block: RawBlock) -> RawBlock:
    """The same rows, copied into one piece of memory where others would copy more.

    Dask would join arrays where one after the first is cut, and pickle copies parts of
    arrays whose rows are not one after the other, as with columns in a row. Other kinds
    of rows than those of :func:`to_frames` stay as they are.
    """
    try:
        parts = [_describe(part) for part in block]
    except NotImplementedError:
        return block
    arrays = [array for part in block for array in _arrays_of(part)]
    most = parse_bytes(dask.config.get("distributed.comm.shard"))
    is_cut = max((array.nbytes for array in arrays[1:]), default=0) > most
    has_order = all(array.flags.c_contiguous for array in arrays)
    if not is_cut and has_order or any(a.dtype.kind not in _PLAIN for a in arrays):
        return block
    sizes = [-(-array.nbytes // len(_ROOM)) * len(_ROOM) for array in arrays]
    place, start, copies = np.empty(sum(sizes), np.uint8), 0, []
    for array, size in zip(arrays, sizes, strict=True):
        flat = place[start : start + array.nbytes].view(array.dtype)
        copies.append(flat.reshape(array.shape))
        copies[-1][...] = array
        start += size
    found = iter(copies)
    return RawBlock(*(_rebuild(part, found) for part in parts))


def _describe(part: Any) -> Any:
    """What a part is: None, an array, or a CSR with its shape."""
    if part is None or type(part) is np.ndarray:
        return None if part is None else "array"
    name = type(part).__name__
    if type(part) is not _CSR.get(name):
        raise NotImplementedError(f"{name} is left to pickle")
    return name, part.shape


def _arrays_of(part: Any) -> list[np.ndarray]:
    """The arrays of a part."""
    if part is None:
        return []
    is_array = isinstance(part, np.ndarray)
    return [part] if is_array else [part.data, part.indices, part.indptr]


def _rebuild(described: Any, arrays: Iterator[np.ndarray]) -> Any:
    """The part that has been described, of the next arrays."""
    if described is None:
        return None
    if described == "array":
        return next(arrays)
    name, shape = described
    parts = [next(arrays), next(arrays), next(arrays)]
    return csr_of(parts, tuple(shape), _CSR[name])


def _bytes_of(array: np.ndarray) -> Any:
    """The bytes of an array, not copied."""
    if not array.size:
        return b""
    place = array.base
    if not (isinstance(place, np.ndarray) and _is_bytes(place)):
        return array.reshape(-1).view(np.uint8).data
    # By this object Dask knows what lies in the same memory.
    start = array.ctypes.data - place.ctypes.data
    return place.data[start : start + array.nbytes]


def _is_bytes(array: np.ndarray) -> bool:
    """Whether an array is nothing but bytes in a row."""
    return array.dtype == np.uint8 and array.ndim == 1 and array.flags.c_contiguous


def _at_even_address(room: Any, frame: Any) -> np.ndarray:
    """The bytes of a frame, moved into the room before it if they must be."""
    found = _as_array(frame)
    shift = int(found.ctypes.data) % len(_ROOM)
    if found.size and not found.flags.writeable:
        return found.copy()
    if not shift or not found.size:
        return found
    if not _lies_before(room, frame):  # as after a compression
        return found.copy()
    whole = np.frombuffer(memoryview(frame).obj, np.uint8)  # type: ignore[call-overload]
    first = int(found.ctypes.data - whole.ctypes.data)
    last = first + found.size
    # At most the last seven bytes of the room are needed: the first tells whether the
    # message has been looked at before.
    is_moved = whole[first - len(_ROOM) : first - len(_ROOM) + 1]
    for start in range(first, first if is_moved[0] else last, _AT_ONCE):
        stop = min(start + _AT_ONCE, last)
        whole[start - shift : stop - shift] = whole[start:stop]
    is_moved[0] = 1
    return whole[first - shift : last - shift]


def _lies_before(room: Any, frame: Any) -> bool:
    """Whether a frame follows the room for it, in memory that can be changed."""
    before, behind = memoryview(room), memoryview(frame)
    if behind.readonly or before.obj is not behind.obj:
        return False
    end = _as_array(room).ctypes.data + before.nbytes
    return before.nbytes == len(_ROOM) and end == _as_array(frame).ctypes.data


def _as_array(frame: Any) -> np.ndarray:
    """The bytes of a frame, not copied."""
    if not memoryview(frame).nbytes:
        return np.empty(0, np.uint8)
    return np.frombuffer(frame, np.uint8)
