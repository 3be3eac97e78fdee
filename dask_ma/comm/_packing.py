"""Several arrays in one flat array per dtype: a collective moves one message."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np


class Packed(NamedTuple):
    """Arrays laid end to end.

    Attributes
    ----------
    flats : list of ndarray of shape (n,)
        One vector per dtype, in the order in which the dtypes first appear.
    slots : list of (int, int, tuple of int)
        For each array: which vector, where it starts there, and its shape.
    """

    flats: list[np.ndarray]
    slots: list[tuple[int, int, tuple[int, ...]]]


def pack(arrays: Sequence[np.ndarray]) -> Packed:
    """Lay arrays end to end; an array alone in its dtype is not copied."""
    dtypes: list[np.dtype] = []
    groups: list[list[np.ndarray]] = []
    slots = []
    for array in arrays:
        if array.dtype not in dtypes:
            dtypes.append(array.dtype)
            groups.append([])
        which = dtypes.index(array.dtype)
        start = sum(a.size for a in groups[which])
        groups[which].append(array)
        slots.append((which, start, array.shape))
    flats = [
        (
            group[0].reshape(-1)
            if len(group) == 1
            else np.concatenate([a.reshape(-1) for a in group])
        )
        for group in groups
    ]
    return Packed(flats, slots)


def unpack(packed: Packed) -> list[np.ndarray]:
    """Views of the flat vectors in the shapes of the original arrays."""
    return [
        packed.flats[which][start : start + prod(shape)].reshape(shape)
        for which, start, shape in packed.slots
    ]
