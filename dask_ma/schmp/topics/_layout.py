"""The tokens of a rank, laid out for blocks of words that come one after the other.

What there is of a token lies with the others of its block, so a block is worked on by
going through its arrays once. The place of a token in the order of the documents is the
only thing that joins the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.data import Room
from dask_ma.schmp.topics._cells import Cells, ranges
from dask_ma.schmp.topics._documents import Documents, smallest

_CHUNK = 2**17  # tokens that are looked at together


class BlockTokens(NamedTuple):
    """Tokens of a rank that are words of a block, in the order of the documents.

    Attributes
    ----------
    owners : ndarray of int32 of shape (n,)
        Document of each.
    offsets : ndarray of unsigned int of shape (n,)
        Place of each among the tokens of its document.
    words : ndarray of unsigned int of shape (n,)
        Word of each, counted within the block.
    ends : ndarray of int32 of shape (n_words + 1,)
        Where the tokens of each word begin in the order of the words.
    """

    owners: np.ndarray
    offsets: np.ndarray
    words: np.ndarray
    ends: np.ndarray

    def by_word(self) -> np.ndarray:
        """Numbers of the tokens in the order of the words, int32 of shape (n,)."""
        n = len(self.words)
        if not n:
            return np.empty(0, dtype=np.int32)
        # By columns, a row of the tokens has them word by word, and is made by
        # counting: sorting takes several times as long, and twice the memory.
        numbers = np.arange(n, dtype=np.int32)
        ends = np.array([0, n], dtype=np.int32)
        shape = 1, len(self.ends) - 1
        row = sparse.csr_array((numbers, self.words.astype(np.int32), ends), shape)
        by_word: np.ndarray = row.tocsc().data
        return by_word


def tokens_of_blocks(
    documents: Documents,
    blocks: list[np.ndarray],
    n_features: int,
    room: Room | None = None,
) -> Iterator[BlockTokens]:
    """Sort the tokens of a rank by the blocks of their words, one block at a time.

    Parameters
    ----------
    documents : Documents
        With their words, or rows, which are gone through once for each block; twice for
        all if words are on a disk.
    blocks : list of ndarray of int
        Words of each; together all, each once.
    n_features : int
        Size of the vocabulary.
    room : Room or None, default=None
        Where the words lie; None for memory.

    Yields
    ------
    tokens : BlockTokens
    """
    block_of = np.empty(n_features, dtype=np.min_scalar_type(len(blocks)))
    place_of = np.empty(n_features, dtype=smallest(max(map(len, blocks))))
    for number, own in enumerate(blocks):
        block_of[own] = number
        place_of[own] = np.arange(len(own), dtype=place_of.dtype)
    if documents.rows is not None:
        parts = _from_rows(documents, block_of, place_of, len(blocks))
    elif room is not None and room.on_disk:
        parts = _on_disk(documents, block_of, place_of, len(blocks), room)
    else:
        parts = _in_memory(documents, block_of, place_of, len(blocks))
    for own in blocks:
        columns = next(parts)
        counts = np.bincount(columns[-1], minlength=len(own))
        ends = np.append(0, np.cumsum(counts)).astype(np.int32)
        block = BlockTokens(*columns, ends)
        del columns, counts  # that there are not two of each when the next come
        yield block
        del block


_Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


def _in_memory(
    documents: Documents, block_of: np.ndarray, place_of: np.ndarray, n_blocks: int
) -> Iterator[_Columns]:
    """Columns of the tokens of each block, by a look at all for each block."""
    for number in range(n_blocks):
        found = [_columns(documents, 0, documents.words[:0], place_of)]
        for first, here in chunks(documents.words):
            chosen = np.flatnonzero(block_of.take(here) == number)
            found.append(_columns(documents, first, here, place_of, chosen))
        yield _joined(found)


def _from_rows(
    documents: Documents, block_of: np.ndarray, place_of: np.ndarray, n_blocks: int
) -> Iterator[_Columns]:
    """The same from rows of counts, of which some documents are looked at together."""
    rows = documents.rows
    if rows is None:
        raise RuntimeError("the documents have no rows")
    for number in range(n_blocks):
        found = [_columns(documents, 0, documents.words[:0], place_of)]
        for cells in rows.read():
            chosen = np.flatnonzero(block_of.take(cells.words) == number)
            found.append(_tokens_of(cells, chosen, documents, place_of))
        yield _joined(found)


def _tokens_of(
    cells: Cells, chosen: np.ndarray, documents: Documents, place_of: np.ndarray
) -> _Columns:
    """Owners, offsets, and words within the block, of the tokens of some cells."""
    owners, counts = cells.owners.take(chosen), cells.counts.take(chosen)
    starts = documents.starts.take(owners) - documents.starts[cells.first]
    begins = np.cumsum(cells.counts).take(chosen) - counts - starts
    offsets = ranges(begins, counts).astype(documents.offset_dtype)
    words = place_of.take(cells.words.take(chosen))
    return np.repeat(owners, counts), offsets, np.repeat(words, counts)


def _joined(found: list[_Columns]) -> _Columns:
    """Columns of some parts one after the other; the parts are lost."""
    columns = list(zip(*found, strict=True))
    found.clear()
    # One after the other, so that there are never two of all.
    words, offsets, owners = (np.concatenate(columns.pop()) for _ in range(3))
    return owners, offsets, words


def _on_disk(
    documents: Documents,
    block_of: np.ndarray,
    place_of: np.ndarray,
    n_blocks: int,
    room: Room,
) -> Iterator[_Columns]:
    """The same by two looks at all, which takes room for all columns."""
    words = documents.words
    sizes = np.zeros(n_blocks, dtype=np.int64)
    for _, here in chunks(words):
        sizes += np.bincount(block_of.take(here), minlength=n_blocks)
    ends = np.cumsum(sizes)
    types = np.int32, documents.offset_dtype, place_of.dtype
    columns = [room.empty(len(words), dtype) for dtype in types]
    done = ends - sizes
    for first, here in chunks(words):
        of_block = block_of.take(here)
        order = np.argsort(of_block, kind="stable")
        cuts = np.cumsum(np.bincount(of_block, minlength=n_blocks))
        own = _columns(documents, first, here, place_of, order)
        begin = 0
        for number, end in enumerate(cuts.tolist()):
            part = slice(done[number], done[number] + end - begin)
            for column, values in zip(columns, own, strict=True):
                column[part] = values[begin:end]
            done[number], begin = part.stop, end
    for end, size in zip(ends, sizes, strict=True):
        part = slice(end - size, end)
        # Copies: the files are to go with the last block, not with its tokens.
        owners, offsets, own_words = (column[part].copy() for column in columns)
        yield owners, offsets, own_words
        del owners, offsets, own_words


def _columns(
    documents: Documents,
    first: int,
    words: np.ndarray,
    place_of: np.ndarray,
    chosen: Any = slice(None),
) -> _Columns:
    """Owners, offsets, and words within the block, of some tokens of a chunk."""
    starts = documents.starts
    begin, end = np.searchsorted(starts, [first, first + len(words)], side="right") - 1
    here = starts[begin : end + 2].clip(first, first + len(words))
    numbers = np.arange(begin, begin + len(here) - 1, dtype=np.int32)
    owners = np.repeat(numbers, np.diff(here))
    offsets = np.arange(first, first + len(words), dtype=np.int32)
    offsets -= starts[begin : end + 2].astype(np.int32).take(owners - begin)
    found = offsets.astype(documents.offset_dtype)[chosen]
    return owners[chosen], found, place_of.take(words[chosen])


def chunks(words: np.ndarray, least: int = 0) -> Iterator[tuple[int, np.ndarray]]:
    """Words that are looked at together, and the number of the first."""
    size = max(_CHUNK, least)
    for first in range(0, len(words), size):
        yield first, words[first : first + size]


def by_document(
    places: Callable[[int], np.ndarray],
    arrays: Mapping[int, np.ndarray],
    n_tokens: int,
    room: Room,
) -> np.ndarray:
    """What blocks have of their tokens, in the order of the documents.

    Parameters
    ----------
    places : callable
        ``places(number)`` says where the tokens of a block belong, an ndarray of int of
        shape (n,).
    arrays : mapping of int to ndarray of shape (..., n)
        What it has of them.
    n_tokens : int
        Of all blocks.
    room : Room
        For the result.

    Returns
    -------
    joined : ndarray of shape (..., n_tokens)
    """
    first = next(iter(arrays.values()))
    joined = room.empty((*first.shape[:-1], n_tokens), first.dtype)
    for number, array in arrays.items():
        joined[..., places(number)] = array
    return joined
