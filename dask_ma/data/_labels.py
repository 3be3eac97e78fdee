"""Class labels: found shard by shard, merged, encoded; X plays no part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_ma.data._blocks import is_frame
from dask_ma.data._shard import Shard

__all__ = ["check_memory_labels", "encode_labels", "merge_labels", "unique_labels_of"]

_SHOWN = 5
# Integers with a range below this are counted, and looked up in a table, in a fifth to
# a half of the time of a search, in blocks that are not small.
_NARROW, _FEW = 1 << 16, 1000


def unique_labels_of(shard: Shard) -> np.ndarray:
    """Sorted distinct labels of a shard.

    Parameters
    ----------
    shard : Shard

    Returns
    -------
    ndarray of shape (n_classes,)
        In the dtype of y: integers, bool, strings or objects that are strings.

    Raises
    ------
    ValueError
        If a label is missing, or y is continuous.
    TypeError
        If labels of several types are mixed.
    """
    found = []
    for block in shard.blocks:
        if block.y is not None:
            _check_labels(block.y, f" in block {block.index}")
            found.append(_unique(block.y))
    return merge_labels(found)


def _unique(y: np.ndarray) -> np.ndarray:
    """Sorted distinct labels of a block."""
    if not _is_narrow(y):
        return np.unique(y)
    low = int(y.min())
    found = np.flatnonzero(np.bincount(np.subtract(y, low, dtype=np.int64)))
    return (found + low).astype(y.dtype)


def _is_narrow(y: np.ndarray) -> bool:
    """Whether labels are integers so near to each other that counting finds them."""
    if y.dtype.kind not in "iu" or y.dtype.itemsize == 8 and y.dtype.kind == "u":
        return False
    return len(y) > _FEW and int(y.max()) - int(y.min()) < _NARROW


def check_memory_labels(y: Any) -> None:
    """Refuse labels of this process that cannot be classes, with what is wrong.

    Parameters
    ----------
    y : array-like of shape (n_rows,)
        Only labels that are neither numbers nor of one type of text are looked at;
        scikit-learn's own checks are clear about the others.

    Raises
    ------
    ValueError
        If a label is missing, or is neither a number nor text.
    TypeError
        If labels of several types are mixed.
    """
    labels = y.to_numpy() if is_frame(y) else np.asarray(y)
    if isinstance(y, (list, tuple)) and labels.dtype.kind in "US":
        labels = np.asarray(y, dtype=object)  # NumPy has made texts of all
    if labels.dtype == object and labels.ndim == 1:
        _check_objects(labels, "")


def _check_labels(y: np.ndarray, where: str) -> None:
    """Refuse labels that cannot be classes."""
    if y.dtype.kind == "f":
        if np.isnan(y).any():
            raise _missing(np.isnan(y), where)
        if np.any(y != np.floor(y)) or not np.isfinite(y).all():
            raise ValueError(
                "Unknown label type: continuous. Maybe you are trying to fit a "
                "classifier, which expects discrete classes on a regression target "
                f"with continuous values{where.replace(' in', ' of y in')}."
            )
    elif y.dtype == object:
        _check_objects(y, where)
    elif y.dtype.kind not in "biuUS":
        raise ValueError(
            f"Unknown label type: {y.dtype}{where} of y; expected integers, bool or "
            "strings."
        )


def _check_objects(y: np.ndarray, where: str) -> None:
    """Refuse objects other than strings."""
    labels = y.tolist()
    missing = np.fromiter(map(_is_missing, labels), dtype=bool, count=len(labels))
    if missing.any():
        raise _missing(missing, where)
    types = {type(label) for label in labels}
    strings = {kind for kind in types if issubclass(kind, str)}
    if strings and strings != types:
        names = sorted(kind.__name__ for kind in types)
        raise TypeError(
            f"y mixes labels of several types{where}: {', '.join(names)}; "
            "give all of them one type, for example with y.astype(str)."
        )
    if not strings and types:
        raise ValueError(
            f"Unknown label type: unknown. y{where} holds objects of type "
            f"{', '.join(sorted(kind.__name__ for kind in types))}; convert y to "
            "integers, bool or strings."
        )


def _is_missing(label: Any) -> bool:
    """Whether a label is None, NaN, NaT or pandas' NA."""
    if label is None:
        return True
    try:
        return bool(label != label)
    except TypeError:
        return True  # NA says neither yes nor no
    except ValueError:
        return False  # an array, which is no label, but not missing either


