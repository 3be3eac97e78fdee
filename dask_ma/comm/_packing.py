"""Arrays on their way: many in one vector, and short messages in one string."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
from distributed.protocol import pickle, to_serialize

_SHORT = 16 * 2**10  # bytes of a message that goes as one string


class Packed(NamedTuple):
    """Arrays laid end to end.

    Attributes
    ----------
    flats : list of ndarray of shape (n,)
        One vector per dtype, in the order in which the dtypes first appear.
    slots : list of (int, int, tuple of int)
        For each array: which vector, where it starts there, and its shape.
    """

    flats: list[np.ndarray]
    slots: list[tuple[int, int, tuple[int, ...]]]


def pack(arrays: Sequence[np.ndarray]) -> Packed:
    """Lay arrays end to end; an array alone in its dtype is not copied."""
    dtypes: list[np.dtype] = []
    groups: list[list[np.ndarray]] = []
    slots = []
    for array in arrays:
        if array.dtype not in dtypes:
            dtypes.append(array.dtype)
            groups.append([])
        which = dtypes.index(array.dtype)
        start = sum(a.size for a in groups[which])
        groups[which].append(array)
        slots.append((which, start, array.shape))
    flats = [
        (
            group[0].reshape(-1)
            if len(group) == 1
            else np.concatenate([a.reshape(-1) for a in group])
        )
        for group in groups
    ]
    return Packed(flats, slots)


def unpack(packed: Packed) -> list[np.ndarray]:
    """Views of the flat vectors in the shapes of the original arrays."""
    return [
        packed.flats[which][start : start + prod(shape)].reshape(shape)
        for which, start, shape in packed.slots
    ]


def as_message(payload: Any) -> dict[str, Any]:
    """A payload as the handler of the other process takes it.

    Dask sends each array with a header and in a frame of its own, which costs more
    than all else that is done for a short message.
    """
    if _length(payload) <= _SHORT:
        return {"payload": None, "pickled": pickle.dumps(payload)}
    return {"payload": to_serialize(payload)}


def from_message(payload: Any, pickled: bytes | None) -> Any:
    """Undo :func:`as_message`, once the message is there."""
    return payload if pickled is None else pickle.loads(pickled)


def _length(payload: Any) -> float:
    """Bytes of a payload; infinite for what there is no telling from outside."""
    if payload is None or isinstance(payload, bool | int | float | np.generic):
        return 8
    if isinstance(payload, np.ndarray):
        return inf if payload.dtype.hasobject else payload.nbytes
    if isinstance(payload, str | bytes):
        return len(payload)
    if isinstance(payload, list | tuple):
        return sum(map(_length, payload))
    if isinstance(payload, dict):
        return sum(map(_length, payload.keys())) + sum(map(_length, payload.values()))
    return inf
