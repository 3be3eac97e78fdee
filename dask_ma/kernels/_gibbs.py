"""Collapsed Gibbs sampling of topics, many tokens at a time.

Tokens of a *tile*, some documents by some words, are drawn together from the exact
conditional distribution given all others::

    p(topic) ~ (n_document,topic + alpha) (n_word,topic + beta) / (n_topic + V beta)

The counts are without the token itself, but with what the other tokens of the tile were
before. A tile of one token is the textbook sampler; with tiles of a hundredth of the
corpus or less, next to nothing of the speed of mixing is lost.

Topics are found in two levels: a block of topics by sums over blocks, then one of the
block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_CELL_FLOATS = 2**18  # elements of a tile's arrays, so that they stay in the cache
_FEWEST_TILES = 128  # of a corpus, so that few tokens are drawn at a time
_MOST_TOKENS = 3000
_BELOW_ONE = np.float32(0.999999)  # of a sum: rounding must not lead behind the last
_BLOCKS = ((128, 3), (256, 4))  # topics up to which a block has two to the power of it
_LARGE_BLOCK = 5


class Tile(NamedTuple):
    """Tokens that are drawn together.

    A cell is a document and a word. Cells of one token come first, and the tokens are
    in the order of the cells.

    Attributes
    ----------
    first, last : int
        Documents of the tile are from `first` on and before `last`.
    tokens : slice
        Where the topics of the tokens are.
    documents : ndarray of int32 of shape (n_cells,)
        Document of each cell, counted from `first`.
    words : ndarray of int32 of shape (n_cells,)
        Word of each cell.
    n_single : int
        Cells of one token.
    repeats : ndarray of int32 of shape (n_tokens - n_single,)
        Cell of each of the later tokens.
    """

    first: int
    last: int
    tokens: slice
    documents: np.ndarray
    words: np.ndarray
    n_single: int
    repeats: np.ndarray

    @property
    def cells(self) -> np.ndarray:
        """Cell of each token, int32 of shape (n_tokens,)."""
        single = np.arange(self.n_single, dtype=np.int32)
        return np.concatenate([single, self.repeats])


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


def tokens_of_tile(n_tokens: int, n_topics: int) -> int:
    """Most tokens that should be drawn together.

    Parameters
    ----------
    n_tokens : int
        Tokens of the corpus.
    n_topics : int
        Number of topics.

    Returns
    -------
    n : int
        1 for a small corpus, which is sampled one token after the other.
    """
    most = min(_MOST_TOKENS, max(64, 3 * _CELL_FLOATS // (2 * n_topics)))
    return int(np.clip(n_tokens // _FEWEST_TILES, 1, most))


def document_groups(lengths: np.ndarray, size: int) -> np.ndarray:
    """Cut the documents into runs of about the same number of tokens.

    Parameters
    ----------
    lengths : ndarray of int of shape (n_documents,)
        Tokens of each document.
    size : int
        Most tokens of a tile.

    Returns
    -------
    bounds : ndarray of int64
        Where runs begin, and the number of documents: about as many runs as each has
        tiles.
    """
    n_groups = max(1, round(float(np.sqrt(lengths.sum() / size))))
    ends = np.cumsum(lengths)
    wanted = np.linspace(0, ends[-1] if len(ends) else 0, n_groups + 1)[1:-1]
    inner = np.searchsorted(ends, wanted, side="left") + 1
    return np.unique(np.concatenate([[0], inner, [len(lengths)]]))


def cut_tiles(
    documents: np.ndarray, words: np.ndarray, bounds: np.ndarray, size: int
) -> tuple[list[Tile], np.ndarray]:
    """Cut the tokens of some words into tiles.

    Parameters
    ----------
    documents, words : ndarray of int of shape (n_tokens,)
        Document and word of each token: word after word, and the documents of each in
        increasing order.
    bounds : ndarray of int
        From :func:`document_groups`.
    size : int
        Most tokens of a tile.

    Returns
    -------
    tiles : list of Tile
        In an order in which neither documents nor words soon come again.
    order : ndarray of int32 of shape (n_tokens,)
        The tokens in the order of the tiles.
    """
    if not len(documents):
        return [], np.empty(0, dtype=np.int32)
    group = np.searchsorted(bounds, documents, side="right") - 1
    # Stable, and of small numbers in the time that it takes to count them.
    order = np.argsort(group.astype(np.min_scalar_type(len(bounds))), kind="stable")
    group = group[order]
    begins = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    ends = np.r_[begins[1:], len(group)]
    cuts = []
    for place, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        n_tiles = -(-(end - begin) // size)
        edges = begin + (end - begin) * np.arange(n_tiles + 1) // n_tiles
        # Each run of documents begins with other words.
        turned = (np.arange(n_tiles) + n_tiles * place // len(begins)) % n_tiles
        cuts += [
            (turn, place, edges[tile], edges[tile + 1])
            for turn, tile in enumerate(turned)
        ]
    cuts.sort()
    tiles: list[Tile] = []
    turned_order, done = np.empty(len(order), dtype=np.int32), 0
    for _, place, begin, end in cuts:
        chosen, number = order[begin:end], group[begins[place]]
        first, last = int(bounds[number]), int(bounds[number + 1])
        tokens = slice(done, done + len(chosen))
        tile, places = _tile(documents[chosen], words[chosen], tokens, first, last)
        tiles.append(tile)
        turned_order[tokens] = chosen[places]
        done = tokens.stop
    return tiles, turned_order


def _tile(
    documents: np.ndarray, words: np.ndarray, tokens: slice, first: int, last: int
) -> tuple[Tile, np.ndarray]:
    """A tile of tokens that are in the order of words and documents; its own order."""
    is_new = np.r_[True, (documents[1:] != documents[:-1]) | (words[1:] != words[:-1])]
    starts = np.flatnonzero(is_new)
    sizes = np.diff(np.r_[starts, len(documents)])
    order = np.argsort(sizes > 1, kind="stable")
    n_single = int((sizes == 1).sum())
    starts, sizes = starts[order], sizes[order]
    later = np.repeat(np.arange(len(sizes)), sizes)[n_single:]
    offsets = np.cumsum(sizes) - sizes
    places = np.repeat(starts - offsets, sizes) + np.arange(len(documents))
    tile = Tile(
        first,
        last,
        tokens,
        (documents[starts] - first).astype(np.int32),
        words[starts].astype(np.int32),
        n_single,
        later.astype(np.int32),
    )
    return tile, places


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
        self._ones = np.ones(size, dtype=np.float32)
        # Multiplied from the left these make sums of the blocks, or topics, so far.
        self._of_blocks = np.tri(self._n_blocks, dtype=np.float32)
        self._of_topics = np.tri(size, dtype=np.float32)
        self._small = np.int8 if self._n_blocks < 128 else np.int32
        self._left = np.empty((0, self.width), dtype=np.float32)
        self._right = self._left
        self._numbers = np.arange(0)

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
        sums = self._weigh(tile, counts)
        rows = (
            self._rows(tile, tile.documents, tile.first),
            self._rows(tile, tile.words),
        )
        excess = self._remove(rows, counts, topics)
        drawn = self._search(tile, topics, sums, excess, rng)
        changed = np.flatnonzero(drawn != topics)
        if len(changed):
            after = drawn.take(changed)
            places = [of_tokens.take(changed) for of_tokens in rows]
            self._change(places, counts, topics.take(changed), after)
            own[changed] = after
        return len(changed)

    def _weigh(self, tile: Tile, counts: TopicCounts) -> np.ndarray:
        """Weights of the topics in each cell, in `_left`; sums of their blocks."""
        n_cells = len(tile.words)
        if len(self._left) < n_cells:
            self._left = np.empty((n_cells, self.width), dtype=np.float32)
            self._right = np.empty_like(self._left)
        left, right = self._left[:n_cells], self._right[:n_cells]
        scale = np.zeros(self.width, dtype=np.float32)
        scale[: self.n_topics] = 1 / (counts.totals + counts.prior_sums)
        documents = counts.documents[tile.first : tile.last] + counts.document_prior
        documents *= scale
        documents.take(tile.documents, axis=0, out=left, mode="clip")
        counts.words.take(tile.words, axis=0, out=right, mode="clip")
        left *= right
        return (left.reshape(-1, self._size) @ self._ones).reshape(n_cells, -1)

    def _rows(self, tile: Tile, of_cells: np.ndarray, first: int = 0) -> np.ndarray:
        """Where the row of each token begins in an array of counts laid end to end."""
        rows = np.empty(tile.n_single + len(tile.repeats), dtype=np.intp)
        rows[: tile.n_single] = of_cells[: tile.n_single]
        rows[tile.n_single :] = of_cells.take(tile.repeats)
        rows += first
        rows *= self.width
        return rows

    def _remove(
        self,
        rows: tuple[np.ndarray, np.ndarray],
        counts: TopicCounts,
        topics: np.ndarray,
    ) -> np.ndarray:
        """What each token itself adds to the weight of its topic."""
        weight = counts.documents.reshape(-1).take(rows[0] + topics)
        weight += counts.document_prior.take(topics)
        of_word = counts.words.reshape(-1).take(rows[1] + topics)
        totals = (counts.totals + counts.prior_sums).astype(np.float32)
        excess = weight * of_word
        excess *= (1 / totals).take(topics)
        weight -= 1
        of_word -= 1
        weight *= of_word
        with np.errstate(divide="ignore"):  # a topic that has no token at all
            weight *= (1 / (totals - 1)).take(topics)
        excess -= weight
        return excess

    def _search(
        self,
        tile: Tile,
        topics: np.ndarray,
        sums: np.ndarray,
        excess: np.ndarray,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """The topic at which the sum of the weights reaches a random part of all."""
        n, own_block = len(topics), topics >> self._shift
        if len(tile.repeats):
            later = sums.take(tile.repeats, axis=0)
            sums = np.concatenate([sums[: tile.n_single], later])
        if len(self._numbers) < n:
            self._numbers = np.arange(n)
        tokens = self._numbers[:n]
        # Places differ, and `at` takes two thirds of the time of `-=`.
        np.subtract.at(sums.reshape(-1), tokens * self._n_blocks + own_block, excess)
        upto = self._of_blocks @ sums.T  # along the first axis, sums are fast
        rest = rng.random(n, dtype=np.float32)
        rest *= upto[-1]
        block = (upto[:-1] <= rest).sum(0, dtype=self._small).astype(np.intp)
        before = np.maximum(block - 1, 0)
        before *= n
        before += tokens
        passed = upto.reshape(-1).take(before)
        passed *= block > 0
        rest -= passed
        cell = tokens.copy()
        cell[tile.n_single :] = tile.repeats
        cell *= self._n_blocks
        cell += block
        n_cells = len(tile.words)
        weights = self._left[:n_cells].reshape(-1, self._size).take(cell, axis=0)
        same = np.flatnonzero(block == own_block)
        place = same << self._shift
        place += topics.take(same) & (self._size - 1)
        np.subtract.at(weights.reshape(-1), place, excess.take(same))
        upto = self._of_topics @ weights.T
        np.minimum(rest, upto[-1] * _BELOW_ONE, out=rest)
        drawn = (upto[:-1] <= rest).sum(0, dtype=np.int8).astype(np.int32)
        drawn += (block << self._shift).astype(np.int32)
        return np.minimum(drawn, self.n_topics - 1, out=drawn)

    def _change(
        self,
        rows: list[np.ndarray],
        counts: TopicCounts,
        before: np.ndarray,
        after: np.ndarray,
    ) -> None:
        """Move tokens from one topic to another."""
        one = np.float32(1)
        for array, row in zip((counts.documents, counts.words), rows, strict=True):
            flat = array.reshape(-1)
            np.subtract.at(flat, row + before, one)
            np.add.at(flat, row + after, one)
        counts.totals += np.bincount(after, minlength=self.n_topics)
        counts.totals -= np.bincount(before, minlength=self.n_topics)
