"""Users and items of any kind, by numbers."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

_PLACES = 4  # of a table for each id that is looked up in it, at most


def as_ids(values: Any, name: str) -> np.ndarray:
    """Ids as an array that can be sorted.

    Parameters
    ----------
    values : array-like of shape (n,)
        Numbers, texts, dates, or integers of any size.
    name : str
        What they are, for errors.

    Returns
    -------
    ids : ndarray of shape (n,)

    Raises
    ------
    ValueError
        If they are no column, or an id is missing.
    """
    ids = as_column(values)
    if ids.ndim == 0:
        raise ValueError(
            f"{name} must be one column, got the single id {values!r}; pass "
            f"[{values!r}]"
        )
    if ids.ndim != 1:
        raise ValueError(f"{name} must be one column, got shape {ids.shape}")
    missing = np.zeros(len(ids), dtype=bool)
    if ids.dtype.kind in "fcmM":
        missing = np.isnan(ids) if ids.dtype.kind in "fc" else np.isnat(ids)
    elif ids.dtype.kind == "O":
        missing = np.array([_is_missing(i) for i in ids.tolist()], dtype=bool)
    if missing.any():
        raise ValueError(
            f"{name} has no id in row {int(np.argmax(missing))}; remove such ratings"
        )
    return ids


def as_column(values: Any) -> np.ndarray:
    """A list as an array in which each element is what it was.

    NumPy makes texts of numbers that stand beside texts, and rounds integers beyond
    int64 that stand beside negative ones.
    """
    column = np.asarray(values)
    if column.ndim != 1 or not isinstance(values, list | tuple):
        return column
    kinds = {type(value) for value in values}
    is_text = column.dtype.kind in "US"
    is_mixed = is_text and not all(issubclass(k, str | bytes) for k in kinds)
    is_rounded = column.dtype.kind == "f" and kinds == {int}
    if not is_mixed and not is_rounded:
        return column
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _is_missing(value: Any) -> bool:
    """Whether an object stands for no id: None, NaN, or NA of pandas."""
    return value is None or type(value).__name__ == "NAType" or value != value


def unique_ids(values: Any, name: str) -> np.ndarray:
    """Different ids, sorted.

    Raises
    ------
    TypeError
        If they cannot be compared with each other.
    """
    ids = as_ids(values, name)
    if (span := _span(ids)) is not None:
        low, n = span
        present = np.zeros(n, dtype=bool)
        present[_places_from(low, ids)] = True
        return low + np.flatnonzero(present).astype(ids.dtype)
    try:
        return np.unique(ids)
    except TypeError as error:
        raise TypeError(
            f"{name} mixes ids that cannot be compared: {error}; make them all texts "
            "or all numbers"
        ) from error


def merged_ids(parts: list[np.ndarray], name: str) -> np.ndarray:
    """Different ids of several arrays of different ones."""
    kinds = {part.dtype.kind for part in parts if len(part)}
    if kinds & set("US") and kinds - set("US") - {"O"}:
        raise TypeError(f"{name} has texts in some blocks and numbers in others")
    return unique_ids(np.concatenate(parts), name)


def find_ids(known: np.ndarray, values: Any, name: str) -> np.ndarray:
    """Number of each id, -1 for those that are not known.

    Parameters
    ----------
    known : ndarray of shape (m,)
        Sorted.
    values : array-like of shape (n,)
        Ids.
    name : str
        What they are, for errors.

    Returns
    -------
    numbers : ndarray of int64 of shape (n,)

    Raises
    ------
    TypeError
        If they cannot be compared with those that are known.
    """
    ids = as_ids(values, name)
    if not len(known) or not len(ids):
        return np.full(len(ids), -1, dtype=np.int64)
    is_text = known.dtype.kind in "US", ids.dtype.kind in "US"
    if is_text[0] != is_text[1] and "O" not in (known.dtype.kind, ids.dtype.kind):
        raise _of_another_type(known, ids, name)
    if known.dtype.kind in "iuf" and ids.dtype.kind in "iuf":
        known, ids = _comparable(known, ids)
    if known.dtype == ids.dtype and (span := _span(known, len(ids))) is not None:
        low, n = span
        number = np.full(n, -1, dtype=np.int64)
        number[_places_from(low, known)] = np.arange(len(known))
        inside = (ids >= low) & (ids <= known[-1])
        places = np.where(inside, _places_from(low, ids), 0)
        return np.where(inside, number[places], -1)
    try:
        places = np.searchsorted(known, ids)
    except TypeError as error:
        raise _of_another_type(known, ids, name) from error
    places[places == len(known)] = 0
    return np.where(known[places] == ids, places, -1).astype(np.int64)


def _of_another_type(known: np.ndarray, ids: np.ndarray, name: str) -> TypeError:
    """Error of ids that cannot be compared with those of the fit."""
    strange = ids[np.argmin([_are_ordered(known[0], each) for each in ids])]
    kinds = [_type_name(each) for each in (strange, known[0])]
    cure = ""
    if kinds[1] in ("int", "float", "str") and kinds[0] != kinds[1]:
        cure = f", for example with astype({kinds[1]})"
    return TypeError(
        f"{name} holds {_plain(strange)!r} of type {kinds[0]}, but the ids of the fit "
        f"are of type {kinds[1]}, such as {_plain(known[0])!r}; convert them to the "
        f"type of the fit{cure}"
    )


def _are_ordered(a: Any, b: Any) -> bool:
    """Whether one of two ids can be told to be the lesser one."""
    if isinstance(a, str | bytes) != isinstance(b, str | bytes):
        return False  # NumPy may make texts of numbers
    try:
        operator.lt(a, b)
    except TypeError:
        return False
    return True


def _plain(value: Any) -> Any:
    """A number or text of NumPy as one of Python."""
    is_plain = isinstance(value, np.number | np.bool_ | np.str_ | np.bytes_)
    return value.item() if is_plain else value


def _type_name(value: Any) -> str:
    """Name of the type of an id, in the words of Python."""
    return type(_plain(value)).__name__


def _comparable(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of two types as objects, if their common type would round them."""
    common = np.result_type(a, b)
    if common.kind != "f" or a.dtype.kind == b.dtype.kind == "f":
        return a, b
    if max(float(np.abs(part.astype(np.float64)).max()) for part in (a, b)) < 2**53:
        return a, b
    return a.astype(object), b.astype(object)


def _places_from(low: Any, ids: np.ndarray) -> np.ndarray:
    """How far integers are above the least of them, whatever their type holds."""
    unsigned = np.dtype(f"u{ids.dtype.itemsize}")
    return (ids - low).view(unsigned).astype(np.int64)


def _span(ids: np.ndarray, n_asked: int | None = None) -> tuple[Any, int] | None:
    """The least of some integers and how many places they span, if that is few."""
    if ids.dtype.kind not in "iu" or not len(ids):
        return None
    low, high = ids.min(), ids.max()
    n = int(high) - int(low) + 1
    most = _PLACES * (len(ids) if n_asked is None else n_asked)
    return (low, n) if n <= most else None
