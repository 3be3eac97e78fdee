"""How the tokens of a rank get other topics, while a block of words is there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from dask_ma.kernels import (
    DocumentWeights,
    TermWeights,
    Tile,
    TileSampler,
    TokenRun,
    TopicCounts,
    accept_topics,
    cut_runs,
    cut_tiles,
    document_groups,
    draw_by_rows,
    offer_of_documents,
    offer_of_words,
    tokens_of_tile,
    without_itself,
)
from dask_ma.schmp.topics._documents import Documents

_ONE = np.int32(1)  # one of another type than the counts takes ten times as long
# Up to here a float32 is less than a quarter from the number that ones are added to.
_MOST_COUNTED = 2**21
_OFFERED, _WITHOUT = "tokens/offered", "tokens/without"


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
        Tokens of this rank.
    n_topics : int

    Attributes
    ----------
    unreported : ndarray of int64 of shape (n_topics,)
        Changes of the topics' totals that blocks have not been told yet.
    """

    def __init__(self, documents: Documents, n_topics: int) -> None:
        self.unreported = np.zeros(n_topics, dtype=np.int64)
        self._documents = documents
        self._n_topics = n_topics
        self._tokens: dict[int, np.ndarray] = {}
        self._words: dict[int, np.ndarray] = {}

    def add_block(self, number: int, tokens: np.ndarray, words: np.ndarray) -> None:
        """Lay the tokens of a block out.

        Parameters
        ----------
        number : int
            Which block this is.
        tokens : ndarray of int32 of shape (n,)
            Its tokens, one word after the other.
        words : ndarray of int32 of shape (n,)
            Their words, counted within the block.
        """
        self._tokens[number], self._words[number] = tokens, words

    def place(
        self, number: int, counts: np.ndarray, weights: Any, rng: np.random.Generator
    ) -> np.ndarray:
        """Give the tokens of a block their first topics.

        Parameters
        ----------
        number : int
            Which block this is.
        counts : ndarray of int32 of shape (n_words, n_topics)
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
        words = self._words[number]
        if weights is None:
            topics = rng.integers(0, self._n_topics, len(words), dtype=np.int32)
        else:
            topics = draw_by_rows(words, weights, rng)
        self._documents.topics[self._tokens[number]] = topics
        np.add.at(counts.reshape(-1), words * np.intp(self._n_topics) + topics, _ONE)
        return np.bincount(topics, minlength=self._n_topics)

    @abstractmethod
    def begin_rotation(
        self, priors: Priors, totals: np.ndarray, rng: np.random.Generator
    ) -> None:
        """Prepare for a rotation; `totals` are changed in place."""

    @abstractmethod
    def visit(
        self,
        number: int,
        counts: np.ndarray,
        priors: Priors,
        totals: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, int]:
        """Move the tokens of a block.

        Parameters
        ----------
        number : int
            Which block this is.
        counts : ndarray of int32 of shape (n_words, n_topics)
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

    def kept(self) -> dict[str, np.ndarray]:
        """Arrays of shape (..., n_tokens) to be kept beside the topics."""
        return {}

    def _move(
        self,
        counts: np.ndarray,
        words: np.ndarray,
        before: np.ndarray,
        after: np.ndarray,
    ) -> tuple[np.ndarray, int]:
        """Bring counts up to date; change of the totals, and tokens that differ."""
        changed = np.flatnonzero(before != after)
        before, after = before[changed], after[changed]
        rows = words[changed] * np.intp(self._n_topics)
        flat = counts.reshape(-1)
        np.subtract.at(flat, rows + before, _ONE)
        np.add.at(flat, rows + after, _ONE)
        change = np.bincount(after, minlength=self._n_topics)
        return change - np.bincount(before, minlength=self._n_topics), len(changed)


class ExactMoves(Moves):
    """Tokens are drawn from their conditional distributions, a tile at a time."""

    def __init__(self, documents: Documents, n_topics: int) -> None:
        super().__init__(documents, n_topics)
        self._sampler = TileSampler(n_topics)
        self._size = tokens_of_tile(documents.n_all_tokens, n_topics)
        self._bounds = document_groups(documents.lengths, self._size)
        self._owners = documents.owners()
        self._tiles: dict[int, list[Tile]] = {}
        self._counts: np.ndarray | None = None

    def add_block(self, number: int, tokens: np.ndarray, words: np.ndarray) -> None:
        super().add_block(number, tokens, words)
        self._tiles[number] = cut_tiles(
            self._owners[tokens], words, tokens, self._bounds, self._size
        )

    def begin_rotation(
        self, priors: Priors, totals: np.ndarray, rng: np.random.Generator
    ) -> None:
        if self._counts is None:  # before, tokens had no topics
            width = self._sampler.width
            self._counts = np.zeros((len(self._documents), width), dtype=np.float32)
            first = 0
            for part in self._documents.counts(self._n_topics):
                self._counts[first : first + len(part), : self._n_topics] = part
                first += len(part)

    def visit(
        self,
        number: int,
        counts: np.ndarray,
        priors: Priors,
        totals: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, int]:
        n, width = self._n_topics, self._sampler.width
        topics, tokens = self._documents.topics, self._tokens[number]
        prior = priors.words if priors.words.ndim == 2 else priors.words[:, np.newaxis]
        words = np.zeros((len(counts), width), dtype=np.float32)
        words[:, :n] = counts
        words[:, :n] += prior
        of_document = np.zeros(width, dtype=np.float32)
        of_document[:n] = priors.document
        assert self._counts is not None  # made by begin_rotation
        known = TopicCounts(
            topics, self._counts, words, totals, of_document, priors.sums
        )
        totals_before = totals.copy()
        most = float(words.max(initial=0)) + len(tokens)
        before = topics[tokens] if most > _MOST_COUNTED else None
        n_changed = sum(self._sampler.draw(t, known, rng) for t in self._tiles[number])
        if before is None:
            # Counts plus prior, with the changes: faster than to make these again.
            np.rint(words[:, :n] - prior, out=counts, casting="unsafe")
        else:
            self._move(counts, self._words[number], before, topics[tokens])
        return totals - totals_before, n_changed


