"""Rows of any shape as rows of one dimension, and how many targets belong to each."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from dask_ma.data import is_dask_collection, refuse_unfinished

#: Types that rows for a module keep on their way; any other becomes float32.
MODULE_DTYPES = (
    np.float32,
    *(np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)),
)


def has_target(item: Any) -> bool:
    """Whether an item of a data set ends with a target: `(input, ..., target)`."""
    return isinstance(item, tuple | list) and len(item) > 1


def input_of(item: Any) -> Any:
    """What a module gets of an item; a list where it has several inputs.

    Parameters
    ----------
    item : object
        One input, or a tuple of one or more inputs and a target.
    """
    if not has_target(item):
        return item
    return item[0] if len(item) == 2 else list(item[:-1])


def flat_rows(X: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Lay the values of each row end to end.

    Parameters
    ----------
    X : array-like or Dask collection of shape (n_samples, ...)
        A dask.array may have chunks along any axis; each row becomes one chunk wide.

    Returns
    -------
    X : of shape (n_samples, n_features)
        The input itself where it has two dimensions, or no shape.
    shape : tuple of int or None
        Shape of a row; None where it has one dimension.
    """
    if not hasattr(X, "ndim"):
        X = np.asarray(X)
    if X.ndim <= 2:
        return X, None
    shape = tuple(int(n) for n in X.shape[1:])
    if not is_dask_collection(X):
        return X.reshape(len(X), -1), shape
    X = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    flat = X.map_blocks(
        _flatten,
        chunks=(X.chunks[0], (prod(shape),)),
        drop_axis=list(range(2, X.ndim)),
        meta=np.empty((0, 0), dtype=X.dtype),
    )
    return flat, shape


def n_targets_of(y: Any) -> int | None:
    """Columns of the targets, by their shape alone.

    Parameters
    ----------
    y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_targets)

    Returns
    -------
    n_targets : int or None
        None for a y of one dimension, or of one column, which counts as such.

    Raises
    ------
    TypeError
        For a Delayed or a Future, whose shape is not known.
    """
    refuse_unfinished(y, "y")
    if y is None:
        return None
    if not hasattr(y, "ndim"):
        try:
            y = np.asarray(y)
        except ValueError:  # of lists of several lengths, which are refused later on
            return None
    if y.ndim != 2:
        return None
    columns = getattr(y, "columns", None)
    n_targets = int(y.shape[1]) if columns is None else len(columns)
    return n_targets if n_targets > 1 else None


def refuse_tuples(y: Any) -> None:
    """Refuse a list of tuples, each of which may be meant as one label.

    Parameters
    ----------
    y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_targets)

    Raises
    ------
    ValueError
        It says how to give several labels per row.
    """
    if isinstance(y, (list, tuple)) and len(y) and isinstance(y[0], tuple):
        raise ValueError(
            f"y should be a 1d array, got tuples such as {y[0]!r}, which cannot be "
            "labels; if they tell by 0 and 1 which labels a row has, pass "
            "numpy.asarray(y)"
        )


def _flatten(block: np.ndarray) -> np.ndarray:
    """A block with rows of one dimension."""
    return block.reshape(len(block), -1)
