"""Users and items of any kind, by numbers."""

from __future__ import annotations

from typing import Any

import numpy as np


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
    ids = np.asarray(values)
    if ids.ndim != 1:
        raise ValueError(f"{name} must be one column, got shape {ids.shape}")
    missing = np.zeros(len(ids), dtype=bool)
    if ids.dtype.kind in "fcmM":
        missing = np.isnan(ids) if ids.dtype.kind in "fc" else np.isnat(ids)
    elif ids.dtype.kind == "O":
        missing = np.array([i is None or i != i for i in ids.tolist()], dtype=bool)
    if missing.any():
        raise ValueError(
            f"{name} has no id in row {int(np.argmax(missing))}; remove such ratings"
        )
    return ids


def unique_ids(values: Any, name: str) -> np.ndarray:
    """Different ids, sorted.

    Raises
    ------
    TypeError
        If they cannot be compared with each other.
    """
    try:
        return np.unique(as_ids(values, name))
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
    """
    ids = as_ids(values, name)
    if not len(known) or not len(ids):
        return np.full(len(ids), -1, dtype=np.int64)
    is_text = known.dtype.kind in "US", ids.dtype.kind in "US"
    if is_text[0] != is_text[1] and "O" not in (known.dtype.kind, ids.dtype.kind):
        raise TypeError(
            f"{name} are of type {ids.dtype}, but those of the fit of type "
            f"{known.dtype}; convert them"
        )
    places = np.searchsorted(known, ids)
    places[places == len(known)] = 0
    return np.where(known[places] == ids, places, -1).astype(np.int64)
