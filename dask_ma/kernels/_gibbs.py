"""Collapsed Gibbs sampling of topics, many tokens at a time.

Tokens of a *tile*, some documents by some words, are drawn together from the exact
conditional distribution given all others::

    p(topic) ~ (n_document,topic + alpha) (n_word,topic + beta) / (n_topic + V beta)

The counts are without the token itself, but with what the other tokens of the tile were
before. A tile of one token is the textbook sampler; with tiles of a hundredth of the
corpus or less, next to nothing of the speed of mixing is lost.

Topics are found in two levels: a block of topics by sums over blocks, then one of the
block. What costs most is to move rows of counts through the caches of the processor:
cells are weighed a chunk at a time, and large arrays are kept for the next tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from dask_ma.kernels._gibbs_tiles import Tile
from dask_ma.kernels._kept import KeptArrays

_BLOCKS = ((128, 3), (256, 4))  # topics up to which a block has two to the power of it
_LARGE_BLOCK = 5
_TINY = 1e-30
_CHUNK = 2**16  # elements of cells x topics that are weighed at a time, in the cache


@dataclass
class TopicCounts:
    """Counts that the tiles of some words need, and change.

    Attributes
    ----------
    topics : ndarray of int of shape (n_tokens,)
        Topic of each token, in the order of the tiles.
    documents : ndarray of float32 of shape (n_documents, width)
        Tokens of each document and topic.
    words : ndarray of float32 of shape (n_words, width)
        The same of words, plus the prior of the words.
    totals : ndarray of int64 of shape (n_topics,)
        Tokens of each topic.
    document_prior : ndarray of float32 of shape (width,)
        In the literature, this is `alpha`.
    prior_sums : ndarray of float64 of shape (n_topics,)
        Sums of the prior over all words.
    """

    topics: np.ndarray
    documents: np.ndarray
    words: np.ndarray
    totals: np.ndarray
    document_prior: np.ndarray
    prior_sums: np.ndarray


class TileSampler:
    """Draws the topics of tiles.

    Parameters
    ----------
    n_topics : int
        Number of topics.

    Attributes
    ----------
    n_topics : int
    width : int
        Columns of arrays of counts: topics, filled up to whole blocks.
    """

    def __init__(self, n_topics: int) -> None:
        self.n_topics = n_topics
        self._shift = next((b for most, b in _BLOCKS if n_topics <= most), _LARGE_BLOCK)
        size = 1 << self._shift
        self._size, self._n_blocks = size, -(-n_topics // size)
        self.width = size * self._n_blocks
        self._chunk = max(1, _CHUNK // self.width)
        self._ones = np.ones(size, dtype=np.float32)
        # Multiplied from the left these make sums of what is before each block, and of
        # all; of what is before each topic of a block.
        self._of_blocks = np.tri(self._n_blocks + 1, self._n_blocks, -1, np.float32)
        self._of_topics = np.tri(size - 1, size, dtype=np.float32)
        self._kept = KeptArrays()

    def draw(self, tile: Tile, counts: TopicCounts, rng: np.random.Generator) -> int:
        """Draw the topics of a tile anew, and change the counts.

        Parameters
        ----------
        tile : Tile
            The tokens.
        counts : TopicCounts
            They have the tokens with the topics that these have now.
        rng : Generator
            Random numbers.

        Returns
        -------
        n_changed : int
            Tokens that have got another topic.
        """
        own = counts.topics[tile.tokens]
        topics = own.astype(np.intp)
        documents = counts.documents[tile.first : tile.last]
        # Where a token's topic is in the counts of its document, and of its word.
        in_documents, in_words = (
            self._starts(of_cells, tile.repeats)
            for of_cells in (tile.documents, tile.words)
        )
        in_documents += topics
        in_words += topics
        totals = counts.totals + counts.prior_sums
        scaled = self._scaled(documents, counts.document_prior, totals)
        weights = self._weigh(tile, scaled, counts.words)
        excess = scaled.reshape(-1).take(in_documents)
        _remove(excess, counts.words.reshape(-1).take(in_words), topics, totals)
        drawn = self._search(tile, topics, weights, excess, rng)
        # All are moved, also to where they are: to sort them out takes longer.
        steps = drawn - topics
        _move(documents, in_documents, steps)
        _move(counts.words, in_words, steps)
        counts.totals += np.bincount(drawn, minlength=self.n_topics)
        counts.totals -= np.bincount(topics, minlength=self.n_topics)
        own[:] = drawn
        return int(np.count_nonzero(steps))

    def place(self, tile: Tile, counts: TopicCounts, rng: np.random.Generator) -> None:
        """Draw the first topics of a tile, given the tokens that have one.

        Parameters
        ----------
        tile : Tile
            The tokens.
        counts : TopicCounts
            They do not have these tokens yet.
        rng : Generator
            Random numbers.
        """
        documents = counts.documents[tile.first : tile.last]
        totals = counts.totals + counts.prior_sums
        scaled = self._scaled(documents, counts.document_prior, totals)
        weights = self._weigh(tile, scaled, counts.words)
        n_tokens = tile.tokens.stop - tile.tokens.start
        nothing = np.zeros(n_tokens, dtype=np.float32)  # of them is in the weights
        drawn = self._search(
            tile, np.zeros(n_tokens, dtype=np.intp), weights, nothing, rng
        )
        for table, of_cells in (
            (documents, tile.documents),
            (counts.words, tile.words),
        ):
            places = self._starts(of_cells, tile.repeats) + drawn
            np.add.at(table.reshape(-1), places, np.float32(1))
        counts.totals += np.bincount(drawn, minlength=self.n_topics)
        counts.topics[tile.tokens] = drawn

    def _space(self, name: str, *shape: int) -> np.ndarray:
        """An array of floats that is kept."""
        return self._kept(name, prod(shape), np.float32).reshape(shape)

    def _starts(self, of_cells: np.ndarray, repeats: np.ndarray) -> np.ndarray:
        """Where the row of each token begins in an array of counts laid end to end."""
        n_cells = len(of_cells)
        starts = np.empty(n_cells + len(repeats), dtype=np.intp)
        starts[:n_cells] = of_cells
        starts[:n_cells] *= self.width
        starts[:n_cells].take(repeats, out=starts[n_cells:], mode="clip")
        return starts

    def _scaled(
        self, documents: np.ndarray, prior: np.ndarray, totals: np.ndarray
    ) -> np.ndarray:
        """Counts of documents with the prior, over the totals of the topics."""
        inverse = np.zeros(self.width, dtype=np.float32)
        inverse[: self.n_topics] = 1 / totals
        scaled = self._space("documents", *documents.shape)
        np.add(documents, prior, out=scaled)
        scaled *= inverse
        return scaled

    def _weigh(
        self, tile: Tile, documents: np.ndarray, words: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Weights of the topics in each cell by blocks, and sums of these by token."""
        n_cells, n_blocks = len(tile.words), self._n_blocks
        weights = self._space("weights", n_cells, self.width)
        sums = self._space("sums", n_cells + len(tile.repeats), n_blocks)
        spare = self._space("words", min(n_cells, self._chunk), self.width)
        for start in range(0, n_cells, self._chunk):
            part = slice(start, min(start + self._chunk, n_cells))
            here = weights[part]
            of_words = spare[: len(here)]
            documents.take(tile.documents[part], axis=0, out=here, mode="clip")
            words.take(tile.words[part], axis=0, out=of_words, mode="clip")
            here *= of_words
            blocks = here.reshape(-1, self._size)
            np.matmul(blocks, self._ones, out=sums[part].reshape(-1))
        sums[:n_cells].take(tile.repeats, axis=0, out=sums[n_cells:], mode="clip")
        return weights.reshape(-1, self._size), sums

    def _search(
        self,
        tile: Tile,
        topics: np.ndarray,
        weights: tuple[np.ndarray, np.ndarray],
        excess: np.ndarray,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """The topic at which the sum of the weights reaches a random part of all."""
        of_cells, sums = weights
        n, n_cells = len(topics), len(tile.words)
        tokens, own_block = np.arange(n), topics >> self._shift
        place = tokens * self._n_blocks
        place += own_block
        # Places differ, and `at` takes two thirds of the time of `-=`.
        np.subtract.at(sums.reshape(-1), place, excess)
        before = self._space("before", self._n_blocks + 1, n)
        np.matmul(self._of_blocks, sums.T, out=before)  # sums along axis 0 are fast
        rest = rng.random(n, dtype=np.float32)
        rest *= before[-1]
        block = _count(before[1:-1] <= rest)
        np.multiply(block, n, out=place)
        place += tokens
        rest -= before.reshape(-1).take(place)
        np.multiply(tokens[:n_cells], self._n_blocks, out=place[:n_cells])
        place[:n_cells].take(tile.repeats, out=place[n_cells:], mode="clip")
        place += block
        chosen = self._space("chosen", n, self._size)
        of_cells.take(place, axis=0, out=chosen, mode="clip")
        excess *= block == own_block
        np.multiply(tokens, self._size, out=place)
        place += topics & (self._size - 1)
        np.subtract.at(chosen.reshape(-1), place, excess)
        upto = self._of_topics @ chosen.T
        block <<= self._shift
        block += _count(upto <= rest)
        # Rounding must not lead behind the last topic.
        return np.minimum(block, self.n_topics - 1, out=block)


def _remove(
    weight: np.ndarray, of_word: np.ndarray, topics: np.ndarray, totals: np.ndarray
) -> None:
    """From a token's weight of its own topic, what it is without the token itself."""
    inverse = (1 / totals).astype(np.float32)
    # A topic without tokens has none from which its own is taken.
    rise = (totals / np.maximum(totals - 1, _TINY)).astype(np.float32)
    without = weight - inverse.take(topics)
    weight *= of_word
    of_word -= 1
    without *= of_word
    without *= rise.take(topics)
    weight -= without


def _count(which: np.ndarray) -> np.ndarray:
    """How many are true in each column."""
    small = np.int8 if len(which) < 128 else np.intp
    return np.add.reduce(which.view(np.int8), 0, dtype=small).astype(np.intp)


def _move(counts: np.ndarray, places: np.ndarray, steps: np.ndarray) -> None:
    """Take tokens from some places of the counts to others."""
    flat, one = counts.reshape(-1), np.float32(1)
    np.subtract.at(flat, places, one)
    places += steps
    np.add.at(flat, places, one)
