"""Several inputs of a module in one row: packed byte by byte, and unpacked again."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

#: Names, types and shapes of what lies in a row.
Fields = tuple[tuple[str, str, tuple[int, ...]], ...]


def pack_rows(X: Mapping[str, Any]) -> tuple[np.ndarray, Fields]:
    """Lay the bytes of several arrays row by row side by side.

    Parameters
    ----------
    X : mapping of str to array-like of shape (n_samples, ...)
        Real numbers; floating-point ones become float32.

    Returns
    -------
    rows : ndarray of uint8, shape (n_samples, n_bytes)
    fields : Fields
        What :func:`unpack_rows` needs.

    Raises
    ------
    ValueError
        For NaN and infinity, for other values than numbers, and for arrays of several
        lengths. The message names the entry.
    """
    if not X:
        raise ValueError("X is an empty dict; it needs an array for each input")
    arrays = {name: _checked(name, value) for name, value in X.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the arrays of X must have as many rows each, got {lengths}")
    fields = tuple((name, a.dtype.str, a.shape[1:]) for name, a in arrays.items())
    n_rows = next(iter(lengths.values()))
    parts = [
        array.reshape(n_rows, prod(array.shape[1:])).view(np.uint8)
        for array in arrays.values()
    ]
    return np.concatenate(parts, axis=1), fields


def unpack_rows(rows: np.ndarray, fields: Fields) -> dict[str, np.ndarray]:
    """The arrays that :func:`pack_rows` has packed, of some of the rows.

    Parameters
    ----------
    rows : ndarray of uint8, shape (n_rows, n_bytes)
    fields : Fields

    Returns
    -------
    arrays : dict of str to ndarray
        New ones.
    """
    found, start = {}, 0
    for name, dtype, shape in fields:
        width = prod(shape) * np.dtype(dtype).itemsize
        part = np.array(rows[:, start : start + width], order="C")
        found[name] = part.view(dtype).reshape(len(rows), *shape)
        start += width
    return found


def integers_as_floats(X: Any, fields: Fields | None) -> Any:
    """Rows whose integers are floats where those of a fit were.

    Parameters
    ----------
    X : mapping of str to array-like, or object
    fields : Fields or None
        Of the rows of the fit.

    Returns
    -------
    X : dict or object
        The input itself unless it is a mapping.
    """
    if fields is None or not isinstance(X, Mapping):
        return X
    floats = {name for name, dtype, _ in fields if np.dtype(dtype).kind == "f"}
    arrays = {name: np.asarray(value) for name, value in X.items()}
    return {
        name: array.astype(np.float32)
        if name in floats and array.dtype.kind in "iu"
        else array
        for name, array in arrays.items()
    }


def _checked(name: str, value: Any) -> np.ndarray:
    """An array of finite numbers."""
    array = np.asarray(value)
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise ValueError(
            f"X[{name!r}] must be an array of real numbers with a row for each sample, "
            f"got {array.dtype} of shape {array.shape}"
        )
    if array.dtype.kind == "f":
        array = array.astype(np.float32)
        if not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            raise ValueError(f"X[{name!r}] contains NaN or infinity in row {row}")
    return np.ascontiguousarray(array)
