"""Moves of tokens by proposals, which the words and the documents make in turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dask_ma.data import Room
from dask_ma.kernels import (
    DocumentWeights,
    TermWeights,
    TokenRun,
    accept_topics,
    cut_runs,
    offer_of_documents,
    offer_of_words,
    without_itself,
)
from dask_ma.schmp.topics._documents import Documents
from dask_ma.schmp.topics._layout import BlockTokens
from dask_ma.schmp.topics._moves import Moves, Priors

_OFFERED, _WITHOUT = "tokens/offered", "tokens/without"


class MetropolisMoves(Moves):
    """Tokens are offered topics, by the words and by the documents in turns.

    Documents look at what the words have offered when a rotation begins, words at what
    the documents have offered while a block is here. So topics are what the counts of
    the blocks say at the end of a rotation.

    Tokens of a block lie in the order of the documents: documents go through all blocks
    side by side, and words through one, from place to place.
    """

    def __init__(
        self, documents: Documents, n_topics: int, room: Room, n_proposals: int
    ) -> None:
        super().__init__(documents, n_topics, room)
        self._n_proposals = n_proposals
        self._of_documents = cut_runs(documents.starts, n_topics)
        self._parts: dict[int, np.ndarray] = {}
        self._by_word: dict[int, np.ndarray] = {}
        self._offered: dict[int, np.ndarray] = {}
        self._without: dict[int, np.ndarray] = {}
        self._moved: dict[int, np.ndarray] = {}  # what blocks have not been told yet

    def add_block(self, number: int, block: BlockTokens) -> None:
        room, n = self._room, len(block.tokens)
        [self.tokens[number]] = room.pack([block.tokens], np.int32)
        [self._by_word[number]] = room.pack([block.by_word], np.int32)
        self._ends[number] = block.ends
        runs = np.array(self._of_documents, dtype=np.intp).reshape(-1, 2)
        self._parts[number] = block.starts[runs]
        self.topics[number] = room.empty(n, self._dtype)
        self._moved[number] = room.empty(n, self._dtype)
        self._offered[number] = room.empty((self._n_proposals, n), self._dtype)
        self._without[number] = room.empty(n, np.float32)
        self._without[number][:] = 1

    def _place_by_word(self, number: int, topics: np.ndarray) -> None:
        self.topics[number][self._by_word[number]] = topics

    def words(self, number: int) -> np.ndarray:
        words = np.empty(len(self.tokens[number]), dtype=np.int32)
        ends = self._ends[number]
        numbers = np.arange(len(ends) - 1, dtype=np.int32)
        words[self._by_word[number]] = np.repeat(numbers, np.diff(ends))
        return words

    def document_counts(self) -> Iterator[np.ndarray]:
        for number, (first, last) in enumerate(self._of_documents):
            run = TokenRun.between(first, last, self._documents.starts)
            topics = self._of_run(number, self._places(number), self.topics)
            yield _counted(run, topics, self._n_topics)

    def place(
        self, number: int, counts: np.ndarray, weights: Any, rng: np.random.Generator
    ) -> np.ndarray:
        change = super().place(number, counts, weights, rng)
        # Offers that change nothing: counts are not complete yet.
        self._offered[number][:] = self.topics[number]
        return change

    def begin_rotation(
        self, priors: Priors, totals: np.ndarray, rng: np.random.Generator
    ) -> None:
        n, starts = self._n_topics, self._documents.starts
        inverse = (1 / (totals + priors.sums)).astype(np.float32)
        alpha = priors.document.astype(np.float32)
        change = np.zeros(n, dtype=np.int64)
        for number, (first, last) in enumerate(self._of_documents):
            run = TokenRun.between(first, last, starts)
            places = self._places(number)
            own, offered, without = (
                self._of_run(number, places, arrays)
                for arrays in (self.topics, self._offered, self._without)
            )
            counts = _counted(run, own, n)
            weights = DocumentWeights(run, counts, alpha, inverse)
            change -= counts.sum(axis=0)
            moved = accept_topics(own, offered, without, weights, rng)
            counts[:] = _counted(run, moved, n)
            change += counts.sum(axis=0)
            without = without_itself(weights.share(moved))
            offers = offer_of_documents(
                run, moved, priors.document, self._n_proposals, rng
            )
            self._to_blocks(number, places, self._moved, moved)
            self._to_blocks(number, places, self._without, without)
            self._to_blocks(number, places, self._offered, offers)
        self.unreported = change
        totals += change

    def visit(
        self,
        number: int,
        counts: np.ndarray,
        priors: Priors,
        totals: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, int]:
        topics, offered = self.topics[number], self._offered[number]
        without, ends = self._without[number], self._ends[number]
        change, n_changed = np.zeros(self._n_topics, dtype=np.int64), 0
        for first, last in cut_runs(ends, self._n_topics):
            run = TokenRun.between(first, last, ends)
            tokens = self._by_word[number][ends[first] : ends[last]].astype(np.intp)
            own, before = counts[first:last], topics.take(tokens)
            now = self._moved[number].take(tokens)
            told, _ = self._move(own, run.owners, before, now)
            inverse = (1 / (totals + priors.sums)).astype(np.float32)
            prior = priors.words[first:last]
            weights = TermWeights(run, own, prior, inverse)
            after = accept_topics(
                now, offered.take(tokens, axis=1), without.take(tokens), weights, rng
            )
            moved, _ = self._move(own, run.owners, now, after)
            without[tokens] = without_itself(weights.share(after))
            offers = offer_of_words(run, after, own, prior, self._n_proposals, rng)
            for row, offer in zip(offered, offers, strict=True):
                row[tokens] = offer
            topics[tokens] = after
            totals += moved
            self.unreported -= told
            change += told + moved
            n_changed += int((after != before).sum())
        return change, n_changed

    def _kept(self) -> dict[str, dict[int, np.ndarray]]:
        own = {_OFFERED: self._offered, _WITHOUT: self._without}
        return {**super()._kept(), **own}

    def _places(self, run: int) -> np.ndarray:
        """Where the tokens that blocks have of some documents are among all of them."""
        parts = [
            self.tokens[number][first:last]
            for number, (first, last) in self._parts_of(run)
        ]
        first = self._documents.starts[self._of_documents[run][0]]
        return np.concatenate(parts) - np.int32(first)

    def _parts_of(self, run: int) -> list[tuple[int, np.ndarray]]:
        """Of each block, from where to where it has tokens of some documents."""
        return [(number, parts[run]) for number, parts in self._parts.items()]

    def _of_run(
        self, run: int, places: np.ndarray, arrays: dict[int, np.ndarray]
    ) -> np.ndarray:
        """What blocks have of the tokens of some documents, one after the other."""
        parts = [
            arrays[number][..., first:last]
            for number, (first, last) in self._parts_of(run)
        ]
        joined = np.concatenate(parts, axis=-1)
        in_order = np.empty_like(joined)
        in_order[..., places] = joined
        return in_order

    def _to_blocks(
        self,
        run: int,
        places: np.ndarray,
        arrays: dict[int, np.ndarray],
        values: np.ndarray,
    ) -> None:
        """Give blocks what is new of the tokens of some documents."""
        values, done = values.take(places, axis=-1), 0
        for number, (first, last) in self._parts_of(run):
            end = done + last - first
            arrays[number][..., first:last] = values[..., done:end]
            done = end


def _counted(run: TokenRun, topics: np.ndarray, n_topics: int) -> np.ndarray:
    """Tokens of each owner and topic."""
    n_owners = run.last - run.first
    cells = run.owners * np.intp(n_topics) + topics
    return np.bincount(cells, minlength=n_owners * n_topics).reshape(n_owners, -1)
