"""Whole lines of files, piece by piece, so that no file is in memory as a whole.

Pieces are parsed at once. Where that fails, the lines are looked at one by one, from
the start of the block, to find the one to blame.
"""

from __future__ import annotations

import errno
import gzip
import os
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import fsspec
from dask.utils import parse_bytes

PIECE = 512 * 1024  # bytes parsed at a time; the arrays made of them stay in the cache
_BLANK = b" \t\r\n"
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)
_SHOWN = 60  # characters of a bad line that an error repeats


class TextFile(NamedTuple):
    """A file that any worker can open; small, so that it travels inside each task."""

    path: str  # as the user gave it
    compression: str | None  # as fsspec names it
    storage_options: dict[str, Any]

    def file_system(self) -> tuple[Any, str]:
        """The file system, and the path in it."""
        return fsspec.core.url_to_fs(self.path, **self.storage_options)

    def open(self) -> fsspec.core.OpenFile:
        """The file, decompressed, as a context."""
        return fsspec.core.OpenFile(*self.file_system(), "rb", self.compression)

    def info(self) -> tuple[int | None, str]:
        """Bytes if known and not compressed, and a text that changes with the file."""
        fs, root = self.file_system()
        try:
            size = fs.info(root)["size"]
        except FileNotFoundError as error:
            text = os.strerror(errno.ENOENT)
            raise FileNotFoundError(errno.ENOENT, text, self.path) from error
        return None if self.compression else size, str(fs.ukey(root))


def text_file(
    path: str | os.PathLike[str],
    compression: str | None,
    storage_options: dict[str, Any] | None,
) -> TextFile:
    """A file whose compression is definite."""
    file = TextFile(os.fspath(path), None, dict(storage_options or {}))
    _, root = file.file_system()
    found = fsspec.core.get_compression(root, compression)
    return file._replace(compression=found)


def parse_blocksize(blocksize: int | str | None) -> int | None:
    """Bytes of a block; None for a whole file."""
    size = None if blocksize is None else int(parse_bytes(blocksize))
    if size is not None and size < 1:
        raise ValueError(f"blocksize must be at least 1 byte, got {blocksize!r}")
    return size


class LineReader:
    """Reads whole lines of a file, from the first that begins at `offset` or later."""

    def __init__(self, file: TextFile, offset: int = 0) -> None:
        self._file = file
        self._rest = b""
        opened = file.open()
        # Closes the file also where a reader that waits for its next task is dropped.
        self.close = weakref.finalize(self, opened.close)
        self._handle = opened.open()
        if offset:
            with self._reading():
                self._handle.seek(offset - 1)
                self._handle.readline()

    def __enter__(self) -> LineReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def offset(self) -> int:
        """Byte at which the next line begins, in the decompressed file."""
        return self._handle.tell() - len(self._rest)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Name the file if it is damaged."""
        try:
            yield
        except _DAMAGED as error:
            raise ValueError(
                f"{self._file.path}: cannot be decompressed as {self._file.compression}"
                f" after byte {self._handle.tell()}: {error}"
            ) from error

    def read_line(self) -> bytes:
        """The next line."""
        with self._reading():
            return self._handle.readline()

    def pieces(
        self, stop: int | None = None, size: int | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Lines that begin before `stop`, in pieces: where one begins, and its bytes.

        A piece takes `size` bytes, `PIECE` at most, and the rest of its last line.
        Blank lines at the end of the file are left out; others are not.
        """
        size = min(size or PIECE, PIECE)
        begin = self.offset
        while stop is None or begin < stop:
            # A line that ends right before `stop` is not followed by the next one.
            data = self._read(size if stop is None else min(size, stop - 1 - begin))
            if not data:
                return
            yield begin, data
            begin = self.offset

    def _read(self, size: int) -> bytes:
        """What was put back, or else some bytes and the rest of their last line."""
        data, self._rest = self._rest, b""
        if data:
            return data
        with self._reading():
            data = self._handle.read(size) + self._handle.readline()
            # Whether blank lines end the file shows when more is read.
            while not _ends_in_line(data):
                more = self._handle.read(PIECE) + self._handle.readline()
                if not more:
                    data = data.rstrip(_BLANK)
                    return data + b"\n" if data else b""
                data += more
        return data

    def put_back(self, data: bytes) -> None:
        """Let `data`, the end of the last piece, be read again."""
        self._rest = data


def _ends_in_line(data: bytes) -> bool:
    """Whether the last line is whole and not blank."""
    last = data[data.rfind(b"\n", 0, -1) + 1 :]
    return last.endswith(b"\n") and bool(last.strip(_BLANK))


class Position:
    """A place in a file that is read by one task after the other.

    It carries the open reader from task to task. Where that is not possible, since the
    next task runs in another process or for the second time, the file is opened again
    and skipped up to the place.
    """

    def __init__(
        self,
        file: TextFile,
        offset: int = 0,
        n_read: int = 0,
        reader: LineReader | None = None,
    ) -> None:
        self.file = file
        self.offset = offset
        self.n_read = n_read  # entries before the place
        self._readers = [] if reader is None else [reader]

    def __reduce__(self) -> tuple[Any, ...]:
        return Position, (self.file, self.offset, self.n_read)

    @contextmanager
    def reading(self) -> Iterator[LineReader]:
        """A reader at the place, for the caller alone; closed only after an error."""
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = LineReader(self.file, self.offset)
        try:
            yield reader
        except BaseException:
            reader.close()
            raise


def raise_first_problem(
    file: TextFile, offset: int, find_problem: Callable[[bytes], str | None]
) -> NoReturn:
    """Raise what is wrong with the first bad line from `offset` on, with its place."""
    index = 0
    with LineReader(file, offset) as reader:
        for _, data in reader.pieces():
            for line in data.split(b"\n")[:-1]:
                index += 1
                if problem := find_problem(line):
                    number = _count_lines(file, offset) + index
                    raise ValueError(f"{file.path}, line {number}: {problem}")
    raise ValueError(f"{file.path}: changed while it was being read")


def _count_lines(file: TextFile, offset: int) -> int:
    """Lines before an offset."""
    with LineReader(file) as reader:
        return sum(data.count(b"\n") for _, data in reader.pieces(offset))


def quote(line: bytes) -> str:
    """A line as an error shows it."""
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
