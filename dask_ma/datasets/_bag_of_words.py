"""Corpora in the bag-of-words format of the UCI repository.

Three lines with the numbers of documents, words and entries, then one line
``document word count`` for each entry, sorted by document, ids from 1.

A block is a range of documents. In a file that is not compressed the ranges follow from
a look at the line at every multiple of the block size: since the documents are sorted,
two such lines tell which documents lie in between. A block reads on over its end to
complete its last document, and the next one skips what belongs to that.

A compressed file is read by a chain of tasks, each of which goes on where the one
before has stopped, and its ranges hold equal numbers of documents.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import dask
import numpy as np
from dask.base import tokenize

from dask_ma.datasets._bag_of_words_blocks import (
    ENTRY,
    Cut,
    Header,
    read_block,
    read_next,
)
from dask_ma.datasets._corpus import (
    Corpus,
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
    text_file,
)

_HEADER = ("documents", "words", "entries")
_PROBE = 128  # bytes; more than a line takes
_NUMBER = re.compile(rb"[ \t]*(\d{1,18})[ \t\r]*")


def read_bag_of_words(
    path: str | os.PathLike[str],
    vocabulary: str | os.PathLike[str] | Sequence[str] | None = None,
    *,
    blocksize: int | str | None = "64 MiB",
    compression: str | None = "infer",
    dtype: Any = np.int32,
    storage_options: dict[str, Any] | None = None,
) -> Corpus:
    """Read a corpus in the UCI bag-of-words format, block by block.

    This is the format of ``docword.nytimes.txt.gz``: three lines with the numbers of
    documents, words and entries, then a line ``document word count`` for each entry,
    sorted by document, with ids from 1.

    The caller reads the header and, of a file that is not compressed, one line per
    block. The rest is read on the workers when the result is computed. A document is
    never cut, and one without words is an empty row. All chunk sizes are known.

    Parameters
    ----------
    path : str or path
        On any file system that fsspec knows and the workers can reach.
    vocabulary : path or sequence of str, default=None
        The words: a file with one per line, or a sequence. They only name the columns.
    blocksize : int, str or None, default="64 MiB"
        Decompressed bytes of the file per block, roughly. None makes one block.
    compression : str or None, default="infer"
        As fsspec names it; "infer" goes by the end of `path`. Blocks of a compressed
        file are read one after the other, in a single pass, and hold equal numbers of
        documents; the others are read in parallel. All the blocks of a compressed file
        may be read before the first one is used: decompress a file whose counts, at 8
        bytes each, do not fit into memory.
    dtype : dtype, default=int32
        Of the counts: integers or floats.
    storage_options : dict, default=None
        For the file system.

    Returns
    -------
    Corpus
        ``X``, a dask.array of shape (n_documents, n_words) whose blocks are
        ``csr_matrix`` with sorted columns, and ``vocabulary``, an ndarray of the words,
        or None.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the header is wrong, or `vocabulary` does not have as many words as it says.
        When the result is computed: for a line that does not hold three integers, ids
        out of range, a count below 1 or too large for `dtype`, documents that are not
        sorted, or a word that a document has twice, with the path and the line. The
        number of entries is compared with the header where one task gets to see them
        all: in a compressed file, with its last block, and in a file of one block.

    See Also
    --------
    read_lda_c : The format of LDA-C.
    vectorize_text : From text.

    Examples
    --------
    >>> import fsspec
    >>> from dask_ma.datasets import read_bag_of_words
    >>> with fsspec.open("memory://docword.txt", "w") as file:
    ...     _ = file.write("2\\n3\\n3\\n1 1 4\\n1 3 1\\n2 2 5\\n")
    >>> corpus = read_bag_of_words("memory://docword.txt", ["ant", "bee", "cat"])
    >>> corpus.X.compute().toarray()
    array([[4, 0, 1],
           [0, 5, 0]], dtype=int32)
    """
    file = text_file(path, compression, storage_options)
    size, version = file.info()
    blocksize = parse_blocksize(blocksize)
    largest_count(dtype)
    header = _read_header(file)
    words = read_vocabulary(vocabulary, storage_options)
    if words is not None and len(words) != header.n_words:
        raise ValueError(
            f"vocabulary has {len(words)} words, but {file.path}, line 2, says "
            f"{header.n_words}"
        )
    token = tokenize(file, version, header, blocksize, np.dtype(dtype))
    if size is None:
        cuts = _equal_cuts(header, blocksize)
        blocks = _chained_blocks(file, header, cuts, dtype, token)
    else:
        cuts = _cuts_at_lines(file, header, size, blocksize)
        blocks = _parallel_blocks(file, header, cuts, dtype, token)
    lengths = [cut.last - cut.first for cut in cuts]
    return Corpus(stack_blocks(blocks, lengths, header.n_words, dtype), words)


# -- Before anything is computed -----------------------------------------------------


def _read_header(file: TextFile) -> Header:
    """The first three lines."""
    with LineReader(file) as reader:
        lines = [reader.read_line().rstrip(b"\n") for _ in _HEADER]
        end = reader.offset
    numbers = []
    for index, (what, line) in enumerate(zip(_HEADER, lines, strict=True)):
        found = _NUMBER.fullmatch(line)
        lowest = 0 if what == "entries" else 1
        if not found or int(found[1]) < lowest:
            raise ValueError(
                f"{file.path}, line {index + 1}: expected the number of {what}, "
                f"at least {lowest}, got {quote(line)}"
            )
        numbers.append(int(found[1]))
    n_documents, n_words, n_entries = numbers
    return Header(n_documents, n_words, n_entries, end)


def _equal_cuts(header: Header, blocksize: int | None) -> list[Cut]:
    """Equal numbers of documents, which take about `blocksize` bytes."""
    line = len(f"{header.n_documents} {header.n_words} 1\n")
    n_blocks = -(-header.n_entries * line // blocksize) if blocksize else 1
    step = -(-header.n_documents // max(n_blocks, 1))
    firsts = range(0, header.n_documents, step)
    return [
        Cut(first, min(first + step, header.n_documents), header.end, None)
        for first in firsts
    ]


def _cuts_at_lines(
    file: TextFile, header: Header, size: int, blocksize: int | None
) -> list[Cut]:
    """Documents whose lines begin at multiples of `blocksize`."""
    starts, firsts = [header.end], [0]
    probes = range(header.end + blocksize, size, blocksize) if blocksize else range(0)
    for start, document in _probe(file, probes):
        # Anything else is the middle of a long document, or an error, which the block
        # that goes on over this place will find.
        if firsts[-1] < document < header.n_documents:
            starts.append(start)
            firsts.append(document)
    stops = [*starts[1:], None]
    lasts = [*firsts[1:], header.n_documents]
    return [Cut(*cut) for cut in zip(firsts, lasts, starts, stops, strict=True)]


def _probe(file: TextFile, offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Beginning and document of the first line after each offset."""
    fs, root = file.file_system()
    starts = list(offsets)
    stops = [start + _PROBE for start in starts]
    texts = fs.cat_ranges([root] * len(starts), starts, stops, on_error="raise")
    found = []
    for offset, text in zip(starts, texts, strict=True):
        begin = text.find(b"\n") + 1
        end = text.find(b"\n", begin)
        entry = ENTRY.fullmatch(text[begin:end]) if begin and end > 0 else None
        if entry:
            found.append((offset + begin, int(entry[1])))
    return found


def _parallel_blocks(
    file: TextFile, header: Header, cuts: list[Cut], dtype: Any, token: str
) -> list[Any]:
    """Delayed blocks of a file that can be read from anywhere."""
    read = dask.delayed(read_block, pure=True)
    single = len(cuts) == 1
    return [
        read(
            file, header, cut, dtype, single, dask_key_name=f"bag-of-words-{token}-{i}"
        )
        for i, cut in enumerate(cuts)
    ]


def _chained_blocks(
    file: TextFile, header: Header, cuts: list[Cut], dtype: Any, token: str
) -> list[Any]:
    """Delayed blocks of a file that is read from the beginning to the end."""
    read = dask.delayed(read_next, nout=2, pure=True)
    position = Position(file, header.end)
    blocks = []
    for i, cut in enumerate(cuts):
        name = f"bag-of-words-chain-{token}-{i}"
        block, position = read(position, header, cut, dtype, dask_key_name=name)
        blocks.append(block)
    return blocks
