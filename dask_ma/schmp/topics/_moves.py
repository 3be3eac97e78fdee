"""Moves of a rank's tokens to other topics, while a block of words is there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group
from dask_ma.data import Room
from dask_ma.engine import State
from dask_ma.schmp.topics._documents import KEYS, STARTS, Documents
from dask_ma.schmp.topics._layout import BlockTokens, by_document

_TOPICS = "tokens/topics"
_CELLS = 2**20  # of counts that ranks add up at a time


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


class Due(NamedTuple):
    """What is to be done with a block of words that has come, in the first rotations.

    Attributes
    ----------
    stage : int
        Documents of this stage, and of those before it, are there.
    is_new : bool
        Whether those of this stage come in now.
    n_turns : int
        How often the tokens are gone through.
    is_last : bool
        Whether the block comes again only with the next rotation.
    """

    stage: int
    is_new: bool
    n_turns: int
    is_last: bool


class Moves(ABC):
    """Base of the samplers.

    Parameters
    ----------
    documents : Documents
        Tokens of this rank; sorted by stages, if there are any.
    n_topics : int
    room : Room
        Where what there is of each token lies.
    n_stages : int, default=0
        Rotations after which some documents have yet to come in.
    n_ranks : int, default=1
        Ranks that there are.
    is_first : bool, default=True
        Whether topics begin here, where documents come in by stages.

    Attributes
    ----------
    unreported : ndarray of int64 of shape (n_topics,)
        Changes of the topics' totals that blocks have not been told yet.
    topics : dict of int to ndarray of int of shape (n,)
        Topics of the tokens of each block, which lie in the order in which the sampler
        goes through them.
    n_stages : int
        As given.
    """

    _times = 1  # that a stage draws what a rotation of all documents draws
    _laps_of_ranks = 2  # at most in a rotation, where there are several

    def __init__(
        self,
        documents: Documents,
        n_topics: int,
        room: Room,
        n_stages: int = 0,
        n_ranks: int = 1,
        is_first: bool = True,
    ) -> None:
        self.n_stages = n_stages
        self._is_first = is_first
        self._most_laps = 1 if n_ranks == 1 else self._laps_of_ranks
        self._next: dict[int, int] = {}  # stage of each block that is to come in
        self._laps_made: dict[int, int] = {}  # of each block, in the first rotations
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

    def laps(self, rotation: int) -> int:
        """How often blocks go round in a rotation.

        Where there are several ranks, some words alone are looked at while a block is
        here. To go through their tokens time and again would give them topics that are
        not those of the words on other ranks. In rotation 0 there is one more lap, in
        which ranks wait for the blocks that have been on the first one.

        Parameters
        ----------
        rotation : int
            Its number, which in the beginning is that of a stage.

        Returns
        -------
        laps : int
        """
        laps = min(self._turns(rotation), self._most_laps)
        return laps + 1 if not rotation and laps > 1 else laps

    def _turns(self, stage: int) -> int:
        """How often tokens are gone through while a stage comes in."""
        left = self.n_stages - stage
        return self._times << left if left > 0 else 1

    def _due(self, number: int, counts: Any) -> Due | None:
        """What is due of a block; None if it is to be passed on as it is."""
        if self._next[number] > self.n_stages:  # the last one has come in
            return Due(self.n_stages, False, 1, True)
        made = self._laps_made.get(number, 0)
        self._laps_made[number] = made + 1
        # Topics begin on one rank: tokens elsewhere that came in before its blocks are
        # there would give the same numbers to other topics.
        if not (self._is_first or made or counts.sum()):
            return None
        ends = np.cumsum([self.laps(stage) for stage in range(self.n_stages + 1)])
        stage = int(np.searchsorted(ends, made, side="right"))
        is_new = self._next[number] == stage
        self._next[number] = stage + 1
        n_turns = max(1, self._turns(stage) // self._most_laps)
        return Due(stage, is_new, n_turns, made + 1 == ends[stage])

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

    def counted(self, number: int, n_words: int) -> Iterator[np.ndarray]:
        """Tokens of each topic of the words of a block, on this rank.

        Parameters
        ----------
        number : int
            Which block this is.
        n_words : int
            Its words.

        Yields
        ------
        counts : ndarray of int32 of shape (k, n_topics)
            Of some words at a time.
        """
        words, topics, n = self.words(number), self.topics[number], self._n_topics
        for first in range(0, max(n_words, 1), max(1, _CELLS // n)):
            last = min(n_words, first + max(1, _CELLS // n))
            here = np.flatnonzero((first <= words) & (words < last))
            cells = (words[here] - first) * np.intp(n) + topics[here]
            counts = np.bincount(cells, minlength=(last - first) * n)
            yield counts.astype(np.int32).reshape(-1, n)

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


def topic_dtype(n_topics: int) -> np.dtype:
    """The smallest type for the number of a topic."""
    return np.min_scalar_type(max(0, n_topics - 1))
