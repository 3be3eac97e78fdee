"""Messages between processes: a short one is a single string."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
from distributed.protocol import pickle, to_serialize

_SHORT = 16 * 2**10  # bytes of a message that goes as one string
_JOINED = 128 * 2**10  # bytes up to which Dask's connections join what they send
# Of an array that is sent in several frames, Dask copies all if it does not lie right
# behind the header.
_WHOLE = 64 * 2**20
_BEFORE = np.zeros(1, np.uint8)


def as_message(payload: Any) -> dict[str, Any]:
    """A payload as the handler of the other process takes it.

    Dask sends each array with a header and in a frame of its own, which costs more
    than all else that is done for a short message. Of longer ones it reads the first
    array into the memory of the header, at any byte; behind another one, of a byte, it
    gets memory of its own, where its elements are aligned.
    """
    length = _length(payload)
    if length <= _SHORT:
        return {"payload": None, "pickled": pickle.dumps(payload)}
    if _JOINED < length <= _WHOLE:
        return {"before": to_serialize(_BEFORE), "payload": to_serialize(payload)}
    return {"payload": to_serialize(payload)}


def from_message(payload: Any, pickled: bytes | None = None, before: Any = None) -> Any:
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
