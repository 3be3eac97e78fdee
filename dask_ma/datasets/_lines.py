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
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import fsspec
from dask.utils import parse_bytes

# Bytes parsed at a time: the arrays made of them then fit into the processor's cache,
# which doubles the speed.
PIECE = 512 * 1024
_BLANK = b" \t\r\n"
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)
_SHOWN = 60  # characters of a bad line that an error repeats


class TextFile(NamedTuple):
    """A file that any worker can open; small, so that it travels inside each task.

    Attributes
    ----------
    path : str
        As the user gave it.
    compression : str or None
        As fsspec names it.
    storage_options : dict
        For the file system.
    """

    path: str
    compression: str | None
    storage_options: dict[str, Any]

    def file_system(self) -> tuple[Any, str]:
        """The file system, and the path in it."""
        return fsspec.core.url_to_fs(self.path, **self.storage_options)

    def open(self) -> fsspec.core.OpenFile:
        """The file, decompressed, as a context."""
        return fsspec.core.OpenFile(*self.file_system(), "rb", self.compression)

    def info(self) -> tuple[int | None, str]:
        """Bytes if known and not compressed, and a text that changes with the file.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        """
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
    """Reads whole lines of a file, from an offset on.

    Parameters
    ----------
    file : TextFile
        What to read.
    offset : int, default=0
        Byte at which a line begins, in the decompressed file.

    Attributes
    ----------
    offset : int
        Where the next line begins.
    """

    def __init__(self, file: TextFile, offset: int = 0) -> None:
        self.offset = offset
        self._file = file
        self._rest = b""
        opened = file.open()
        # Closes the file also where a reader that waits for its next task is dropped.
        self.close = weakref.finalize(self, opened.close)
        self._handle = opened.open()
        if offset:
            self._try(self._handle.seek, offset)

    def _try(self, method: Callable[[int], Any], argument: int) -> Any:
        """Call a method of the open file."""
        try:
            return method(argument)
        except _DAMAGED as error:
            raise ValueError(
                f"{self._file.path}: cannot be decompressed as {self._file.compression}"
                f" after byte {self.offset + len(self._rest)}: {error}"
            ) from error

    def __enter__(self) -> LineReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, size: int = PIECE) -> bytes:
        """The next lines, each with its newline; nothing at the end of the file.

        Blank lines at the end of the file are left out; others are not.
        """
        data = self._rest
        while not (cut := _end_of_lines(data)):
            # In growing steps: a long line is not copied once for every piece of it.
            more = self._try(self._handle.read, max(size, len(data)))
            if not more:
                data = data.rstrip(_BLANK)
                data += b"\n" if data else b""
                cut = len(data)
                break
            data += more
        self._rest = data[cut:]
        self.offset += cut
        return data[:cut]

    def put_back(self, data: bytes) -> None:
        """Let `data`, the end of what was read last, be read again."""
        self._rest = data + self._rest
        self.offset -= len(data)

    def skip_line(self) -> None:
        """Go to the beginning of the next line, from anywhere in a line."""
        while (end := self._rest.find(b"\n") + 1) == 0:
            self.offset += len(self._rest)
            self._rest = self._try(self._handle.read, PIECE)
            if not self._rest:
                return
        self._rest = self._rest[end:]
        self.offset += end


def _end_of_lines(data: bytes) -> int:
    """Where the last whole line ends, not counting blank lines after it.

    Zero means that nobody can tell before more is read.
    """
    end = len(data.rstrip(_BLANK))
    newline = data.find(b"\n", end)
    return newline + 1 if end and newline >= 0 else data.rfind(b"\n", 0, end) + 1


class Position:
    """A place in a file that is read by one task after the other.

    It carries the open reader from task to task. Where that is not possible, since the
    next task runs in another process or for the second time, the file is opened again
    and skipped up to the place.

    Parameters
    ----------
    file : TextFile
        What is read.
    offset : int, default=0
        Where the next line begins.
    n_read : int, default=0
        Entries before the place.
    reader : LineReader, default=None
        Stands at the place.
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
        self.n_read = n_read
        self._readers = [] if reader is None else [reader]

    def __reduce__(self) -> tuple[Any, ...]:
        return Position, (self.file, self.offset, self.n_read)

    def reader(self) -> LineReader:
        """A reader at the place, for the caller alone."""
        try:
            return self._readers.pop()
        except IndexError:
            return LineReader(self.file, self.offset)


def raise_first_problem(
    file: TextFile, offset: int, find_problem: Callable[[bytes], str | None]
) -> NoReturn:
    """Raise what is wrong with the first bad line.

    Parameters
    ----------
    file : TextFile
        What was read.
    offset : int
        Beginning of a line from which on to search.
    find_problem : callable
        Gets each line in turn, and returns what is wrong with it, or None.

    Raises
    ------
    ValueError
        Always, with the path and the number of the line.
    """
    index = 0
    with LineReader(file, offset) as reader:
        while data := reader.read():
            for line in data.split(b"\n")[:-1]:
                index += 1
                if problem := find_problem(line):
                    raise _bad_line(file, _count_lines(file, offset) + index, problem)
    raise ValueError(f"{file.path}: changed while it was being read")


def _bad_line(file: TextFile, number: int, problem: str) -> ValueError:
    return ValueError(f"{file.path}, line {number}: {problem}")


def _count_lines(file: TextFile, offset: int) -> int:
    """Lines before an offset."""
    n_lines = 0
    with file.open() as handle:
        while offset and (data := handle.read(min(PIECE, offset))):
            n_lines += data.count(b"\n")
            offset -= len(data)
    return n_lines


def quote(line: bytes) -> str:
    """A line as an error shows it."""
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
