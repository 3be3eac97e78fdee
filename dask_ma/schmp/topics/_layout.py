"""The tokens of a rank, laid out for blocks of words that come one after the other.

What there is of a token lies with the others of its block, so a block is worked on by
going through its arrays once. The place of a token in the order of the documents is the
only thing that joins the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.data import Room
from dask_ma.schmp.topics._documents import Documents

_CHUNK = 2**20  # tokens that are looked at together


class BlockTokens(NamedTuple):
    """Tokens of a rank that are words of a block.

    Attributes
    ----------
    tokens : ndarray of int32 of shape (n,)
        Their places in the order of the documents, increasing.
    starts : ndarray of int64 of shape (n_documents + 1,)
        Where those of each document begin.
    by_word : ndarray of int32 of shape (n,)
        Numbers from 0 on, in the order of the words.
    ends : ndarray of int32 of shape (n_words + 1,)
        Where those of each word of the block begin in that order.
    """

    tokens: np.ndarray
    starts: np.ndarray
    by_word: np.ndarray
    ends: np.ndarray

    @property
    def words(self) -> np.ndarray:
        """Words in their own order, int32 of shape (n,), counted within the block."""
        numbers = np.arange(len(self.ends) - 1, dtype=np.int32)
        return np.repeat(numbers, np.diff(self.ends))

    @property
    def owners(self) -> np.ndarray:
        """Document of each token, int32 of shape (n,)."""
        numbers = np.arange(len(self.starts) - 1, dtype=np.int32)
        return np.repeat(numbers, np.diff(self.starts))


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
        With their words, which are gone through once for each block; once for all if
        they are on a disk.
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
    place_of = np.empty(n_features, dtype=np.int32)
    for number, own in enumerate(blocks):
        block_of[own] = number
        place_of[own] = np.arange(len(own), dtype=np.int32)
    if room is not None and room.on_disk:
        parts = _on_disk(documents.words, block_of, len(blocks), room)
    else:
        parts = _in_memory(documents.words, block_of, len(blocks))
    for own in blocks:
        tokens, words = next(parts)
        words = place_of.take(words)
        starts = np.searchsorted(tokens, documents.starts)
        block = _by_word(tokens, words, starts, len(own))
        del tokens, words  # that there are not two of each when the next come
        yield block
        del block


def _in_memory(
    words: np.ndarray, block_of: np.ndarray, n_blocks: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tokens of each block, and their words, by a look at all for each block."""
    for number in range(n_blocks):
        found = [np.empty(0, dtype=np.int32)]
        for first, here in chunks(words):
            places = np.flatnonzero(block_of.take(here) == number)
            places += first
            found.append(places.astype(np.int32))
        found = [np.concatenate(found)]
        yield found[0], words[found.pop()]


def _on_disk(
    words: np.ndarray, block_of: np.ndarray, n_blocks: int, room: Room
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same by two looks at all, which takes room for another two copies."""
    sizes = np.zeros(n_blocks, dtype=np.int64)
    for _, here in chunks(words):
        sizes += np.bincount(block_of.take(here), minlength=n_blocks)
    ends = np.cumsum(sizes)
    places, sorted_words = (room.empty(len(words), np.int32) for _ in range(2))
    done = ends - sizes
    for first, here in chunks(words):
        of_block = block_of.take(here)
        order = np.argsort(of_block, kind="stable")
        cuts = np.cumsum(np.bincount(of_block, minlength=n_blocks))[:-1]
        for number, own in enumerate(np.split(order, cuts)):
            part = slice(done[number], done[number] + len(own))
            places[part] = own
            places[part] += first
            sorted_words[part] = here[own]
            done[number] = part.stop
    for end, size in zip(ends, sizes, strict=True):
        part = slice(end - size, end)
        # Copies: the files are to go with the last block, not with its tokens.
        yield places[part].copy(), sorted_words[part]


def chunks(words: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Words that are looked at together, and the number of the first."""
    for first in range(0, len(words), _CHUNK):
        yield first, words[first : first + _CHUNK]


def _by_word(
    tokens: np.ndarray, words: np.ndarray, starts: np.ndarray, n_words: int
) -> BlockTokens:
    """Order the tokens of a block by their words."""
    if not len(tokens):
        ends = np.zeros(n_words + 1, dtype=np.int32)
        return BlockTokens(tokens, starts, np.empty(0, dtype=np.int32), ends)
    # By columns, a matrix of the tokens has them word by word, and is made by
    # counting: sorting takes several times as long, and twice the memory.
    numbers = np.arange(len(tokens), dtype=np.int32)
    shape = len(starts) - 1, n_words
    rows = sparse.csr_array((numbers, words, starts.astype(np.int32)), shape)
    turned = rows.tocsc()
    return BlockTokens(tokens, starts, turned.data, turned.indptr)


def by_document(
    tokens: Mapping[int, np.ndarray],
    arrays: Mapping[int, np.ndarray],
    n_tokens: int,
    room: Room,
) -> np.ndarray:
    """What blocks have of their tokens, in the order of the documents.

    Parameters
    ----------
    tokens : mapping of int to ndarray of int32 of shape (n,)
        Of each block, where its tokens belong.
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
        joined[..., tokens[number]] = array
    return joined
