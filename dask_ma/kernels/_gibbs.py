"""Collapsed Gibbs sampling of topics, many tokens at a time.

Tokens of a *tile*, some documents by some words, are drawn together from the exact
conditional distribution given all others::

    p(topic) ~ (n_document,topic + alpha) (n_word,topic + beta) / (n_topic + V beta)

The counts are without the token itself, but with what the other tokens of the tile were
before. A tile of one token is the textbook sampler; with tiles of a hundredth of the
corpus or less, next to nothing of the speed of mixing is lost.

Topics are found in two levels: a block of topics by sums over blocks, then one of the
block. What costs most is to move rows of counts through the caches of the processor:
cells are weighed a chunk at a time, of which the sums alone stay, as the weights of one
block are soon made again; and large arrays are kept for the next tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

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
        Tokens of each document and topic, plus the prior of the topics: in the
        literature, this is `alpha`.
    words : ndarray of float32 of shape (n_words, width)
        The same of words, plus the prior of the words.
    totals : ndarray of int64 of shape (n_topics,)
        Tokens of each topic.
    prior_sums : ndarray of float64 of shape (n_topics,)
        Sums of the prior over all words.
    """

    topics: np.ndarray
    documents: np.ndarray
    words: np.ndarray
    totals: np.ndarray
    prior_sums: np.ndarray


