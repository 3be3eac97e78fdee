"""Tiles of a corpus: some documents by some words, whose tokens are drawn together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_CELL_FLOATS = 2**19  # elements of cells x topics of a tile
_FEWEST_TILES = 128  # of a corpus, so that few tokens are drawn at a time
_MOST_TOKENS = 6000
# Multiples of it, without what is before the point, are spread evenly, however many.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Tile(NamedTuple):
    """Tokens that are drawn together.

    A cell is a document and a word. The first token of each cell comes first, in the
    order of the words, then all others.

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
    repeats : ndarray of int32 of shape (n_tokens - n_cells,)
        Cell of each token that is not the first of its cell.
    """

    first: int
    last: int
    tokens: slice
    documents: np.ndarray
    words: np.ndarray
    repeats: np.ndarray

    @property
    def cells(self) -> np.ndarray:
        """Cell of each token, int32 of shape (n_tokens,)."""
        first = np.arange(len(self.words), dtype=np.int32)
        return np.concatenate([first, self.repeats])


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


def document_stages(keys: np.ndarray, n_stages: int) -> np.ndarray:
    """Share documents out over stages, each with as many as all before it.

    Parameters
    ----------
    keys : ndarray of int64 of shape (n_documents,)
        Numbers of the documents, on which alone their stages depend.
    n_stages : int
        Stages before the last one.

    Returns
    -------
    stages : ndarray of int64 of shape (n_documents,)
        0 for a part of ``2 ** -n_stages``, and `n_stages` for half of them.
    """
    parts = (keys.astype(np.uint64) * _GOLDEN) / 2.0**64
    edges = 2.0 ** np.arange(-n_stages, 0)
    return np.searchsorted(edges, parts, side="right")


def document_groups(
    lengths: np.ndarray, size: int, stages: np.ndarray | None = None
) -> np.ndarray:
    """Cut the documents into runs of about the same number of tokens.

    Parameters
    ----------
    lengths : ndarray of int of shape (n_documents,)
        Tokens of each document.
    size : int
        Most tokens of a tile.
    stages : ndarray of int of shape (n_documents,), default=None
        Stage of each document, increasing; a run has documents of one alone.

    Returns
    -------
    bounds : ndarray of int64
        Where runs begin, and the number of documents: about as many runs as each has
        tiles.
    """
    n_groups = float(np.sqrt(lengths.sum() / size))
    ends = np.concatenate([[0], np.cumsum(lengths)])
    edges = [0, len(lengths)]
    if stages is not None:
        edges[1:1] = np.flatnonzero(np.diff(stages)) + 1
    bounds = [np.array(edges)]
    for first, last in zip(edges, edges[1:]):
        part = (ends[last] - ends[first]) / max(1, ends[-1])
        wanted = np.linspace(
            ends[first], ends[last], max(1, round(n_groups * part)) + 1
        )
        bounds.append(np.searchsorted(ends, wanted[1:-1], side="left"))
    return np.unique(np.concatenate(bounds))


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
    numbers = np.arange(len(bounds) - 1, dtype=np.min_scalar_type(len(bounds)))
    group = np.repeat(numbers, np.diff(bounds)).take(documents)
    # Stable, and of small numbers in the time that it takes to count them.
    order = np.argsort(group, kind="stable").astype(np.int32)
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
    is_first = np.r_[
        True, (documents[1:] != documents[:-1]) | (words[1:] != words[:-1])
    ]
    starts, later = np.flatnonzero(is_first), np.flatnonzero(~is_first)
    tile = Tile(
        first,
        last,
        tokens,
        (documents[starts] - first).astype(np.int32),
        words[starts].astype(np.int32),
        (np.cumsum(is_first)[later] - 1).astype(np.int32),
    )
    return tile, np.concatenate([starts, later])
