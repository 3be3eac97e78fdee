"""Moves of tokens by proposals, which the words and the documents make in turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group
from dask_ma.data import Room
from dask_ma.engine import State
from dask_ma.kernels import (
    DocumentWeights,
    FilledCells,
    KeptArrays,
    TermWeights,
    TokenRun,
    TokenTables,
    accept_topics,
    are_moved_singly,
    cut_runs,
    document_stages,
    draw_by_rows,
    move_singly,
    offer_of_documents,
    offer_of_words,
)
from dask_ma.schmp.topics._documents import Documents
from dask_ma.schmp.topics._layout import BlockTokens
from dask_ma.schmp.topics._moves import Moves, Priors
from dask_ma.schmp.topics._rows import OpenRows

_OFFERED = "tokens/offered"
# Elements of the counts of some words: these are of one or two bytes, and gone through
# word by word, so that more of them cost less than more runs of few tokens.
_RUN_CELLS = 2_000_000


class MetropolisMoves(Moves):
    """Tokens are offered topics, by the words and by the documents in turns.

    Documents look at what the words have offered when a rotation begins, words at what
    the documents have offered while a block is here. So topics are what the counts of
    the blocks say at the end of a rotation.

    With stages, a part of the documents comes in with each of the first rotations, with
    topics drawn by what their words have. Both sides take several turns, while a block
    is here for its tokens alone, and in several laps of the blocks: so many that such a
    rotation draws about twice as many tokens as there are, but for that in which the
    last ones come in.

    Tokens of a small corpus are moved one after the other while their block is here.

    Tokens of a block lie in the order of the documents: documents go through all blocks
    side by side, and words through one, from place to place. Counts of words are sparse
    but for those that are looked at.
    """

    _times, _laps_of_ranks = 2, 8

    def __init__(
        self,
        documents: Documents,
        n_topics: int,
        room: Room,
        n_proposals: int,
        n_stages: int = 0,
        n_ranks: int = 1,
        is_first: bool = True,
    ) -> None:
        super().__init__(documents, n_topics, room, n_stages, n_ranks, is_first)
        self._n_proposals = n_proposals
        self._is_small = are_moved_singly(documents.n_all_tokens)
        self._kept_arrays = KeptArrays()
        stages = document_stages(documents.keys, n_stages)
        self._edges = np.searchsorted(stages, np.arange(n_stages + 2))
        self._of_documents = [
            (int(edge) + first, int(edge) + last)
            for edge, end in zip(self._edges[:-1], self._edges[1:], strict=True)
            for first, last in cut_runs(documents.starts[edge : end + 1], n_topics)
        ]
        self._stages = stages[[first for first, _ in self._of_documents]]
        self._cuts: dict[int, np.ndarray] = {}  # of a block, where stages end
        self._parts: dict[int, np.ndarray] = {}
        self._tokens: dict[int, np.ndarray] = {}
        self._by_word: dict[int, np.ndarray] = {}
        self._ends: dict[int, np.ndarray] = {}  # of the words of each block
        self._offered: dict[int, np.ndarray] = {}
        self._moved: dict[int, np.ndarray] = {}  # what blocks have not been told yet

    def add_block(self, number: int, block: BlockTokens) -> None:
        room, n = self._room, len(block.owners)
        places = self._documents.starts.astype(np.int32).take(block.owners)
        places += block.offsets
        [self._tokens[number]] = room.pack([places], np.int32)
        del places
        [self._by_word[number]] = room.pack([block.by_word()], np.int32)
        self._ends[number] = block.ends
        runs = np.array(self._of_documents, dtype=np.int32).reshape(-1, 2)
        self._parts[number] = np.searchsorted(block.owners, runs)
        edges = self._edges.astype(np.int32)
        self._cuts[number] = np.searchsorted(block.owners, edges)
        # A block without words is not visited, and no stage waits for it.
        has_words = len(block.ends) > 1
        self._next[number] = 0 if self.n_stages and has_words else self.n_stages + 1
        self.topics[number] = room.empty(n, self._dtype)
        self._moved[number] = room.empty(n, self._dtype)
        # Offers of a token lie side by side: they are looked up together.
        self._offered[number] = room.empty((n, self._n_proposals), self._dtype)

    def empty_counts(self, n_words: int) -> Any:
        return sparse.csr_array((n_words, self._n_topics), dtype=np.int32)

    def as_counts(self, counts: Any) -> Any:
        return sparse.csr_array(counts)

    def place(
        self, number: int, counts: Any, weights: Any, rng: np.random.Generator
    ) -> np.ndarray:
        self._next[number] = self.n_stages + 1
        by_word, ends = self._by_word[number], self._ends[number]
        return self._come_in(number, by_word, ends, counts, weights, rng)

    def places(self, number: int) -> np.ndarray:
        return self._tokens[number]

    def words(self, number: int) -> np.ndarray:
        words = np.empty(len(self._tokens[number]), dtype=np.int32)
        ends = self._ends[number]
        numbers = np.arange(len(ends) - 1, dtype=np.int32)
        words[self._by_word[number]] = np.repeat(numbers, np.diff(ends))
        return words

    def document_counts(self) -> Iterator[np.ndarray]:
        for run, (first, last) in enumerate(self._of_documents):
            parts = self._parts_of(run, [])
            if not parts:  # they have yet to come in
                yield np.zeros((last - first, self._n_topics), dtype=np.int64)
                continue
            owners = self._owners(run, self._places(run, parts))
            topics = _joined(self.topics, parts)
            yield _counted(owners, topics, last - first, self._n_topics)

    def load(self, group: Group, state: State) -> None:
        super().load(group, state)
        self._next = dict.fromkeys(self._next, self.n_stages + 1)

    def begin_rotation(
        self, priors: Priors, totals: np.ndarray, rng: np.random.Generator
    ) -> None:
        if min(self._next.values()) > self.n_stages and not self._is_small:
            runs = range(len(self._of_documents))
            self._turn_of_documents(runs, list(self.topics), priors, totals, rng)

    def visit(
        self,
        number: int,
        counts: Any,
        priors: Priors,
        totals: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, int]:
        if self._next[number] > self.n_stages:
            if self._is_small:
                return self._singly(number, counts, priors, totals, rng)
            by_word, ends = self._by_word[number], self._ends[number]
            return self._turn_of_words(
                number, by_word, ends, counts, priors, totals, rng
            )
        cuts, due = self._cuts[number], self._due(number, counts)
        change, n_changed = np.zeros(self._n_topics, dtype=np.int64), 0
        if due is None:
            return change, n_changed
        stage = due.stage
        if due.is_new:
            new = self._between(number, cuts[stage], cuts[stage + 1])
            change += self._come_in(number, *new, counts, priors, rng)
            totals += change
        there = self._between(number, 0, cuts[stage + 1])
        runs = range(np.searchsorted(self._stages, stage, side="right"))
        for _ in range(due.n_turns):
            self._turn_of_documents(runs, [number], priors, totals, rng)
            moved, n_changed = self._turn_of_words(
                number, *there, counts, priors, totals, rng
            )
            change += moved
        return change, n_changed if due.is_last else 0

    def _singly(
        self,
        number: int,
        counts: Any,
        priors: Priors,
        totals: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, int]:
        """Move the tokens of a block one after the other."""
        words, n = self.words(number), self._n_topics
        if not len(words):
            return np.zeros(n, dtype=np.int64), 0
        owners = {
            block: self._documents.owners(tokens)
            for block, tokens in self._tokens.items()
        }
        there, words = np.unique(words, return_inverse=True)
        rows, before = OpenRows(counts, self._kept_arrays), self.topics[number]
        own, documents = rows.take(there), np.zeros((len(self._documents), n), int)
        for block, topics in self.topics.items():
            np.add.at(documents, (owners[block], topics), 1)
        prior = priors.words[there].astype(np.float64)
        table = np.broadcast_to(prior.reshape(len(there), -1), own.shape)
        tables = TokenTables(
            documents, own, totals, priors.document, table, priors.sums
        )
        after = move_singly(
            owners[number], words, before, tables, self._n_proposals, rng
        )
        change, n_changed = self._move(own, words, before, after)
        rows.put(FilledCells.of(own))
        rows.close()
        before[:] = after
        totals += change
        return change, n_changed

    def _between(
        self, number: int, begin: int, end: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Some tokens of a block by word, and where those of each word begin."""
        by_word, ends = self._by_word[number], self._ends[number]
        chosen = (by_word >= begin) & (by_word < end)
        upto = np.concatenate([[0], np.cumsum(chosen, dtype=np.int32)])
        return by_word[chosen], upto[ends]

    def _come_in(
        self,
        number: int,
        by_word: np.ndarray,
        ends: np.ndarray,
        counts: Any,
        by: Priors | np.ndarray | None,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Draw first topics by what the words have, or some weights, or neither."""
        n, change = self._n_topics, np.zeros(self._n_topics, dtype=np.int64)
        kept, coming = self._kept_arrays, int(np.diff(ends).max(initial=0))
        rows = OpenRows(counts, kept, coming)
        for words, tokens, run in self._runs_of_words(by_word, ends):
            own = rows.take(words)
            if isinstance(by, Priors):
                there, prior = FilledCells.of(own, kept), by.words[words]
                [topics] = offer_of_words(run, None, there, n, prior, 1, rng, kept)
            elif by is None:
                topics = rng.integers(0, n, len(tokens), dtype=np.int32)
            else:
                topics = draw_by_rows(run.owners, by[words], rng)
            cells = run.owners * np.intp(n) + topics
            np.add.at(own.reshape(-1), cells, own.dtype.type(1))
            rows.put(FilledCells.of(own, kept))
            change += np.bincount(topics, minlength=n)
            self.topics[number][tokens] = topics
            # Offers that change nothing: counts are not complete yet.
            self._offered[number][tokens] = topics[:, np.newaxis]
        rows.close()
        return change

    def _turn_of_documents(
        self,
        runs: Iterable[int],
        blocks: list[int],
        priors: Priors,
        totals: np.ndarray,
        rng: np.random.Generator,
    ) -> None:
        """Documents look at what tokens of some blocks are offered, and offer more."""
        n, before, kept = self._n_topics, totals.copy(), self._kept_arrays
        alpha = priors.document.astype(np.float32)
        for run in runs:
            first, last = self._of_documents[run]
            parts = self._parts_of(run, blocks)
            places = self._places(run, parts)
            owners, topics = self._owners(run, places), _joined(self.topics, parts)
            lengths = np.bincount(owners, minlength=last - first)
            dtype = np.min_scalar_type(int(lengths.max()))
            counts = kept("counts", (last - first) * n, dtype).reshape(-1, n)
            counts.fill(0)
            cells = kept("cells", len(owners), np.intp)
            np.multiply(owners, np.intp(n), out=cells)
            cells += topics
            np.add.at(counts.reshape(-1), cells, dtype.type(1))
            turn = [(number, part) for number, part in parts if number in blocks]
            offered = _joined(self._offered, turn)
            tokens = TokenRun(first, last, owners[: len(offered)])
            own = topics[: len(offered)]
            weights = DocumentWeights(tokens, counts, alpha, totals + priors.sums, kept)
            moved = accept_topics(own, offered.T, weights, rng)
            totals += self._move(counts, tokens.owners, own, moved)[0]
            topics[: len(moved)] = moved
            urn, at = self._urn(run, places, topics)
            at, n_proposals = at[: len(moved)], self._n_proposals
            offers = offer_of_documents(
                tokens, urn, at, lengths, priors.document, n_proposals, rng, kept
            )
            _give(self._moved, turn, moved)
            _give(self._offered, turn, offers.T)
        self.unreported += totals - before

    def _turn_of_words(
        self,
        number: int,
        by_word: np.ndarray,
        ends: np.ndarray,
        counts: Any,
        priors: Priors,
        totals: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, int]:
        """Words look at what some tokens of a block are offered, and offer more."""
        topics, offered = self.topics[number], _items(self._offered[number])
        shape = -1, self._n_proposals
        change, n_changed = np.zeros(self._n_topics, dtype=np.int64), 0
        kept = self._kept_arrays
        rows = OpenRows(counts, kept)
        for words, tokens, run in self._runs_of_words(by_word, ends):
            own, before = rows.take(words), topics.take(tokens)
            now = self._moved[number].take(tokens)
            told, _ = self._move(own, run.owners, before, now)
            prior = priors.words[words]
            weights = TermWeights(run, own, prior, totals + priors.sums, kept)
            proposals = offered.take(tokens).view(self._dtype).reshape(shape)
            after = accept_topics(now, proposals.T, weights, rng)
            moved, _ = self._move(own, run.owners, now, after)
            cells = FilledCells.of(own, kept)
            rows.put(cells)
            offers = offer_of_words(
                run, after, cells, self._n_topics, prior, self._n_proposals, rng, kept
            )
            offered[tokens] = _items(offers.T.astype(self._dtype))
            topics[tokens] = after
            totals += moved
            self.unreported -= told
            change += told + moved
            n_changed += int((after != before).sum())
        rows.close()
        return change, n_changed

    def _runs_of_words(
        self, by_word: np.ndarray, ends: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, TokenRun]]:
        """Words, as many as are looked at together, and their tokens."""
        there = np.flatnonzero(np.diff(ends))
        ends = np.append(0, ends[there + 1])
        for first, last in cut_runs(ends, self._n_topics, _RUN_CELLS):
            tokens = by_word[ends[first] : ends[last]].astype(np.intp)
            yield there[first:last], tokens, TokenRun.between(first, last, ends)

    def _kept(self) -> dict[str, dict[int, np.ndarray]]:
        offered = {number: array.T for number, array in self._offered.items()}
        return {**super()._kept(), _OFFERED: offered}

    def _parts_of(self, run: int, blocks: Sequence[int]) -> _Parts:
        """Where blocks have tokens of some documents, and topics; `blocks` first."""
        numbers = [*blocks, *(number for number in self._parts if number not in blocks)]
        return [
            (number, slice(*self._parts[number][run]))
            for number in numbers
            if self._stages[run] < self._next[number]
        ]

    def _places(self, run: int, parts: _Parts) -> np.ndarray:
        """Where these tokens are among all of the documents."""
        places = _joined(self._tokens, parts).astype(np.intp)
        places -= self._documents.starts[self._of_documents[run][0]]
        return places

    def _owners(self, run: int, places: np.ndarray) -> np.ndarray:
        """Documents of these, counted from the first."""
        bounds = self._of_documents[run]
        owners = TokenRun.between(*bounds, self._documents.starts).owners
        return owners.take(places)

    def _urn(
        self, run: int, places: np.ndarray, topics: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Topics of the documents' tokens, by document, and where these are there."""
        first, last = self._documents.starts[list(self._of_documents[run])]
        urn = np.empty(last - first, dtype=topics.dtype)
        urn[places] = topics
        if len(places) == len(urn):
            return urn, places
        is_there = np.zeros(len(urn), dtype=bool)
        is_there[places] = True
        return urn[is_there], (np.cumsum(is_there) - 1).take(places)


_Parts = list[tuple[int, slice]]


def _joined(arrays: dict[int, np.ndarray], parts: _Parts) -> np.ndarray:
    """What blocks have of some tokens, one block after the other."""
    return np.concatenate([arrays[number][part] for number, part in parts])


def _give(arrays: dict[int, np.ndarray], parts: _Parts, values: np.ndarray) -> None:
    """Give blocks what is new of some tokens, undoing :func:`_joined`."""
    done = 0
    for number, part in parts:
        end = done + part.stop - part.start
        arrays[number][part] = values[done:end]
        done = end


def _items(rows: np.ndarray) -> np.ndarray:
    """Rows of a table as single items: these are moved in an eighth of the time."""
    rows = np.ascontiguousarray(rows)
    size = rows.shape[1] * rows.itemsize
    return rows.view(np.dtype((np.void, size))).reshape(-1)


def _counted(
    owners: np.ndarray, topics: np.ndarray, n_owners: int, n_topics: int
) -> np.ndarray:
    """Tokens of each owner and topic."""
    cells = owners * np.intp(n_topics) + topics
    return np.bincount(cells, minlength=n_owners * n_topics).reshape(n_owners, -1)
