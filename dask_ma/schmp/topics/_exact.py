"""Draws of tokens from their exact conditional distributions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group
from dask_ma.data import Room, Shelf
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
from dask_ma.schmp.topics._documents import Documents
from dask_ma.schmp.topics._layout import BlockTokens
from dask_ma.schmp.topics._moves import Due, Moves, Priors
from dask_ma.schmp.topics._rows import opened

# Up to here a float32 is less than a quarter from the number that ones are added to.
_MOST_COUNTED = 2**21
_COUNTS = 2**15  # elements of a table of counts at a time
_COLUMNS = "documents", "words", "repeats"  # arrays of a tile
_SPARSE_FROM = 1000  # topics, of which most words have a few


class ExactMoves(Moves):
    """Tokens are drawn from their conditional distributions, a tile at a time.

    With stages, a part of the documents comes in with each of the first rotations, as
    many as there are, and these are gone through several times, while a block is here
    or in several laps of the blocks: so often that all rotations draw about as many
    tokens. A token gets its first topic given those of the
    tokens that are there.

    With many topics, counts of words are sparse but for those of the block that is
    looked at.
    """

    def __init__(
        self,
        documents: Documents,
        n_topics: int,
        room: Room,
        n_stages: int = 0,
        n_ranks: int = 1,
        is_first: bool = True,
        n_blocks: int = 1,
    ) -> None:
        super().__init__(documents, n_topics, room, n_stages, n_ranks, is_first)
        self._sampler = TileSampler(n_topics)
        self._size = tokens_of_tile(documents.n_all_tokens, n_topics)
        self._stages = document_stages(documents.keys, n_stages)
        self._bounds = document_groups(
            documents.lengths, self._size, self._stages, n_blocks
        )
        self._shelves = _shelves(documents, room, self._size)
        self._tiles: dict[int, list[Tile]] = {}
        self._offsets: dict[int, np.ndarray] = {}  # of cells, in their documents
        self._counts: np.ndarray | None = None  # of documents, plus their prior
        self._prior = np.zeros(self._sampler.width, dtype=np.float32)
        self._words = np.empty((0, self._sampler.width), dtype=np.float32)

    def add_block(self, number: int, block: BlockTokens) -> None:
        tiles, order = cut_tiles(block.owners, block.words, self._bounds, self._size)
        first = [order[tile.tokens][: len(tile.words)] for tile in tiles]
        offsets = block.offsets.take(_joined(first, np.int32))
        shelves = self._shelves
        [self._offsets[number]] = shelves["offsets"].pack([offsets], offsets.dtype)
        self.topics[number] = shelves["topics"].empty(len(order), self._dtype)
        self._next[number] = 0 if self.n_stages else 1
        if not tiles:
            self._tiles[number] = []
            return
        columns = {}
        for name in _COLUMNS:
            arrays = [getattr(tile, name) for tile in tiles]
            columns[name] = shelves[name].pack(arrays, arrays[0].dtype)
        self._tiles[number] = [
            tile._replace(**dict(zip(columns, arrays, strict=True)))
            for tile, *arrays in zip(tiles, *columns.values(), strict=True)
        ]

    def empty_counts(self, n_words: int) -> Any:
        return self.as_counts(np.zeros((n_words, self._n_topics), dtype=np.int32))

    def as_counts(self, counts: Any) -> Any:
        return sparse.csr_array(counts) if has_sparse_rows(self._n_topics) else counts

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
        with opened(counts) as table:
            np.add.at(table.reshape(-1), cells, np.int32(1))
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
        counts, prior = self._document_table(), self._prior
        if self._hides_counts():
            counts, prior = self._tokens_of_documents(), np.zeros_like(prior)
        for part in _rows_at_a_time(*counts.shape):
            own = counts[part] - prior
            yield np.rint(own[:, : self._n_topics]).astype(np.int64)

    def load(self, group: Group, state: State) -> None:
        super().load(group, state)
        self._counts = None
        self._next = dict.fromkeys(self._next, self.n_stages + 1)

    def begin_rotation(
        self, priors: Priors, totals: np.ndarray, rng: np.random.Generator
    ) -> None:
        self._take_prior(priors)

    def visit(
        self,
        number: int,
        counts: Any,
        priors: Priors,
        totals: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, int]:
        if self._counts is None:
            self._take_prior(priors)  # with the tokens that have come in by now
        due = self._due(number, counts)
        if due is None:
            return np.zeros_like(totals), 0
        with opened(counts) as table:
            return self._draw(number, due, table, priors, totals, rng)

    def _draw(
        self,
        number: int,
        due: Due,
        counts: np.ndarray,
        priors: Priors,
        totals: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, int]:
        """Draw the tokens of a block, whose counts are dense."""
        topics, n = self.topics[number], self._n_topics
        words, most = self._as_weights(counts, priors.words)
        known = TopicCounts(topics, self._document_table(), words, totals, priors.sums)
        totals_before = totals.copy()
        tiles, new = self._tiles_of(number, due)
        for tile in new:
            self._sampler.place(tile, known, rng)
        before, n_changed = None, 0
        if most + len(topics) > _MOST_COUNTED:
            for tile in new:
                cells = tile.words.take(tile.cells) * np.intp(n) + topics[tile.tokens]
                np.add.at(counts.reshape(-1), cells, np.int32(1))
            before = topics.copy()
        for _ in range(due.n_turns):
            n_changed = sum(self._sampler.draw(tile, known, rng) for tile in tiles)
        if before is None:
            # Counts plus prior, with the changes: faster than to make these again.
            _to_counts(words[:, :n], priors.words, counts)
        else:
            self._move(counts, self.words(number), before, topics)
        return totals - totals_before, n_changed if due.is_last else 0

    def _tiles_of(self, number: int, due: Due) -> tuple[list[Tile], list[Tile]]:
        """Tiles of the documents that are there, and those of them that come in."""
        tiles = self._tiles[number]
        if due.stage == self.n_stages and not due.is_new:
            return tiles, []
        stages = [self._stages[tile.first] for tile in tiles]
        both = list(zip(tiles, stages, strict=True))
        there = [tile for tile, stage in both if stage <= due.stage]
        new = [tile for tile, stage in both if stage == due.stage and due.is_new]
        return there, new

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

    def _take_prior(self, priors: Priors) -> None:
        """Have the counts of documents with this prior, as if they were made anew."""
        before = self._prior.copy()
        if self._counts is None or self._hides_counts():
            self._counts = None  # two tables may be too many
            self._counts = self._tokens_of_documents()
            before[:] = 0
        counts = self._counts
        self._prior[: self._n_topics] = priors.document
        for part in _rows_at_a_time(*counts.shape):
            here = counts[part]
            here -= before
            np.rint(here, out=here)
            here += self._prior

    def _document_table(self) -> np.ndarray:
        """Tokens of documents and topics plus the prior, made when first asked for."""
        if self._counts is None:
            self._counts = self._tokens_of_documents()
            self._counts += self._prior
        return self._counts

    def _tokens_of_documents(self) -> np.ndarray:
        """Tokens of documents and topics, counted."""
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
        return table

    def _hides_counts(self) -> bool:
        """Whether counts of documents are lost in single precision beside the prior."""
        most = self._documents.lengths.max(initial=0) + self._prior.max()
        return bool(most > _MOST_COUNTED)


def _shelves(documents: Documents, room: Room, size: int) -> dict[str, Shelf]:
    """Room for what there is of tokens, and of cells, of tiles of a size."""
    n_tokens, n_cells = documents.n_tokens, documents.n_cells
    if n_cells is None:
        sizes = dict.fromkeys(("topics", "offsets", *_COLUMNS), n_tokens)
    else:
        # A cell has a part in each of the tiles into which its tokens are cut.
        n_parts = min(n_tokens, n_cells + 2 * n_tokens // size)
        sizes = dict.fromkeys(("offsets", *_COLUMNS), n_parts)
        sizes |= {"topics": n_tokens, "repeats": n_tokens - n_cells}
    return {name: Shelf(room, n) for name, n in sizes.items()}


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


def has_sparse_rows(n_topics: int) -> bool:
    """Whether "exact" draws have sparse counts of words; "metropolis" always has."""
    return n_topics >= _SPARSE_FROM
