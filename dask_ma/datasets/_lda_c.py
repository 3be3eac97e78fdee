"""Corpora in the format of LDA-C: a line ``n word:count ... word:count`` a document."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import dask
import numpy as np
from dask.base import tokenize
from scipy import sparse

from dask_ma.datasets._corpus import (
    Corpus,
    block_of_counts,
    largest_count,
    read_vocabulary,
    stack_blocks,
)
from dask_ma.datasets._lines import (
    LineReader,
    Position,
    TextFile,
    parse_blocksize,
    quote,
    raise_first_problem,
    text_file,
)
from dask_ma.datasets._numbers import parse_documents

# No more digits than the parser takes.
_LINE = re.compile(rb"[ \t]*(\d{1,18})((?:[ \t]+\d{1,18}:\d{1,18})*)[ \t\r]*")
_ANY_WORD = 2**31 - 1  # number of words while it is not known


class _Cut(NamedTuple):
    """The lines that begin at bytes `start` to ``stop - 1``; None for the rest."""

    start: int
    stop: int | None


class _Found(NamedTuple):
    """What a pass over some lines has found."""

    n_documents: int
    n_words: int  # that they need
    cut: _Cut


def read_lda_c(
    path: str | os.PathLike[str],
    vocabulary: str | os.PathLike[str] | Sequence[str] | None = None,
    *,
    n_features: int | None = None,
    blocksize: int | str | None = "64 MiB",
    compression: str | None = "infer",
    dtype: Any = np.int32,
    storage_options: dict[str, Any] | None = None,
) -> Corpus:
    """Read a corpus in the format of LDA-C, block by block.

    A line ``n word:count ... word:count`` is a document of `n` different words, with
    ids from 0; the line ``0`` is a document without words, an empty row.

    The file is read on the workers when the result is computed. Where that does not
    tell enough in advance, the workers also go over it once in the call: to find the
    number of words, if neither `vocabulary` nor `n_features` is given, and to find the
    blocks of a compressed file. Chunk sizes are known after such a pass and else not;
    ``X.compute_chunk_sizes()`` finds them.

    Parameters
    ----------
    path : str or path
        On any file system that fsspec knows and the workers can reach.
    vocabulary : path or sequence of str, default=None
        The words: a file with one per line, or a sequence.
    n_features : int, default=None
        Number of words. None takes that of `vocabulary`, or else the largest id plus 1.
    blocksize : int, str or None, default="64 MiB"
        Decompressed bytes of the file per block. None makes one block.
    compression : str or None, default="infer"
        As fsspec names it; "infer" goes by the end of `path`. Blocks of a compressed
        file are read one after the other, the others in parallel. All the blocks of a
        compressed file may be read before the first one is used: decompress a file
        whose counts, at 8 bytes each, do not fit into memory.
    dtype : dtype, default=int32
        Of the counts: integers or floats.
    storage_options : dict, default=None
        For the file system.

    Returns
    -------
    Corpus
        ``X``, a dask.array of shape (n_documents, n_features) whose blocks are
        ``csr_matrix`` with sorted columns, and ``vocabulary``, an ndarray of the words,
        or None.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If `n_features` is not the number of words in `vocabulary`, or the file is
        empty. In a pass, or when the result is computed: for a line of another form,
        another number of words than it says, ids out of range, a count below 1 or too
        large for `dtype`, or a word twice in a line, with the path and the line.

    See Also
    --------
    read_bag_of_words : The format of the UCI repository.
    vectorize_text : From text.

    Examples
    --------
    >>> import fsspec
    >>> from dask_ma.datasets import read_lda_c
    >>> with fsspec.open("memory://corpus.dat", "w") as file:
    ...     _ = file.write("2 0:4 2:1\\n1 1:5\\n")
    >>> corpus = read_lda_c("memory://corpus.dat")
    >>> corpus.X.compute().toarray()
    array([[4, 0, 1],
           [0, 5, 0]], dtype=int32)
    """
    file = text_file(path, compression, storage_options)
    size, version = file.info()
    blocksize = parse_blocksize(blocksize)
    largest = largest_count(dtype)
    words = read_vocabulary(vocabulary, storage_options)
    n_words = _number_of_words(n_features, words)
    if size is None:
        found = _pass_over_compressed(file, blocksize, n_words, largest)
    else:
        cuts = _cuts(size, blocksize)
        found = _not_empty(file, [_Found(-1, 0, cut) for cut in cuts])
        if n_words is None:
            found = _pass_in_parallel(file, cuts, largest)
    if n_words is None:
        n_words = max(1, *(part.n_words for part in found))
    token = tokenize(file, version, n_words, blocksize, np.dtype(dtype))
    read = _chained_blocks if size is None else _parallel_blocks
    blocks = read(file, found, n_words, np.dtype(dtype), f"lda-c-{token}")
    lengths = [math.nan if p.n_documents < 0 else p.n_documents for p in found]
    return Corpus(stack_blocks(blocks, lengths, n_words, dtype), words)


# -- Before the result is computed ---------------------------------------------------


def _number_of_words(n_features: int | None, words: np.ndarray | None) -> int | None:
    """The number of columns, None where a pass has to find it."""
    if n_features is None:
        return None if words is None else len(words)
    if n_features < 1:
        raise ValueError(f"n_features must be at least 1, got {n_features}")
    if words is not None and len(words) != n_features:
        raise ValueError(
            f"vocabulary has {len(words)} words, but n_features is {n_features}"
        )
    return int(n_features)


def _cuts(size: int, blocksize: int | None) -> list[_Cut]:
    """Equal ranges of bytes."""
    starts = range(0, size, blocksize or max(size, 1))
    return [_Cut(*cut) for cut in zip_longest(starts, starts[1:])]


def _pass_in_parallel(file: TextFile, cuts: list[_Cut], largest: int) -> list[_Found]:
    """Documents and words of every block; those without documents are left out."""
    look = dask.delayed(_look_over, pure=False)
    found = dask.compute(*[look(file, cut, largest) for cut in cuts])
    return _not_empty(file, [part for part in found if part.n_documents])


def _pass_over_compressed(
    file: TextFile, blocksize: int | None, n_words: int | None, largest: int
) -> list[_Found]:
    """Blocks of a file that can only be read from the beginning."""
    look = dask.delayed(_cut_compressed, pure=False)
    [found] = dask.compute(look(file, blocksize, n_words is None, largest))
    return _not_empty(file, found)


def _not_empty(file: TextFile, found: list[_Found]) -> list[_Found]:
    """Blocks, of which there must be one."""
    if not found:
        raise ValueError(f"{file.path}: is empty, expected a line for each document")
    return found


def _parallel_blocks(
    file: TextFile, found: list[_Found], n_words: int, dtype: np.dtype, name: str
) -> list[Any]:
    """Delayed blocks of a file that can be read from anywhere."""
    read = dask.delayed(_read_block, pure=True)
    return [
        read(file, part.cut, n_words, dtype, dask_key_name=f"{name}-{i}")
        for i, part in enumerate(found)
    ]


def _chained_blocks(
    file: TextFile, found: list[_Found], n_words: int, dtype: np.dtype, name: str
) -> list[Any]:
    """Delayed blocks of a file that is read from the beginning to the end."""
    read = dask.delayed(_read_next, nout=2, pure=True)
    position = Position(file)
    blocks = []
    for i, part in enumerate(found):
        key, stop = f"{name}-chain-{i}", part.cut.stop
        block, position = read(position, stop, n_words, dtype, dask_key_name=key)
        blocks.append(block)
    return blocks


# -- On the workers ------------------------------------------------------------------


def _look_over(file: TextFile, cut: _Cut, largest: int) -> _Found:
    """Documents of a block, and words that they need."""
    n_documents, n_words = 0, 0
    with LineReader(file, cut.start) as reader:
        for begin, data in reader.pieces(cut.stop):
            rows = _parse_lines(file, begin, data, _ANY_WORD, largest)
            n_documents += rows.shape[0]
            n_words = max(n_words, _words_needed(rows))
    return _Found(n_documents, n_words, cut)


def _cut_compressed(
    file: TextFile, blocksize: int | None, find_words: bool, largest: int
) -> list[_Found]:
    """Blocks of whole lines with about `blocksize` bytes each."""
    found: list[_Found] = []
    start, n_documents, n_words = 0, 0, 0
    with LineReader(file) as reader:
        for begin, data in reader.pieces(size=blocksize):
            if blocksize and begin - start >= blocksize:
                found.append(_Found(n_documents, n_words, _Cut(start, begin)))
                start, n_documents = begin, 0
            n_documents += data.count(b"\n")
            if find_words:
                rows = _parse_lines(file, begin, data, _ANY_WORD, largest)
                n_words = max(n_words, _words_needed(rows))
    if n_documents:
        found.append(_Found(n_documents, n_words, _Cut(start, None)))
    return found


def _read_block(
    file: TextFile, cut: _Cut, n_words: int, dtype: np.dtype
) -> sparse.csr_matrix:
    """A block that is read by itself."""
    with LineReader(file, cut.start) as reader:
        return _read_rows(reader, file, cut.stop, n_words, dtype)


def _read_next(
    position: Position, stop: int | None, n_words: int, dtype: np.dtype
) -> tuple[sparse.csr_matrix, Position]:
    """A block of a chain, and where the next one begins."""
    with position.reading() as reader:
        block = _read_rows(reader, position.file, stop, n_words, dtype)
        return block, Position(position.file, reader.offset, reader=reader)


def _read_rows(
    reader: LineReader, file: TextFile, stop: int | None, n_words: int, dtype: np.dtype
) -> sparse.csr_matrix:
    """The documents of a block."""
    largest = largest_count(dtype)
    rows = [sparse.csr_matrix((0, n_words), dtype=dtype)]
    for begin, data in reader.pieces(stop):
        piece = _parse_lines(file, begin, data, n_words, largest)
        rows.append(piece.astype(dtype))
    return sparse.vstack(rows, format="csr")


def _words_needed(rows: sparse.csr_matrix) -> int:
    """One more than the largest word of some documents."""
    return int(rows.indices.max(initial=-1)) + 1


def _parse_lines(
    file: TextFile, begin: int, data: bytes, n_words: int, largest: int
) -> sparse.csr_matrix:
    """Documents in some lines, which begin at a place in the file."""
    parsed = parse_documents(data)
    if parsed is not None:
        lengths, pairs = parsed
        words, counts = pairs.T
        if (
            words.max(initial=-1) < n_words
            and counts.min(initial=1) >= 1
            and counts.max(initial=1) <= largest
        ):
            rows = block_of_counts(lengths, words, counts, n_words)
            if rows is not None:
                return rows
    raise_first_problem(file, begin, lambda line: _problem(line, n_words, largest))


def _problem(line: bytes, n_words: int, largest: int) -> str | None:
    """What is wrong with a line, None if nothing is."""
    found = _LINE.fullmatch(line)
    if found is None:
        return f"expected 'n word:count ... word:count', got {quote(line)}"
    pairs = [pair.split(b":") for pair in found[2].split()]
    if int(found[1]) != len(pairs):
        return f"says that {int(found[1])} words follow, got {len(pairs)}"
    seen = set()
    for word, count in ((int(word), int(count)) for word, count in pairs):
        if word >= n_words:
            return f"expected a word from 0 to {n_words - 1}, got {word}"
        if not 1 <= count <= largest:
            return f"expected a count from 1 to {largest}, got {count}"
        if word in seen:
            return f"expected each word once, got word {word} again"
        seen.add(word)
    return None
