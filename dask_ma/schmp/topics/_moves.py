"""Moves of a rank's tokens to other topics, while a block of words is there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group
from dask_ma.data import Room
from dask_ma.engine import State
from dask_ma.kernels import (
    Tile,
    TileSampler,
    TopicCounts,
    cut_tiles,
    document_groups,
    document_stages,
    draw_by_rows,
    tokens_of_tile,
)
from dask_ma.schmp.topics._documents import KEYS, STARTS, Documents
from dask_ma.schmp.topics._layout import BlockTokens, by_document

# Up to here a float32 is less than a quarter from the number that ones are added to.
_MOST_COUNTED = 2**21
_COUNTS = 2**15  # elements of a table of counts at a time
_TOPICS = "tokens/topics"


class Priors(NamedTuple):
    """Priors as a block of words sees them.

    Attributes
    ----------
    document : ndarray of float64 of shape (n_topics,)
        In the literature, this is `alpha`.
    words : ndarray of float32 of shape (n_words,) or (n_words, n_topics)
        That of the words of the block; `beta`.
    sums : ndarray of float64 of shape (n_topics,)
        Sums of that of all words.
    """

    document: np.ndarray
    words: np.ndarray
    sums: np.ndarray


class Moves(ABC):
    """Base of the samplers.

    Parameters
    ----------
    documents : Documents
        Tokens of this rank; sorted by stages, if there are any.
    n_topics : int
    room : Room
        Where what there is of each token lies.

    Attributes
    ----------
    unreported : ndarray of int64 of shape (n_topics,)
        Changes of the topics' totals that blocks have not been told yet.
    topics : dict of int to ndarray of int of shape (n,)
        Topics of the tokens of each block, which lie in the order in which the sampler
        goes through them.
    n_stages : int
        Rotations after which some documents have yet to come in.
    """

    n_stages = 0

    def __init__(self, documents: Documents, n_topics: int, room: Room) -> None:
        self.unreported = np.zeros(n_topics, dtype=np.int64)
        self.topics: dict[int, np.ndarray] = {}
        self._documents = documents
        self._n_topics = n_topics
        self._room = room
        self._dtype = topic_dtype(n_topics)

    @abstractmethod
    def add_block(self, number: int, block: BlockTokens) -> None:
        """Lay the tokens of a block out.

        Parameters
        ----------
        number : int
            Which block this is.
        block : BlockTokens
            Its tokens.
        """

    @abstractmethod
    def empty_counts(self, n_words: int) -> Any:
        """Counts of a block of words before its tokens have topics.

        Returns
        -------
        counts : ndarray or csr_array of int32 of shape (n_words, n_topics)
        """

    def as_counts(self, counts: Any) -> Any:
        """Counts of a block, dense or sparse, in the form that the sampler changes."""
        return counts

    @abstractmethod
    def place(
        self, number: int, counts: Any, weights: Any, rng: np.random.Generator
    ) -> np.ndarray:
        """Give the tokens of a block their first topics.

        Parameters
        ----------
        number : int
            Which block this is.
        counts : ndarray or csr_array of int32 of shape (n_words, n_topics)
            Its counts; changed in place.
        weights : ndarray of shape (n_words, n_topics) or None
            By which topics are drawn; None for all alike.
        rng : Generator
            Random numbers.

        Returns
        -------
        change : ndarray of int64 of shape (n_topics,)
            Of the topics' totals.
        """

    @abstractmethod
    def places(self, number: int) -> np.ndarray:
        """Places of the tokens of a block in the order of the documents, int32."""

    @abstractmethod
    def words(self, number: int) -> np.ndarray:
        """Words of the tokens of a block, int32 of shape (n,), counted within it."""

    @abstractmethod
    def document_counts(self) -> Iterator[np.ndarray]:
        """Tokens of each topic, some documents at a time.

        Yields
        ------
        counts : ndarray of int64 of shape (n_documents, n_topics)
        """

    @abstractmethod
    def begin_rotation(
        self, priors: Priors, totals: np.ndarray, rng: np.random.Generator
    ) -> None:
        """Prepare for a rotation; `totals` are changed in place."""

    @abstractmethod
    def visit(
        self,
        number: int,
        counts: Any,
        priors: Priors,
        totals: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, int]:
        """Move the tokens of a block.

        Parameters
        ----------
        number : int
            Which block this is.
        counts : ndarray or csr_array of int32 of shape (n_words, n_topics)
            Its counts, with the tokens of this rank; changed in place.
        priors : Priors
            Those of the words are the block's.
        totals : ndarray of int64 of shape (n_topics,)
            Tokens of each topic, as far as this rank knows; changed in place.
        rng : Generator
            Random numbers.

        Returns
        -------
        change : ndarray of int64 of shape (n_topics,)
            Of the totals, as far as the block's counts have changed.
        n_changed : int
            Tokens that have another topic than before the rotation.
        """

    def state_dict(self) -> dict[str, np.ndarray]:
        """What is to be kept of the tokens, in the order of the documents: copies."""
        documents = self._documents
        kept = {
            name: by_document(self.places, arrays, documents.n_tokens, self._room)
            for name, arrays in self._kept().items()
        }
        return {KEYS: documents.keys, STARTS: documents.starts, **kept}

    def load(self, group: Group, state: State) -> None:
        """Take over what :meth:`state_dict` has given; a collective call.

        Parameters
        ----------
        group : Group
            This rank.
        state : State
            Of ranks that had the same documents, perhaps shared out otherwise.
        """
        kept, n_tokens = self._kept(), self._documents.n_tokens
        into = {}
        for name, arrays in kept.items():
            one = next(iter(arrays.values()))
            into[name] = self._room.empty((*one.shape[:-1], n_tokens), one.dtype)
        self._documents.load(group, state, into)
        for number in self.topics:
            places = self.places(number)
            for name, arrays in kept.items():
                arrays[number][:] = into[name][..., places]

    def _kept(self) -> dict[str, dict[int, np.ndarray]]:
        """What is to be kept, of each block."""
        return {_TOPICS: self.topics}

    def _move(
        self,
        counts: np.ndarray,
        words: np.ndarray,
        before: np.ndarray,
        after: np.ndarray,
    ) -> tuple[np.ndarray, int]:
        """Bring counts up to date; change of the totals, and tokens that differ."""
        changed = np.flatnonzero(before != after)
        before, after = before.take(changed), after.take(changed)
        rows = words.take(changed).astype(np.intp)
        rows *= self._n_topics
        flat = counts.reshape(-1)
        one = counts.dtype.type(1)  # of another type, it takes ten times as long
        np.subtract.at(flat, rows + before, one)
        np.add.at(flat, rows + after, one)
        change = np.bincount(after, minlength=self._n_topics)
        return change - np.bincount(before, minlength=self._n_topics), len(changed)


class ExactMoves(Moves):
    """Tokens are drawn from their conditional distributions, a tile at a time.

    With stages, a part of the documents comes in with each of the first rotations, as
    many as there are, and these are gone through several times: so often that all
    rotations draw about as many tokens. A token gets its first topic given those of the
    tokens that are there.
    """

    def __init__(
        self, documents: Documents, n_topics: int, room: Room, n_stages: int = 0
    ) -> None:
        super().__init__(documents, n_topics, room)
        self.n_stages = n_stages
        self._sampler = TileSampler(n_topics)
        self._size = tokens_of_tile(documents.n_all_tokens, n_topics)
        self._stages = document_stages(documents.keys, n_stages)
        self._bounds = document_groups(documents.lengths, self._size, self._stages)
        self._next: dict[int, int] = {}  # stage of each block that is to come in
        self._tiles: dict[int, list[Tile]] = {}
        self._offsets: dict[int, np.ndarray] = {}  # of cells, in their documents
        self._counts: np.ndarray | None = None
        self._words = np.empty((0, self._sampler.width), dtype=np.float32)

    def add_block(self, number: int, block: BlockTokens) -> None:
        tiles, order = cut_tiles(block.owners, block.words, self._bounds, self._size)
        first = [order[tile.tokens][: len(tile.words)] for tile in tiles]
        offsets = block.offsets.take(_joined(first, np.int32))
        [self._offsets[number]] = self._room.pack([offsets], offsets.dtype)
        self.topics[number] = self._room.empty(len(order), self._dtype)
        self._next[number] = 0 if self.n_stages else 1
        columns = {}
        for name in ("documents", "words", "repeats"):
            arrays = [getattr(tile, name) for tile in tiles]
            dtype = arrays[0].dtype if arrays else np.int32
            columns[name] = self._room.pack(arrays, dtype)
        self._tiles[number] = [
            tile._replace(**dict(zip(columns, arrays, strict=True)))
            for tile, *arrays in zip(tiles, *columns.values(), strict=True)
        ]

    def empty_counts(self, n_words: int) -> np.ndarray:
        return np.zeros((n_words, self._n_topics), dtype=np.int32)

    def place(
        self, number: int, counts: Any, weights: Any, rng: np.random.Generator
    ) -> np.ndarray:
        words = self.words(number)
        if weights is None:
            topics = rng.integers(0, self._n_topics, len(words), dtype=np.int32)
        else:
            topics = draw_by_rows(words, weights, rng)
        self.topics[number][:] = topics
        self._next[number] = self.n_stages + 1
        cells = words * np.intp(self._n_topics)
        cells += topics
        np.add.at(counts.reshape(-1), cells, np.int32(1))
        return np.bincount(topics, minlength=self._n_topics)

    def places(self, number: int) -> np.ndarray:
        offsets, starts = self._offsets[number], self._documents.starts
        found, done = np.empty(len(self.topics[number]), dtype=np.int32), 0
        for tile in self._tiles[number]:
            own = offsets[done : done + len(tile.words)]
            done += len(own)
            first = starts[tile.first : tile.last].take(tile.documents) + own
            # Tokens of a cell are neighbours.
            others = first.take(tile.repeats) + tile.before
            found[tile.tokens] = np.concatenate([first, others])
        return found

    def words(self, number: int) -> np.ndarray:
        of_tiles = [tile.words.take(tile.cells) for tile in self._tiles[number]]
        return _joined(of_tiles, np.int32)

    def document_counts(self) -> Iterator[np.ndarray]:
        counts = self._document_table()
        for part in _rows_at_a_time(*counts.shape):
            yield np.rint(counts[part, : self._n_topics]).astype(np.int64)

    def load(self, group: Group, state: State) -> None:
        super().load(group, state)
        self._counts = None
        self._next = dict.fromkeys(self._next, self.n_stages + 1)

    def begin_rotation(
        self, priors: Priors, totals: np.ndarray, rng: np.random.Generator
    ) -> None:
        """Nothing: documents are looked at as blocks come."""

    def visit(
        self,
        number: int,
        counts: np.ndarray,
        priors: Priors,
        totals: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, int]:
        topics, n = self.topics[number], self._n_topics
        words, most = self._as_weights(counts, priors.words)
        of_document = np.zeros(self._sampler.width, dtype=np.float32)
        of_document[:n] = priors.document
        known = TopicCounts(
            topics, self._document_table(), words, totals, of_document, priors.sums
        )
        totals_before = totals.copy()
        new, tiles, n_times = self._due(number)
        for tile in new:
            self._sampler.place(tile, known, rng)
        before, n_changed = None, 0
        if most + len(topics) > _MOST_COUNTED:
            for tile in new:
                cells = tile.words.take(tile.cells) * np.intp(n) + topics[tile.tokens]
                np.add.at(counts.reshape(-1), cells, np.int32(1))
            before = topics.copy()
        for _ in range(n_times):
            n_changed = sum(self._sampler.draw(tile, known, rng) for tile in tiles)
        if before is None:
            # Counts plus prior, with the changes: faster than to make these again.
            _to_counts(words[:, :n], priors.words, counts)
        else:
            self._move(counts, self.words(number), before, topics)
        return totals - totals_before, n_changed

    def _due(self, number: int) -> tuple[list[Tile], list[Tile], int]:
        """Tiles that come in, those that are to be drawn, and how many times."""
        tiles, stage = self._tiles[number], self._next[number]
        if stage > self.n_stages:
            return [], tiles, 1
        self._next[number] += 1
        new = [tile for tile in tiles if self._stages[tile.first] == stage]
        drawn = [tile for tile in tiles if self._stages[tile.first] <= stage]
        return new, drawn, 2 ** (self.n_stages - stage)

    def _as_weights(
        self, counts: np.ndarray, prior: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Counts of words plus their prior, for the sampler, and the largest of all."""
        n, width = self._n_topics, self._sampler.width
        if len(self._words) < len(counts):
            self._words = np.zeros((len(counts), width), dtype=np.float32)
        words, most = self._words[: len(counts)], 0.0
        for part in _rows_at_a_time(len(counts), width):
            here = words[part, :n]
            here[:] = counts[part]
            here += prior[part].reshape(len(here), -1)
            most = max(most, float(here.max(initial=0)))
        return words, most

    def _document_table(self) -> np.ndarray:
        """Tokens of each document and topic, made when it is asked for first."""
        if self._counts is None:
            width = self._sampler.width
            table = np.zeros((len(self._documents), width), dtype=np.float32)
            flat, one = table.reshape(-1), np.float32(1)
            for number, tiles in self._tiles.items():
                for tile in tiles:
                    if self._stages[tile.first] >= self._next[number]:
                        continue
                    rows = tile.documents.take(tile.cells) + np.intp(tile.first)
                    topics = self.topics[number][tile.tokens]
                    np.add.at(flat, rows * width + topics, one)
            self._counts = table
        return self._counts


def _joined(arrays: list[np.ndarray], dtype: Any) -> np.ndarray:
    """Arrays one after the other, perhaps none."""
    return np.concatenate([np.empty(0, dtype), *arrays], dtype=dtype)


def _rows_at_a_time(n_rows: int, width: int) -> Iterator[slice]:
    """Parts of a table that the cache holds."""
    step = max(1, _COUNTS // width)
    for first in range(0, n_rows, step):
        yield slice(first, min(first + step, n_rows))


def _to_counts(words: np.ndarray, prior: np.ndarray, counts: np.ndarray) -> None:
    """Whole numbers of counts plus prior, which are changed."""
    for part in _rows_at_a_time(*words.shape):
        here = words[part]
        here -= prior[part].reshape(len(here), -1)
        np.rint(here, out=here)
        counts[part] = here


def topic_dtype(n_topics: int) -> np.dtype:
    """The smallest type for the number of a topic."""
    return np.min_scalar_type(max(0, n_topics - 1))
