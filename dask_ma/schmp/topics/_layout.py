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
    documents: Documents, blocks: list[np.ndarray], n_features: int
) -> Iterator[BlockTokens]:
    """Sort the tokens of a rank by the blocks of their words, one block at a time.

    Parameters
    ----------
    documents : Documents
        With their words, which are gone through once for each block.
    blocks : list of ndarray of int
        Words of each; together all, each once.
    n_features : int
        Size of the vocabulary.

    Yields
    ------
    tokens : BlockTokens
    """
    block_of = np.empty(n_features, dtype=np.min_scalar_type(len(blocks)))
    place_of = np.empty(n_features, dtype=np.int32)
    for number, own in enumerate(blocks):
        block_of[own] = number
        place_of[own] = np.arange(len(own), dtype=np.int32)
    for number, own in enumerate(blocks):
        tokens = _tokens_of(documents.words, block_of, number)
        words = place_of.take(documents.words[tokens])
        starts = np.searchsorted(tokens, documents.starts)
        yield _by_word(tokens, words, starts, len(own))


def _tokens_of(words: np.ndarray, block_of: np.ndarray, number: int) -> np.ndarray:
    """Tokens whose words are of a block."""
    found = [np.empty(0, dtype=np.int32)]
    for first in range(0, len(words), _CHUNK):
        is_own = block_of.take(words[first : first + _CHUNK]) == number
        places = np.flatnonzero(is_own)
        places += first
        found.append(places.astype(np.int32))
    return np.concatenate(found)


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
