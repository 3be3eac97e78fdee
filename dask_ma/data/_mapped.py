"""Rows in files of the local disk, mapped into memory where they are used.

A rank that maps its blocks needs no memory for them: the system reads what is looked
at, and drops it again. What has been looked at counts as memory of the process as long
as it is mapped, also for the limit of a Dask worker, so pages are handed back once
there are many.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse

from dask_ma import _config
from dask_ma.data._ahead import reader, reads_far
from dask_ma.data._usage import spare_memory

__all__ = ["ask_for", "hand_back", "is_on_disk", "read_ahead"]

SPARSE, DENSE = ("data", "indices", "indptr"), ("rows",)
_LOOK = 0.02  # seconds between looks at how much is mapped
_AHEAD = 64 * 2**20  # bytes that the system reads before they are looked at
# Bytes that it is asked for at a time. Of more Linux reads only as much as it is set to
# read ahead of files, which is seldom less than this.
_ASKED = 128 * 2**10
Item = TypeVar("Item")
Like = tuple[tuple[int, ...], np.dtype]


def checksum(array: np.ndarray) -> int:
    """CRC-32 of the bytes of a contiguous array."""
    return zlib.crc32(array.reshape(-1).view(np.uint8).data)


@dataclass(frozen=True)
class CachedRows:
    """Rows in files of this host.

    Attributes
    ----------
    folder : str
        Where the files are.
    shape : tuple of int
    dtype : numpy.dtype
    is_csr : bool
        Whether they are a CSR, else an ndarray.
    nbytes : int
        Of all arrays.
    checksums : dict of str to int
        CRC-32 of the bytes of each array.
    arrays : dict of str to tuple
        Shape and type of each array.
    """

    folder: str
    shape: tuple[int, int]
    dtype: np.dtype
    is_csr: bool
    nbytes: int
    checksums: dict[str, int]
    arrays: dict[str, Like]

    @property
    def ndim(self) -> int:
        """Two, as of every block of X."""
        return 2

    def open(self) -> Any:
        """The rows, mapped; nobody can write to them.

        Returns
        -------
        rows : ndarray or csr_array of shape (n_rows, n_features)

        Raises
        ------
        OSError
            If a file is missing, or holds other bytes than were written.
        """
        arrays = [self._map(name) for name in (SPARSE if self.is_csr else DENSE)]
        if not self.is_csr:
            return arrays[0]
        return scipy.sparse.csr_array(tuple(arrays), shape=self.shape)

    def _map(self, name: str) -> np.ndarray:
        path = Path(self.folder, f"{name}.npy")
        try:
            array, pages = _mapped(path, self.arrays[name])
        except (OSError, ValueError) as error:
            raise OSError(
                f"the cached rows {path} cannot be read: {error}; files of the cache "
                "must stay until the fit has ended (dask-ma.data.cache)"
            ) from error
        if checksum(array) != self.checksums[name]:
            raise OSError(
                f"the cached rows {path} are not those that were written; something "
                "else writes there, or the disk is faulty (dask-ma.data.cache)"
            )
        _drop(pages)
        return array


class Pages(mmap.mmap):
    """A map of a file of ours; what others have mapped may hold changes of theirs.

    Attributes
    ----------
    path : Path or None
        The file, where it is best read by a thread; None for others.
    """

    path: Path | None = None


def _mapped(path: Path, like: Like) -> tuple[np.ndarray, Pages | None]:
    """The array in a ``.npy`` file, and the map that it lies in."""
    # The header is not read: NumPy has Python parse it, which several threads must not
    # do at a time where CPython is 3.11 (SystemError: AST constructor recursion depth).
    shape, dtype = like
    size = int(np.prod(shape))
    if not size:
        return np.empty(shape, dtype), None
    with path.open("rb") as file:
        pages = Pages(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = len(pages) - size * dtype.itemsize
    if start < 0:
        raise ValueError(f"it has {len(pages)} bytes, too few for {size} of {dtype}")
    if reads_far(path):
        pages.path = path
    residency.add(pages, path)
    return np.frombuffer(pages, dtype, size, start).reshape(shape), pages


def mapped_room(folder: Path, size: int) -> Pages:
    """A file of any content that nobody else sees, nor has to remove.

    Parameters
    ----------
    folder : Path
        On the disk that is meant; made if it is not there.
    size : int
        Bytes, at least 1.

    Returns
    -------
    pages : Pages
        The file has no name, and goes when they do. They are looked after until then,
        or until ``residency.leave``.

    Raises
    ------
    OSError
        If there is no room for it. All of it is taken at once: a disk that becomes
        full while an array is written to would end the process.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            pages = Pages(file.fileno(), size)
    except OSError as error:
        raise OSError(
            f"{size} bytes cannot be had in {folder}: {error}; make room there, or "
            "choose another disk by dask-ma.data.cache"
        ) from error
    residency.add(pages, folder / "unnamed")
    return pages


def hand_back(X: Any) -> None:
    """Take rows from a disk out of this process's memory, until they are looked at.

    To be called after work on single rows, of which each brings in its neighbours.

    Parameters
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
        Rows of a block; those that are in memory stay there, and so do those that the
        user has mapped.
    """
    for _, owner in _owned(X):
        _drop(owner)


