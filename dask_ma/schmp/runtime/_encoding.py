"""Encoding of blocks on their way: arrays of zeros, mostly, as places and values."""

from __future__ import annotations

from typing import Any

import numpy as np

_SMALLEST = 1024  # bytes; below, a message costs the same whatever is in it
_GAIN = 0.7  # part of the bytes that a sparse array may have at most
_LARGEST_INT32 = np.iinfo(np.int32).max
_SPARSE = "sparse"


def encode(values: dict[str, np.ndarray]) -> dict[str, Any]:
    """What travels of the values of a block.

    Parameters
    ----------
    values : dict of str to ndarray
        Not to be changed afterwards.

    Returns
    -------
    message : dict
        For :func:`decode`.
    """
    return {name: _thin(array) for name, array in values.items()}


def decode(message: dict[str, Any]) -> dict[str, np.ndarray]:
    """The values of a block, as arrays that may be written to.

    Parameters
    ----------
    message : dict
        From :func:`encode`.

    Returns
    -------
    values : dict of str to ndarray
        The same bits.
    """
    return {name: _thicken(item) for name, item in message.items()}


def _thin(array: np.ndarray) -> Any:
    """An array, or its elements that are not zero if they are few."""
    if array.nbytes < _SMALLEST or array.dtype.kind not in "biuf":
        return array
    index_type = np.int32 if array.size <= _LARGEST_INT32 else np.int64
    flat = np.ascontiguousarray(array).reshape(-1)
    # Bits are compared, not numbers: a negative zero has to arrive as such.
    bits = flat.view(f"u{flat.itemsize}")
    per_element = flat.itemsize + np.dtype(index_type).itemsize
    is_filled = bits != 0  # in which places are found in a third of the time
    if np.count_nonzero(is_filled) * per_element > _GAIN * flat.nbytes:
        return array
    places = np.flatnonzero(is_filled)
    return _SPARSE, array.shape, places.astype(index_type), flat[places]


def _thicken(item: Any) -> np.ndarray:
    """Undo :func:`_thin`."""
    if isinstance(item, np.ndarray):
        return np.array(item, order="C")
    _, shape, places, values = item
    array = np.zeros(int(np.prod(shape)), dtype=values.dtype)
    array[places] = values
    return array.reshape(shape)
