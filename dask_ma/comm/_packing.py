"""Messages between processes: a short one is a single string."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
from distributed.protocol import pickle, to_serialize

_SHORT = 16 * 2**10  # bytes of a message that goes as one string


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
