"""Tasks that read the bag-of-words format: blocks of documents."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.datasets._corpus import block_of_counts, index_dtype, largest_count
from dask_ma.datasets._lines import (
    LineReader,
    Position,
    TextFile,
    quote,
    raise_first_problem,
)
from dask_ma.datasets._numbers import parse_table

# No more digits than the parser takes.
ENTRY = re.compile(rb"[ \t]*(\d{1,18})[ \t]+(\d{1,18})[ \t]+(\d{1,18})[ \t\r]*")


class Header(NamedTuple):
    """The first three lines, and where the fourth one begins."""

    n_documents: int
    n_words: int
    n_entries: int
    end: int


class Cut(NamedTuple):
    """The lines of a block: those of documents ``first + 1`` to ``last``."""

    first: int
    last: int
    start: int  # byte at which a line of a document from `first` on begins
    stop: int | None  # byte at which a line of document `last` begins, if known


class _Entries(NamedTuple):
    """Lines of some documents."""

    per_document: np.ndarray
    words: list[np.ndarray]
    counts: list[np.ndarray]


def read_block(
    file: TextFile, header: Header, cut: Cut, dtype: Any, is_all: bool
) -> sparse.csr_matrix:
    """A block that is read by itself."""
    with LineReader(file, cut.start) as reader:
        entries = _read_documents(reader, file, header, cut, dtype)
    if is_all:
        _check_total(file, header, int(entries.per_document.sum()))
    return _to_block(entries, file, header, cut)


def read_next(
    position: Position, header: Header, cut: Cut, dtype: Any
) -> tuple[sparse.csr_matrix, Position]:
    """A block of a chain, and where the next one begins."""
    file = position.file
    cut = cut._replace(start=position.offset)
    with position.reading() as reader:
        entries = _read_documents(reader, file, header, cut, dtype)
        n_read = position.n_read + int(entries.per_document.sum())
        if cut.last == header.n_documents:
            _check_total(file, header, n_read)
        block = _to_block(entries, file, header, cut)
        return block, Position(file, reader.offset, n_read, reader)


def _read_documents(
    reader: LineReader, file: TextFile, header: Header, cut: Cut, dtype: Any
) -> _Entries:
    """The lines of a block, checked; what follows is put back."""
    largest = largest_count(dtype)
    columns = index_dtype(header.n_words)
    found = _Entries(
        np.zeros(cut.last - cut.first, np.int64),
        [np.empty(0, columns)],
        [np.empty(0, dtype)],
    )
    previous = max(cut.first, 1)
    size = None if cut.stop is None else cut.stop - cut.start
    for _, data in reader.pieces(size=size):
        table = _parse_table(data, header, previous, largest)
        if table is None:
            problem = _LineCheck(header, cut.first, largest)
            raise_first_problem(file, cut.start, problem)
        documents, words, counts = table
        begin, end = np.searchsorted(documents, [cut.first, cut.last], side="right")
        found.per_document[:] += np.bincount(
            documents[begin:end] - cut.first - 1, minlength=len(found.per_document)
        )
        found.words.append((words[begin:end] - 1).astype(columns))
        found.counts.append(counts[begin:end].astype(dtype))
        previous = documents[-1]
        # At `stop` there is a line of the last document. If a later one comes before
        # it, the file is not sorted, which shows when that line is read.
        if previous > cut.last and reader.offset > (cut.stop or 0):
            reader.put_back(b"\n".join(data.split(b"\n")[end:]))
            break
    return found


def _parse_table(
    data: bytes, header: Header, previous: int, largest: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Documents, words and counts of some lines; None if there is an error in them."""
    table = parse_table(data, 3)
    if table is None:
        return None
    documents, words, counts = table.T
    right = (
        documents[0] >= previous
        and (np.diff(documents) >= 0).all()
        and documents[-1] <= header.n_documents
        and words.min() >= 1
        and words.max() <= header.n_words
        and counts.min() >= 1
        and counts.max() <= largest
    )
    return (documents, words, counts) if right else None


def _to_block(
    entries: _Entries, file: TextFile, header: Header, cut: Cut
) -> sparse.csr_matrix:
    """The rows of a block."""
    words, counts = np.concatenate(entries.words), np.concatenate(entries.counts)
    block = block_of_counts(entries.per_document, words, counts, header.n_words)
    if block is None:
        problem = _LineCheck(header, cut.first, largest_count(counts.dtype))
        raise_first_problem(file, cut.start, problem)
    return block


def _check_total(file: TextFile, header: Header, n_entries: int) -> None:
    """Compare the lines with the header."""
    if n_entries != header.n_entries:
        raise ValueError(
            f"{file.path}, line 3: says that there are {header.n_entries} entries, "
            f"but {n_entries} follow"
        )


class _LineCheck:
    """Tells what is wrong with a line, after all those before it in the block."""

    def __init__(self, header: Header, first: int, largest: int) -> None:
        self._header = header
        self._previous = first
        self._largest = largest
        self._words: set[int] = set()

    def __call__(self, line: bytes) -> str | None:
        entry = ENTRY.fullmatch(line)
        if entry is None:
            return f"expected three integers (document word count), got {quote(line)}"
        document, word, count = map(int, entry.groups())
        for what, number, most in (
            ("document", document, self._header.n_documents),
            ("word", word, self._header.n_words),
            ("count", count, self._largest),
        ):
            if not 1 <= number <= most:
                return f"expected a {what} from 1 to {most}, got {number}"
        if document < self._previous:
            return (
                f"expected the documents to be sorted, got {document} after "
                f"{self._previous}"
            )
        if document > self._previous:
            self._words.clear()
        self._previous = document
        if word in self._words:
            return f"expected each word once, got word {word} again"
        self._words.add(word)
        return None
