"""Arrays that are used again and again."""

from __future__ import annotations

from typing import Any

import numpy as np


class KeptArrays:
    """Memory for arrays of some thousand elements, by their names.

    Memory that is new has to be fetched page by page, which takes as long as many an
    operation on it. Workers of Dask give theirs back as soon as it is free.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, np.dtype], np.ndarray] = {}

    def __call__(self, name: str, size: int, dtype: Any) -> np.ndarray:
        """An array that may have any content; the same at the next call.

        Parameters
        ----------
        name : str
            Arrays of different names, or types, do not share memory.
        size : int
            Number of elements.
        dtype : dtype or type

        Returns
        -------
        array : ndarray of shape (size,)
        """
        key = name, np.dtype(dtype)
        if key not in self._arrays or len(self._arrays[key]) < size:
            self._arrays[key] = np.empty(size, dtype=dtype)
        return self._arrays[key][:size]
