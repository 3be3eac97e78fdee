"""Class labels: found shard by shard, merged, encoded; X plays no part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dask_ma.data._shard import Shard

__all__ = ["encode_labels", "merge_labels", "unique_labels_of"]

_SHOWN = 5


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
            _check_labels(block.y, block.index)
            found.append(np.unique(block.y))
    return merge_labels(found)


def _check_labels(y: np.ndarray, index: int) -> None:
    """Refuse labels that cannot be classes."""
    if y.dtype.kind == "f":
        if np.isnan(y).any():
            raise _missing(index)
        if np.any(y != np.floor(y)) or not np.isfinite(y).all():
            raise ValueError(
                "Unknown label type: continuous. Maybe you are trying to fit a "
                "classifier, which expects discrete classes on a regression target "
                f"with continuous values (block {index} of y)."
            )
    elif y.dtype == object:
        _check_objects(y, index)
    elif y.dtype.kind not in "biuUS":
        raise ValueError(
            f"Unknown label type: {y.dtype} in block {index} of y; expected integers, "
            "bool or strings."
        )


def _check_objects(y: np.ndarray, index: int) -> None:
    """Refuse objects other than strings."""
    types = {type(label) for label in y.tolist()}
    if any(label is None or label != label for label in y.tolist()):
        raise _missing(index)
    strings = {kind for kind in types if issubclass(kind, str)}
    if strings and strings != types:
        names = sorted(kind.__name__ for kind in types)
        raise TypeError(
            f"y mixes labels of several types in block {index}: {', '.join(names)}; "
            "give all of them one type, for example with y.astype(str)."
        )
    if not strings and types:
        raise ValueError(
            f"Unknown label type: unknown. Block {index} of y holds objects of type "
            f"{', '.join(sorted(kind.__name__ for kind in types))}; convert y to "
            "integers, bool or strings."
        )


def _missing(index: int) -> ValueError:
    """Error of a missing label."""
    return ValueError(
        f"Input y contains NaN: a label is missing in block {index}. Remove these rows "
        "before fit."
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
    codes = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    return np.where(classes[codes] == y, codes, -1)