class _Side(NamedTuple):
    """A factor of the weights: a table, and where the row of each token begins."""

    table: np.ndarray
    starts: np.ndarray


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
        self._from_0 = np.arange(0)

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
        topics = self._places("topics", len(own))
        topics[:] = own
        documents = counts.documents[tile.first : tile.last]
        totals = counts.totals + counts.prior_sums
        scaled = self._scaled(documents, totals)
        sides = self._sides(tile, scaled, counts.words)
        sums = self._weigh(tile, scaled, counts.words)
        # Where a token's topic is in the counts of its document, and of its word.
        in_documents, in_words = (
            np.add(side.starts, topics, out=self._places(name, len(own)))
            for side, name in zip(sides, ("in documents", "in words"), strict=True)
        )
        weight = self._taken("excess", scaled, in_documents)
        of_word = self._taken("of word", counts.words, in_words)
        excess = self._remove(weight, of_word, topics, totals)
        drawn = self._search(topics, sums, sides, excess, rng)
        # All are moved, also to where they are: to sort them out takes longer.
        steps = np.subtract(drawn, topics, out=self._places("steps", len(own)))
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
        scaled = self._scaled(documents, totals)
        sides = self._sides(tile, scaled, counts.words)
        sums = self._weigh(tile, scaled, counts.words)
        n_tokens = tile.tokens.stop - tile.tokens.start
        nothing = np.zeros(n_tokens, dtype=np.float32)  # of them is in the weights
        no_topics = np.zeros(n_tokens, dtype=np.intp)
        drawn = self._search(no_topics, sums, sides, nothing, rng)
        for table, side in zip((documents, counts.words), sides, strict=True):
            np.add.at(table.reshape(-1), side.starts + drawn, np.float32(1))
        counts.totals += np.bincount(drawn, minlength=self.n_topics)
        counts.topics[tile.tokens] = drawn

    def _space(self, name: str, *shape: int) -> np.ndarray:
        """An array of floats that is kept."""
        return self._kept(name, prod(shape), np.float32).reshape(shape)

    def _places(self, name: str, n: int) -> np.ndarray:
        """An array of whole numbers that is kept."""
        return self._kept(name, n, np.intp)

    def _taken(self, name: str, table: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Elements of a table, in an array that is kept."""
        out = self._space(name, len(places))
        return table.reshape(-1).take(places, out=out, mode="clip")

    def _sides(
        self, tile: Tile, documents: np.ndarray, words: np.ndarray
    ) -> tuple[_Side, _Side]:
        """Both factors of the weights of the tokens."""
        of_documents, of_words = (
            self._starts(name, of_cells, tile.repeats)
            for name, of_cells in (
                ("of documents", tile.documents),
                ("of words", tile.words),
            )
        )
        return _Side(documents, of_documents), _Side(words, of_words)

    def _starts(
        self, name: str, of_cells: np.ndarray, repeats: np.ndarray
    ) -> np.ndarray:
        """Where the row of each token begins in an array of counts laid end to end."""
        n_cells = len(of_cells)
        starts = self._places(name, n_cells + len(repeats))
        starts[:n_cells] = of_cells
        starts[:n_cells] *= self.width
        starts[:n_cells].take(repeats, out=starts[n_cells:], mode="clip")
        return starts

    def _scaled(self, documents: np.ndarray, totals: np.ndarray) -> np.ndarray:
        """Counts of documents with the prior, over the totals of the topics."""
        inverse = np.zeros(self.width, dtype=np.float32)
        inverse[: self.n_topics] = 1 / totals
        scaled = self._space("documents", *documents.shape)
        return np.multiply(documents, inverse, out=scaled)

    def _remove(
        self,
        weight: np.ndarray,
        of_word: np.ndarray,
        topics: np.ndarray,
        totals: np.ndarray,
    ) -> np.ndarray:
        """What a token adds to the weight of its own topic, in place of `weight`."""
        inverse = (1 / totals).astype(np.float32)
        # A topic without tokens has none from which its own is taken.
        rise = (totals / np.maximum(totals - 1, _TINY)).astype(np.float32)
        without = self._taken("without", inverse, topics)
        np.subtract(weight, without, out=without)
        weight *= of_word
        of_word -= 1
        without *= of_word
        without *= rise.take(topics, out=of_word, mode="clip")
        weight -= without
        return weight

    def _weigh(
        self, tile: Tile, documents: np.ndarray, words: np.ndarray
    ) -> np.ndarray:
        """Sums of the weights of the topics by blocks, of each token."""
        n_cells, n_blocks = len(tile.words), self._n_blocks
        sums = self._space("sums", n_cells + len(tile.repeats), n_blocks)
        weights, spare = (
            self._space(name, min(n_cells, self._chunk), self.width)
            for name in ("weights", "words")
        )
        for start in range(0, n_cells, self._chunk):
            part = slice(start, min(start + self._chunk, n_cells))
            n = part.stop - part.start
            here, of_words = weights[:n], spare[:n]
            documents.take(tile.documents[part], axis=0, out=here, mode="clip")
            words.take(tile.words[part], axis=0, out=of_words, mode="clip")
            here *= of_words
            blocks = here.reshape(-1, self._size)
            np.matmul(blocks, self._ones, out=sums[part].reshape(-1))
        sums[:n_cells].take(tile.repeats, axis=0, out=sums[n_cells:], mode="clip")
        return sums

    def _weights_of(self, block: np.ndarray, sides: tuple[_Side, _Side]) -> np.ndarray:
        """Weights of the topics of a block, of each token."""
        n = len(block)
        factors = [self._space(name, n, self._size) for name in ("chosen", "others")]
        place = self._places("place", n)
        for (table, starts), out in zip(sides, factors, strict=True):
            np.right_shift(starts, self._shift, out=place)
            place += block
            table.reshape(-1, self._size).take(place, axis=0, out=out, mode="clip")
        weights, others = factors
        weights *= others
        return weights

    def _search(
        self,
        topics: np.ndarray,
        sums: np.ndarray,
        sides: tuple[_Side, _Side],
        excess: np.ndarray,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """The topic at which the sum of the weights reaches a random part of all."""
        n = len(topics)
        tokens = self._numbers(n)
        own_block = np.right_shift(
            topics, self._shift, out=self._places("own blocks", n)
        )
        place = np.multiply(tokens, self._n_blocks, out=self._places("place", n))
        place += own_block
        # Places differ, and `at` takes two thirds of the time of `-=`.
        np.subtract.at(sums.reshape(-1), place, excess)
        before = self._space("before", self._n_blocks + 1, n)
        np.matmul(self._of_blocks, sums.T, out=before)  # sums along axis 0 are fast
        rest = self._space("rest", n)
        rng.random(dtype=np.float32, out=rest)
        rest *= before[-1]
        block = self._count("blocks", before[1:-1], rest)
        np.multiply(block, n, out=place)
        place += tokens
        rest -= self._taken("spare", before, place)
        chosen = self._weights_of(block, sides)
        excess *= block == own_block
        np.multiply(tokens, self._size, out=place)
        np.bitwise_and(topics, self._size - 1, out=own_block)
        place += own_block
        np.subtract.at(chosen.reshape(-1), place, excess)
        upto = self._space("upto", self._size - 1, n)
        np.matmul(self._of_topics, chosen.T, out=upto)
        block <<= self._shift
        block += self._count("in block", upto, rest)
        # Rounding must not lead behind the last topic.
        return np.minimum(block, self.n_topics - 1, out=block)

    def _numbers(self, n: int) -> np.ndarray:
        """Whole numbers from 0 on."""
        if len(self._from_0) < n:
            self._from_0 = np.arange(n)
        return self._from_0[:n]

    def _count(self, name: str, sums: np.ndarray, parts: np.ndarray) -> np.ndarray:
        """How many sums of each column are not above some parts of all."""
        which = self._kept("which", sums.size, bool).reshape(sums.shape)
        np.less_equal(sums, parts, out=which)
        found = self._kept("found", len(parts), np.int8 if len(sums) < 128 else np.intp)
        np.add.reduce(which.view(np.int8), 0, dtype=found.dtype, out=found)
        counts = self._places(name, len(parts))
        counts[:] = found
        return counts


def _move(counts: np.ndarray, places: np.ndarray, steps: np.ndarray) -> None:
    """Take tokens from some places of the counts to others."""
    flat, one = counts.reshape(-1), np.float32(1)
    np.subtract.at(flat, places, one)
    places += steps
    np.add.at(flat, places, one)