def read_ahead(
    items: Iterable[Item],
    rows_of: Callable[[Item], Any] = lambda item: item,
    *,
    n_together: int = 0,
) -> Iterator[Item]:
    """Go over blocks while the system reads from the disk those that come next.

    Parameters
    ----------
    items : iterable of object
        Blocks.
    rows_of : callable, optional
        ``rows_of(item)`` are the rows of a block, an ndarray or a CSR; by default the
        item itself. Those in memory are passed on.
    n_together : int, default=0
        Bytes that are looked at one after the other without work in between: while
        that goes on with some, the next ones are read.

    Yields
    ------
    item : object
        The same, in the same order. What is asked for ahead of it are 64 MiB and
        `n_together`, or one block, which the system keeps and not the process.
    """
    waiting: deque[tuple[Item, int]] = deque()
    n_ahead, most = 0, _AHEAD + n_together
    for item in items:
        n_ahead += (size := ask_for(rows_of(item)))
        waiting.append((item, size))
        del item  # or the last one would be kept
        while waiting and (not size or (n_ahead > most and len(waiting) > 1)):
            first, of_first = waiting.popleft()
            n_ahead -= of_first
            yield first
            del first
    while waiting:
        yield waiting.popleft()[0]


def ask_for(X: Any) -> int:
    """Have the system read rows from the disk, without waiting for it.

    Parameters
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
        Rows of a block.

    Returns
    -------
    n_bytes : int
        What they take there; 0 where they are in memory.
    """
    n_bytes = 0
    for array, owner in _owned(X):
        if isinstance(owner, Pages) and hasattr(owner, "madvise"):
            # The map may be that of more rows.
            begin = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
            end = begin + array.nbytes
            # Of a small part another thread would take longer than reading it.
            is_large = array.nbytes >= _ASKED and not reader.is_refused
            if owner.path is not None and is_large:
                reader.ask(owner.path, begin, end)
            else:
                _advise(owner, begin, end)
            n_bytes += array.nbytes
    return n_bytes


def _advise(pages: Pages, begin: int, end: int) -> None:
    """Ask for a part of a map from here."""
    for start in range(begin - begin % mmap.PAGESIZE, end, _ASKED):
        pages.madvise(mmap.MADV_WILLNEED, start, min(_ASKED, end - start))


def is_on_disk(X: Any) -> bool:
    """Whether rows are read from a cache on a disk.

    Parameters
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
        Rows of a block.
    """
    return any(isinstance(owner, Pages) for _, owner in _owned(X))


def _owned(X: Any) -> Iterator[tuple[np.ndarray, Any]]:
    """The arrays of some rows, with what their memory belongs to."""
    for array in (X.data, X.indices, X.indptr) if scipy.sparse.issparse(X) else (X,):
        owner = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        yield array, owner.obj if isinstance(owner, memoryview) else owner


def _drop(pages: Any) -> None:
    """Have the system drop what this process has of a map, or keep it by itself."""
    if isinstance(pages, Pages) and hasattr(pages, "madvise"):
        pages.madvise(mmap.MADV_DONTNEED)


class _Residency:
    """Hands pages of mapped files back to the system once there are many."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._maps: WeakKeyDictionary[Pages, Path] = WeakKeyDictionary()
        self._limit = 0
        self._thread: threading.Thread | None = None

    def add(self, pages: Pages, path: Path) -> None:
        """Look after a map of a file as long as it is used."""
        others = _mapped_bytes()  # such as libraries: nobody has looked at the rows yet
        if others is None or not hasattr(pages, "madvise"):
            return  # no other system than Linux tells how much is mapped
        with self._lock:
            self._maps[pages] = path
            self._limit = spare_memory(_config.get_bytes("data.mapped-limit"))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch,
                    args=(others,),
                    name="dask_ma-pages",
                    daemon=True,
                )
                self._thread.start()

    def forget(self, folder: Path) -> None:
        """Look no more after files in a folder; errors may keep arrays for long."""
        with self._lock:
            for pages, path in list(self._maps.items()):
                if folder in path.parents:
                    del self._maps[pages]

    def leave(self, pages: Pages) -> None:
        """Look no more after a map."""
        with self._lock:
            self._maps.pop(pages, None)

    def _watch(self, others: int) -> None:
        while self._is_needed():
            time.sleep(_LOOK)
            mapped = _mapped_bytes() or 0
            # Rows that were being looked at when this began are none of the others.
            others = min(others, mapped)
            if mapped - others > self._limit:
                self._drop_all()

    def _is_needed(self) -> bool:
        """Whether anything is mapped; otherwise the thread ends."""
        with self._lock:
            if not self._maps:
                self._thread = None
            return self._thread is not None

    def _drop_all(self) -> None:
        # In a call of its own, after which nothing here keeps the maps.
        with self._lock:
            maps = list(self._maps)
        for pages in maps:
            _drop(pages)


residency = _Residency()


def _mapped_bytes() -> int | None:
    """Bytes of files that this process has in memory; None if nobody tells."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except OSError:
        return None
    return int(fields[2]) * os.sysconf("SC_PAGE_SIZE")