class MetropolisMoves(Moves):
    """Tokens are offered topics, by the words and by the documents in turns.

    Documents look at what the words have offered when a rotation begins, words at what
    the documents have offered while a block is here. So topics are what the counts of
    the blocks say at the end of a rotation.
    """

    def __init__(self, documents: Documents, n_topics: int, n_proposals: int) -> None:
        super().__init__(documents, n_topics)
        tokens = np.arange(len(documents.words), dtype=np.int32)
        owners = documents.owners()
        self._runs: dict[int, list[TokenRun]] = {}
        self._of_documents = cut_runs(owners, tokens, len(documents), n_topics)
        self._offered = np.zeros((n_proposals, len(tokens)), dtype=np.int32)
        self._without = np.ones(len(tokens), dtype=np.float32)
        self._moved = documents.topics  # what blocks have not been told yet

    def add_block(self, number: int, tokens: np.ndarray, words: np.ndarray) -> None:
        super().add_block(number, tokens, words)
        n_words = int(words[-1]) + 1 if len(words) else 0
        self._runs[number] = cut_runs(words, tokens, n_words, self._n_topics)

    def place(
        self, number: int, counts: np.ndarray, weights: Any, rng: np.random.Generator
    ) -> np.ndarray:
        change = super().place(number, counts, weights, rng)
        tokens = self._tokens[number]
        # Offers that change nothing: counts are not complete yet.
        self._offered[:, tokens] = self._documents.topics[tokens]
        return change

    def begin_rotation(
        self, priors: Priors, totals: np.ndarray, rng: np.random.Generator
    ) -> None:
        n, topics = self._n_topics, self._documents.topics
        self._moved = topics.copy()
        inverse = (1 / (totals + priors.sums)).astype(np.float32)
        alpha = priors.document.astype(np.float32)
        for run in self._of_documents:
            part = slice(run.tokens[0], run.tokens[-1] + 1)
            own = topics[part]
            cells = run.owners * np.intp(n) + own
            counts = np.bincount(cells, minlength=(run.last - run.first) * n)
            weights = DocumentWeights(run, counts.reshape(-1, n), alpha, inverse)
            moved = accept_topics(
                own, self._offered[:, part], self._without[part], weights, rng
            )
            np.subtract.at(counts, cells, 1)
            np.add.at(counts, run.owners * np.intp(n) + moved, 1)
            self._without[part] = without_itself(weights.share(moved))
            self._offered[:, part] = offer_of_documents(
                run, moved, priors.document, len(self._offered), rng
            )
            self._moved[part] = moved
        self.unreported = self._totals(self._moved) - self._totals(topics)
        totals += self.unreported

    def visit(
        self,
        number: int,
        counts: np.ndarray,
        priors: Priors,
        totals: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, int]:
        topics, n_changed = self._documents.topics, 0
        change = np.zeros(self._n_topics, dtype=np.int64)
        for run in self._runs[number]:
            words = slice(run.first, run.last)
            tokens = run.tokens.astype(np.intp)
            own, before = counts[words], topics.take(tokens)
            now = self._moved.take(tokens)
            told, _ = self._move(own, run.owners, before, now)
            inverse = (1 / (totals + priors.sums)).astype(np.float32)
            prior = priors.words[words]
            weights = TermWeights(run, own, prior, inverse)
            after = accept_topics(
                now,
                self._offered.take(tokens, axis=1),
                self._without.take(tokens),
                weights,
                rng,
            )
            moved, _ = self._move(own, run.owners, now, after)
            self._without[tokens] = without_itself(weights.share(after))
            offers = offer_of_words(run, after, own, prior, len(self._offered), rng)
            for row, offer in zip(self._offered, offers, strict=True):
                row[tokens] = offer
            topics[tokens] = after
            totals += moved
            self.unreported -= told
            change += told + moved
            n_changed += int((after != before).sum())
        return change, n_changed

    def kept(self) -> dict[str, np.ndarray]:
        return {_OFFERED: self._offered, _WITHOUT: self._without}

    def _totals(self, topics: np.ndarray) -> np.ndarray:
        """Tokens of each topic."""
        return np.bincount(topics, minlength=self._n_topics)
