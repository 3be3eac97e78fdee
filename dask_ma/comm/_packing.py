"""Messages between processes: a short one is a single string."""

from __future__ import annotations

import pickle as plain_pickle
from collections.abc import Callable, Hashable
from math import inf
from typing import Any, NamedTuple

import numpy as np
from distributed.protocol import Serialize, Serialized, pickle, to_serialize
from distributed.protocol.core import decompress
from distributed.protocol.serialize import merge_and_deserialize
from distributed.sizeof import safe_sizeof

from dask_ma.comm._group import frozen_view, map_arrays

#: A message that asks for the answers to those before it.
ASK = b""
# Bytes of a message that goes as one string. It is copied some times more; up to about
# 1 MiB that takes less than what Dask does for an array, and an answer to wait for.
_SHORT = 512 * 2**10
# Of an array that is sent in several frames, Dask copies all if it does not lie right
# behind the header.
_WHOLE = 64 * 2**20
_BEFORE = np.zeros(1, np.uint8)
# Types of payloads, or of what holds all of one, that Python itself has.
_PLAIN = {type(None), bool, int, float, str, bytes, np.ndarray}


class Header(NamedTuple):
    """What a message is beside its payload.

    Attributes
    ----------
    run_id : str
    source, dest : int
        Ranks.
    tag : hashable
    is_awaited : bool
        Whether the sender waits until the message lies in its mailbox.
    """

    run_id: str
    source: int
    dest: int
    tag: Hashable
    is_awaited: bool = False


def as_message(
    header: Header,
    payload: Any,
    isolate: Callable[[np.ndarray], np.ndarray] = frozen_view,
) -> bytes | dict[str, Any]:
    """A message as the other process takes it: a string if it is short.

    Dask sends each array with a header and in a frame of its own, and measures each
    item, which costs more than all else that is done for a short message. Of longer
    ones it reads the first array into the memory of the header, at any byte; behind
    another one, of a byte, it gets memory of its own, where its elements are aligned.
    Until it is sent, its arrays are what `isolate` makes of them.
    """
    length = _length(payload)
    if length <= _SHORT:
        return _pickled((*header, payload))
    header = header._replace(is_awaited=True)  # its arrays are lent
    payload = map_arrays(payload, isolate)
    message = {"letter": _pickled((*header, None)), "payload": to_serialize(payload)}
    if length <= _WHOLE:
        # Dask sends arrays in the order of the items.
        return {"before": to_serialize(_BEFORE), **message}
    return message


def message_nbytes(message: bytes | dict[str, Any]) -> int:
    """Bytes of a message, as far as they can be told before it is packed."""
    if isinstance(message, bytes):
        return len(message)
    return int(_length(message["payload"].data, safe_sizeof))


def from_message(
    letter: bytes, payload: Any = None, before: Any = None
) -> tuple[Header, Any]:
    """Undo :func:`as_message`, once the message is there."""
    *header, short = pickle.loads(letter)
    return Header(*header), short if payload is None else _unpacked(payload)


def withdrawal(run_id: str, source: int) -> list[str | int]:
    """A message by which a rank withdraws those that wait for others to start."""
    return [run_id, source]


def withdrawn(message: Any) -> tuple[str, int] | None:
    """Run and rank that withdraw messages by this one; None if it is another one."""
    return tuple(message) if isinstance(message, list | tuple) else None


def _unpacked(payload: Any) -> Any:
    """What Dask has sent apart, and left as it came."""
    if isinstance(payload, Serialize):  # from the same process
        return payload.data
    if not isinstance(payload, Serialized):
        return payload
    header, frames = payload.header, payload.frames
    if "compression" in header:
        frames = decompress(header, frames)
    return merge_and_deserialize(header, frames)


def _pickled(items: tuple[Any, ...]) -> bytes:
    """A header, and perhaps plain values and arrays, as a string."""
    # Dask's own looks for classes and modules that are to be sent by value.
    if not _is_plain(items):
        by_dask: bytes = pickle.dumps(items)
        return by_dask
    return plain_pickle.dumps(items, protocol=plain_pickle.HIGHEST_PROTOCOL)


def _is_plain(payload: Any) -> bool:
    """Whether a payload has objects of built-in types and arrays alone."""
    if type(payload) in (list, tuple):
        return all(map(_is_plain, payload))
    if type(payload) is dict:
        return all(map(_is_plain, payload)) and all(map(_is_plain, payload.values()))
    return type(payload) in _PLAIN or isinstance(payload, np.generic)


def _endless(item: Any) -> float:
    """No length that can be told."""
    return inf


def _length(payload: Any, of_others: Callable[[Any], float] = _endless) -> float:
    """Bytes of a payload; `of_others` tells those of what has none by itself."""
    if isinstance(payload, np.ndarray):
        return of_others(payload) if payload.dtype.hasobject else payload.nbytes
    if payload is None or isinstance(payload, int | float | np.generic):
        return 8
    if isinstance(payload, str | bytes):
        return len(payload)
    if isinstance(payload, dict):
        payload = (*payload.keys(), *payload.values())
    if isinstance(payload, list | tuple):
        return sum(_length(item, of_others) for item in payload)
    return of_others(payload)
