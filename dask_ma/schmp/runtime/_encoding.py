"""Encoding of blocks on their way: arrays of zeros, mostly, as places and values.

Whole numbers travel in as few bytes as hold each of them. Arrays arrive as they were,
sparse rows as such.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

_SMALLEST = 1024  # bytes; below, a message costs the same whatever is in it
_GAIN = 0.7  # part of the bytes that a sparse array may have at most
SPARSE, NARROW, ROWS = "sparse", "narrow", "rows"
#: Names of what follows each of these words in a message; `like` has no elements, and
#: the type of the array.
PARTS = {
    SPARSE: ("shape", "gaps", "elements", "like"),
    NARROW: ("numbers", "like"),
    ROWS: ("width", "ends", "columns", "sizes", "like"),
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
    """Sparse rows; their columns and numbers in as few bytes as hold each of them."""
    width, data = table.shape[1], table.data
    columns = table.indices.astype(np.min_scalar_type(max(width - 1, 0)))
    sizes = data.astype(_narrowest(data), copy=False)
    return ROWS, np.array(width), table.indptr, columns, sizes, _like(data)


def _to_rows(width: Any, ends: Any, columns: Any, sizes: Any, like: Any) -> Any:
    """Undo :func:`_of_rows`."""
    parts = np.array(sizes, like.dtype), columns.astype(ends.dtype), np.array(ends)
    return sparse.csr_array(parts, shape=(len(ends) - 1, int(width)))


def _narrowest(numbers: np.ndarray) -> np.dtype:
    """The smallest type that holds numbers that are whole and not negative."""
    if numbers.dtype.kind not in "iu" or not numbers.size or numbers.min() < 0:
        return numbers.dtype
    return min(numbers.dtype, np.min_scalar_type(int(numbers.max())), key=_itemsize)


def _like(array: np.ndarray) -> np.ndarray:
    """An array of the same type, which keeps nothing of it."""
    return np.empty(0, dtype=array.dtype)


def _itemsize(dtype: np.dtype) -> int:
    """Bytes of an element."""
    return dtype.itemsize


def _thin(array: np.ndarray) -> Any:
    """An array, or its elements that are not zero if they are few."""
    if array.nbytes < _SMALLEST or array.dtype.kind not in "biuf":
        return array
    flat = np.ascontiguousarray(array).reshape(-1)
    dtype, like = _narrowest(flat), _like(flat)
    # Bits are compared, not numbers: a negative zero has to arrive as such.
    bits = flat.view(f"u{flat.itemsize}")
    is_filled = bits != 0  # in which places are found in a third of the time
    most, n_filled = _GAIN * flat.size * dtype.itemsize, np.count_nonzero(is_filled)
    if n_filled * (dtype.itemsize + 1) <= most:
        places = np.flatnonzero(is_filled)
        gaps = np.diff(places, prepend=0)
        gaps = gaps.astype(_narrowest(gaps))
        if n_filled * (dtype.itemsize + gaps.itemsize) <= most:
            return SPARSE, array.shape, gaps, flat[places].astype(dtype), like
    if dtype.itemsize < flat.itemsize:
        return NARROW, array.astype(dtype), like
    return array


def _thicken(item: Any) -> Any:
    """Undo :func:`_thin`."""
    if isinstance(item, np.ndarray):
        return np.array(item, order="C")
    kind, *parts = item
    if kind == ROWS:
        return _to_rows(*parts)
    if kind == NARROW:
        numbers, like = parts
        return np.array(numbers, like.dtype, order="C")
    shape, gaps, values, like = parts
    array = np.zeros(int(np.prod(shape)), dtype=like.dtype)
    array[np.cumsum(gaps, dtype=np.intp)] = values
    return array.reshape(shape)
