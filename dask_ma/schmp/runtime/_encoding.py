"""Encoding of blocks on their way: arrays of zeros, mostly, as places and values.

Arrays arrive as they were, sparse rows as such.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

_SMALLEST = 1024  # bytes; below, a message costs the same whatever is in it
_GAIN = 0.7  # part of the bytes that a sparse array may have at most
_LARGEST_INT32 = np.iinfo(np.int32).max
SPARSE, ROWS = "sparse", "rows"
#: Names of what follows each of these words in a message.
PARTS = {
    SPARSE: ("shape", "places", "elements"),
    ROWS: ("width", "ends", "columns", "sizes"),
}


def encode(values: dict[str, Any]) -> dict[str, Any]:
    """What travels of the values of a block.

    Parameters
    ----------
    values : dict of str to ndarray or csr_array
        Not to be changed afterwards.

    Returns
    -------
    message : dict
        For :func:`decode`.
    """
    return {
        name: _of_rows(array) if sparse.issparse(array) else _thin(array)
        for name, array in values.items()
    }


def decode(message: dict[str, Any]) -> dict[str, Any]:
    """The values of a block, as arrays that may be written to.

    Parameters
    ----------
    message : dict
        From :func:`encode`.

    Returns
    -------
    values : dict of str to ndarray or csr_array
        The same bits.
    """
    return {name: _thicken(item) for name, item in message.items()}


def _of_rows(table: Any) -> tuple[Any, ...]:
    """Sparse rows; their columns in as few bytes as hold each of them."""
    width = table.shape[1]
    columns = table.indices.astype(np.min_scalar_type(max(width - 1, 0)))
    return ROWS, np.array(width), table.indptr, columns, table.data


def _to_rows(width: Any, ends: Any, columns: Any, sizes: Any) -> Any:
    """Undo :func:`_of_rows`."""
    parts = np.array(sizes), columns.astype(ends.dtype), np.array(ends)
    return sparse.csr_array(parts, shape=(len(ends) - 1, int(width)))


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
    return SPARSE, array.shape, places.astype(index_type), flat[places]


def _thicken(item: Any) -> Any:
    """Undo :func:`_thin`."""
    if isinstance(item, np.ndarray):
        return np.array(item, order="C")
    kind, *parts = item
    if kind == ROWS:
        return _to_rows(*parts)
    shape, places, values = parts
    array = np.zeros(int(np.prod(shape)), dtype=values.dtype)
    array[places] = values
    return array.reshape(shape)
