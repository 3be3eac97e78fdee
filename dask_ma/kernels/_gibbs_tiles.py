"""Tiles of a corpus: some documents by some words, whose tokens are drawn together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_WEIGHTS = 2**21  # of tokens and topics of a tile
_FEWEST_TILES = 128  # of a corpus, so that few tokens are drawn at a time
_MANY_TILES = 256  # of a corpus whose tiles have more tokens than is usual
_TOKENS, _MOST_TOKENS = 9000, 12_000  # of a tile: as a rule, and at most
_CUTS = 12  # of documents and of words at least, where there are tiles enough
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
    documents : ndarray of int of shape (n_cells,)
        Document of each cell, counted from `first`.
    words : ndarray of int of shape (n_cells,)
        Word of each cell.
    repeats : ndarray of int of shape (n_tokens - n_cells,)
        Cell of each token that is not the first of its cell, in increasing order.
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

    @property
    def before(self) -> np.ndarray:
        """How many tokens of its cell come before each of `repeats`, at least 1."""
        places = np.arange(1, len(self.repeats) + 1)
        return places - np.searchsorted(self.repeats, self.repeats)


def tokens_of_tile(n_tokens: int, n_topics: int) -> int:
    """About how many tokens should be drawn together.

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
    size = max(min(n_tokens // _FEWEST_TILES, _TOKENS), n_tokens // _MANY_TILES)
    return min(max(size, 1), _MOST_TOKENS, max(64, _WEIGHTS // n_topics))


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
    lengths: np.ndarray,
    size: int,
    stages: np.ndarray | None = None,
    n_blocks: int = 1,
) -> np.ndarray:
    """Cut the documents into runs of about the same number of tokens.

    Parameters
    ----------
    lengths : ndarray of int of shape (n_documents,)
        Tokens of each document.
    size : int
        Tokens of a tile.
    stages : ndarray of int of shape (n_documents,), default=None
        Stage of each document, increasing; a run has documents of one alone.
    n_blocks : int, default=1
        Blocks of words, each of which is cut into tiles by itself.

    Returns
    -------
    bounds : ndarray of int64
        Where runs begin, and the number of documents: about as many runs as each has
        tiles, or more where each has tiles enough.
    """
    n_tiles = float(lengths.sum() / size)
    # Rows of documents are scaled for each tile, so few of them are better, but of each
    # a small part of its tokens should be drawn at a time.
    n_groups = max(n_tiles**0.5, min(3 * n_tiles**0.5, n_tiles / max(_CUTS, n_blocks)))
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
        Document and word of each token: document after document, and the words of each
        in increasing order.
    bounds : ndarray of int
        From :func:`document_groups`.
    size : int
        Tokens of a tile: there may be half as many again.

    Returns
    -------
    tiles : list of Tile
        In an order in which neither documents nor words soon come again; its numbers
        are of the smallest types that hold them.
    order : ndarray of int32 of shape (n_tokens,)
        The tokens in the order of the tiles.
    """
    if not len(documents):
        return [], np.empty(0, dtype=np.int32)
    edges = np.searchsorted(documents, bounds.astype(documents.dtype))
    order, cuts = np.empty(len(documents), dtype=np.int32), []
    groups = np.flatnonzero(np.diff(edges)).tolist()
    for place, number in enumerate(groups):
        begin, end = edges[number : number + 2].tolist()
        # Stable: of each word, the documents stay in their order. Of small numbers it
        # takes the time that counting takes.
        order[begin:end] = np.argsort(words[begin:end], kind="stable")
        order[begin:end] += begin
        cuts += _cuts(begin, end, size, number, (place, len(groups)))
    cuts.sort()
    most = int(np.diff(bounds).max())
    dtypes = np.min_scalar_type(most), words.dtype, np.min_scalar_type(2 * size)
    tiles: list[Tile] = []
    turned, done = np.empty(len(order), dtype=np.int32), 0
    for _, number, begin, end in cuts:
        chosen = order[begin:end]
        first, last = int(bounds[number]), int(bounds[number + 1])
        tokens = slice(done, done + len(chosen))
        of_tokens = documents[chosen] - first, words[chosen]
        arrays, places = _cells(*of_tokens, dtypes)
        tiles.append(Tile(first, last, tokens, *arrays))
        turned[tokens] = chosen[places]
        done = tokens.stop
    return tiles, turned


def _cuts(
    begin: int, end: int, size: int, number: int, place: tuple[int, int]
) -> list[tuple[int, int, int, int]]:
    """Tiles of a run of documents: their turns, the run, where their tokens are."""
    n_tiles = max(1, (2 * (end - begin) + size) // (2 * size))
    edges = (begin + (end - begin) * np.arange(n_tiles + 1) // n_tiles).tolist()
    # Each run of documents begins with other words.
    turned = (np.arange(n_tiles) + n_tiles * place[0] // place[1]) % n_tiles
    return [
        (turn, number, edges[tile], edges[tile + 1])
        for turn, tile in enumerate(turned.tolist())
    ]


def _cells(
    documents: np.ndarray, words: np.ndarray, dtypes: tuple[np.dtype, ...]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Columns of a tile, and its order, of tokens in the order of the words."""
    is_first = np.ones(len(words), dtype=bool)
    np.not_equal(words[1:], words[:-1], out=is_first[1:])
    is_first[1:] |= documents[1:] != documents[:-1]
    starts, later = np.flatnonzero(is_first), np.flatnonzero(~is_first)
    columns = documents[starts], words[starts], np.cumsum(is_first)[later] - 1
    arrays = [
        column.astype(dtype) for column, dtype in zip(columns, dtypes, strict=True)
    ]
    return arrays, np.concatenate([starts, later])
