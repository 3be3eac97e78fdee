"""Room for what a rank keeps beside its rows: in memory, or in files of a disk."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import get_worker

from dask_ma import _config
from dask_ma.data._mapped import Pages, mapped_room, residency
from dask_ma.data._stream import persists

__all__ = ["Room", "RoomSettings", "Shelf"]


@dataclass(frozen=True)
class RoomSettings:
    """What is configured about memory and disks, as the client reads it.

    Attributes
    ----------
    persists : bool or None
        Whether everything stays in memory; None where that depends on its size.
    fraction : float
        Part of the memory limit above which it does not.
    folder : str or None
        For files; None for that of the worker, or of temporary files.
    """

    persists: bool | None
    fraction: float
    folder: str | None

    @classmethod
    def configured(cls) -> RoomSettings:
        """The settings of this process."""
        fraction = _config.get_fraction("data.memory-fraction")
        return cls(persists(), fraction, _config.get("data.cache"))


class Room:
    """Where the arrays of a rank lie.

    Parameters
    ----------
    folder : str or None, default=None
        For files; None for that of the worker, or of temporary files.
    on_disk : bool, default=False
        Whether arrays are files that are mapped into memory. The system reads what is
        looked at, and the process hands it back once there is much of it; arrays should
        be gone through in order.
    """

    def __init__(self, folder: str | None = None, *, on_disk: bool = False) -> None:
        self._folder = folder
        self.on_disk = on_disk
        self._mapped: list[weakref.ref[Pages]] = []

    def close(self) -> None:
        """Look no more after files, which go when their arrays do."""
        # Something may keep these for a while, such as the traceback of an error.
        for reference in self._mapped:
            if (pages := reference()) is not None:
                residency.leave(pages)
        self._mapped.clear()

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array of any content.

        Parameters
        ----------
        shape : int or tuple of int
        dtype : dtype

        Returns
        -------
        array : ndarray
            It has its room as long as it is used.

        Raises
        ------
        OSError
            If the disk has no room for it.
        """
        shape = (shape,) if isinstance(shape, int) else shape
        if not self.on_disk or not all(shape):
            return np.empty(shape, dtype)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        pages = mapped_room(self._place(), size)
        self._mapped.append(weakref.ref(pages))
        return np.frombuffer(pages, dtype).reshape(shape)

    def pack(self, arrays: Sequence[np.ndarray], dtype: Any) -> list[np.ndarray]:
        """Copies of arrays of one dimension, which lie behind one another.

        Parameters
        ----------
        arrays : sequence of ndarray of shape (n,)
        dtype : dtype

        Returns
        -------
        copies : list of ndarray of shape (n,)
        """
        return _packed(arrays, dtype, self.empty)

    def _place(self) -> Path:
        """Folder of the files."""
        if self._folder is not None:
            return Path(self._folder)
        try:
            return Path(get_worker().local_directory)
        except ValueError:  # no worker
            return Path(tempfile.gettempdir())


class Shelf:
    """Room for arrays of one dimension and type that come one after the other.

    In memory they lie behind one another. Had each a place of its own, as those have
    that come when there is no more room, what is needed for a while beside each of them
    would leave gaps between them.

    Parameters
    ----------
    room : Room
        Where they lie.
    most : int
        About the elements of all arrays: memory is taken where these are written.
    """

    def __init__(self, room: Room, most: int) -> None:
        self._room, self._most = room, most
        self._whole: np.ndarray | None = None
        self._end = 0

    def empty(self, n: int, dtype: Any) -> np.ndarray:
        """An array of `n` elements of any content.

        Parameters
        ----------
        n : int
        dtype : dtype

        Returns
        -------
        array : ndarray of shape (n,)
        """
        if self._room.on_disk:
            return self._room.empty(n, dtype)
        if self._whole is None:
            self._whole = self._room.empty(self._most, dtype)
        if self._end + n > self._most or self._whole.dtype != dtype:
            return self._room.empty(n, dtype)
        self._end += n
        return self._whole[self._end - n : self._end]

    def pack(self, arrays: Sequence[np.ndarray], dtype: Any) -> list[np.ndarray]:
        """Copies of arrays, as :meth:`Room.pack` makes them.

        Parameters
        ----------
        arrays : sequence of ndarray of shape (n,)
        dtype : dtype

        Returns
        -------
        copies : list of ndarray of shape (n,)
        """
        return _packed(arrays, dtype, self.empty)


def _packed(
    arrays: Sequence[np.ndarray],
    dtype: Any,
    empty: Callable[[int, Any], np.ndarray],
) -> list[np.ndarray]:
    """Copies of arrays that lie behind one another in one that is made for them."""
    ends = np.cumsum([0, *map(len, arrays)]).tolist()
    whole = empty(ends[-1], dtype)
    if arrays:
        np.concatenate(arrays, out=whole, casting="same_kind")
    return [whole[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)]