def _missing(missing: np.ndarray, where: str) -> ValueError:
    """Error of a missing label."""
    row = int(np.flatnonzero(missing)[0])
    more = np.count_nonzero(missing) - 1
    place = f"{where}, row {row} of the block" if where else f" in row {row}"
    return ValueError(
        f"Input y contains NaN: a label is missing{place}"
        f"{f' and {more} more' if more else ''}. Remove these rows first."
    )


def merge_labels(list_of_arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Union of several sets of labels.

    Parameters
    ----------
    list_of_arrays : sequence of ndarray
        What `unique_labels_of` gave for each shard; empty ones do not count.

    Returns
    -------
    ndarray of shape (n_classes,)
        Sorted.

    Raises
    ------
    TypeError
        If some hold strings and others numbers.
    """
    arrays = [labels for labels in list_of_arrays if len(labels)]
    if not arrays:
        return np.empty(0, dtype=np.int64)
    text = [labels for labels in arrays if labels.dtype.kind in "USO"]
    if text and len(text) != len(arrays):
        number = next(labels for labels in arrays if labels.dtype.kind not in "USO")
        raise TypeError(
            f"y mixes strings such as {text[0].tolist()[0]!r} and numbers such as "
            f"{number.tolist()[0]!r}; give all labels one type, for example "
            "with y.astype(str)."
        )
    return np.unique(np.concatenate(arrays))


def encode_labels(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Position of each label in the sorted classes.

    Parameters
    ----------
    y : ndarray of shape (n_rows,)
    classes : ndarray of shape (n_classes,)
        Sorted and distinct.

    Returns
    -------
    ndarray of shape (n_rows,), dtype intp

    Raises
    ------
    ValueError
        If a label is not among the classes.
    """
    codes = _codes_of(y, classes)
    unseen = list(dict.fromkeys(y[codes < 0].tolist()))
    if unseen:
        more = f" and {len(unseen) - _SHOWN} more" if len(unseen) > _SHOWN else ""
        raise ValueError(
            f"y contains labels that are not in classes: {unseen[:_SHOWN]}{more}; "
            f"classes are {classes.tolist()[: 2 * _SHOWN]}. Pass all labels in the "
            "first call of partial_fit."
        )
    return codes


def _codes_of(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Position of each label among the classes, -1 where it is not one."""
    as_text = [array.dtype.kind in "USO" for array in (y, classes)]
    if not len(classes) or as_text[0] != as_text[1]:
        return np.full(len(y), -1, dtype=np.intp)
    if object in (y.dtype, classes.dtype):
        place = {label: i for i, label in enumerate(classes.tolist())}
        found = (place.get(label, -1) for label in y.tolist())
        return np.fromiter(found, dtype=np.intp, count=len(y))
    if _is_narrow(y) and classes.dtype.kind in "iu":
        return _narrow_codes_of(y, classes)
    if len(classes) == 2 and not as_text[0]:  # in a tenth of the time of a search
        is_second = y == classes[1]
        codes = is_second.astype(np.intp)
        codes[~(is_second | (y == classes[0]))] = -1
        return codes
    codes = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    return np.where(classes[codes] == y, codes, -1)


def _narrow_codes_of(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The same for integers near to each other, by a table."""
    low, high = int(y.min()), int(y.max())
    table = np.full(high - low + 1, -1, dtype=np.intp)
    inside = np.flatnonzero((classes >= low) & (classes <= high))
    table[[int(label) - low for label in classes[inside].tolist()]] = inside
    return table[np.subtract(y, low, dtype=np.int64)]
