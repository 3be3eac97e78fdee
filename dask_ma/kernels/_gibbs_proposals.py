"""Metropolis-Hastings sampling of topics, at a cost that does not grow with them.

Topics are proposed by turns from the documents and from the words, each with the
probability that the other side does not look at, so that it cancels out of the
acceptance (WarpLDA, J. Chen et al., VLDB 2016)::

    p(topic) ~ (n_document,topic + alpha) (n_word,topic + beta) / (n_topic + V beta)
               ---- proposes ------------  ---- accepts ----------------------------

Counts are those before the tokens of a run were moved, and without the token itself on
both sides: so the topic that it has makes none of its proposals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dask_ma.kernels._kept import KeptArrays

_RUN_TOKENS = 20_000  # that are moved together
_RUN_COUNTS = 400_000  # elements of the counts of a run
_TINY = 1e-30  # a topic that has a token has more


class TokenRun(NamedTuple):
    """Tokens of some consecutive documents, or words.

    Attributes
    ----------
    first, last : int
        Documents or words from `first` on and before `last`.
    owners : ndarray of int32 of shape (n,)
        Document or word of each token, counted from `first`. Words come one after the
        other, and those without tokens may be left out and not counted.
    """

    first: int
    last: int
    owners: np.ndarray

    @classmethod
    def between(cls, first: int, last: int, starts: np.ndarray) -> TokenRun:
        """The tokens of some documents or words.

        Parameters
        ----------
        first, last : int
        starts : ndarray of int of shape (n_owners + 1,)
            Where the tokens of each document or word of all begin.

        Returns
        -------
        run : TokenRun
        """
        numbers = np.arange(last - first, dtype=np.int32)
        return cls(first, last, np.repeat(numbers, np.diff(starts[first : last + 1])))


def cut_runs(
    starts: np.ndarray, n_topics: int, n_counts: int = _RUN_COUNTS
) -> list[tuple[int, int]]:
    """Cut tokens into runs of whole documents, or words.

    Parameters
    ----------
    starts : ndarray of int of shape (n_owners + 1,)
        Where the tokens of each document or word begin.
    n_topics : int
        Number of topics.
    n_counts : int, default=400_000
        Most elements of the counts of a run, unless one owner has more.

    Returns
    -------
    runs : list of (int, int)
        First and last of each, for :meth:`TokenRun.between`; those without tokens are
        left out.
    """
    most, n_owners = max(1, n_counts // n_topics), len(starts) - 1
    runs, first = [], 0
    while first < n_owners:
        enough = np.searchsorted(starts, starts[first] + _RUN_TOKENS, side="right") - 1
        last = min(max(first + 1, int(enough)), first + most, n_owners)
        if starts[last] > starts[first]:
            runs.append((first, last))
        first = last
    return runs


def accept_topics(
    topics: np.ndarray,
    offered: np.ndarray,
    weights: DocumentWeights | TermWeights,
    rng: np.random.Generator,
) -> np.ndarray:
    """Move tokens to topics that are offered, by the rule of Metropolis and Hastings.

    Parameters
    ----------
    topics : ndarray of int of shape (n,)
        Topics of the tokens.
    offered : ndarray of int of shape (n_proposals, n)
        Proposals, of which one after the other is accepted or not. They do not depend
        on the topic that a token has.
    weights : DocumentWeights or TermWeights
        What accepts.
    rng : Generator
        Random numbers.

    Returns
    -------
    moved : ndarray of int of shape (n,)
    """
    n, kept = len(topics), weights.kept
    own, weight, other, bar = (
        kept(name, n, np.float32) for name in ("own", "weight", "other", "bar")
    )
    which, proposal = kept("which", n, bool), kept("proposal", n, offered.dtype)
    weights.of(topics, own, is_own=True)
    now, weight[:] = topics.astype(offered.dtype), own
    for row in offered:  # one at a time: what is worked on stays in the cache
        proposal[:] = row
        weights.of(proposal, other)
        _put(other, own, np.equal(proposal, topics, out=which), kept)
        rng.random(out=bar, dtype=np.float32)
        bar *= weight
        np.less(bar, other, out=which)
        _put(now, proposal, which, kept)
        _put(weight, other, which, kept)
    return now


def _put(
    into: np.ndarray, new: np.ndarray, which: np.ndarray, kept: KeptArrays
) -> None:
    """As `np.copyto`, which takes nine times as long where `which` has no pattern."""
    bits = np.dtype(f"i{into.itemsize}")
    mask, change = (kept(name, len(into), bits) for name in ("mask", "change"))
    np.negative(which.view(np.int8), out=mask)  # all bits, or none
    np.bitwise_xor(into.view(bits), new.view(bits), out=change)
    change &= mask
    np.bitwise_xor(into.view(bits), change, out=into.view(bits))


class _Weights:
    """Counts of a run and the prior, over the totals of the topics."""

    def __init__(
        self,
        run: TokenRun,
        counts: np.ndarray,
        prior: np.ndarray,
        totals: np.ndarray,
        kept: KeptArrays | None,
    ) -> None:
        self.kept = KeptArrays() if kept is None else kept
        self._at = self.kept("at", len(run.owners), np.intp)
        np.multiply(run.owners, np.intp(counts.shape[1]), out=self._at)
        self._counts = counts.reshape(-1)
        self._prior, self._totals = prior, totals
        self._inverse = (1 / totals).astype(np.float32)

    def of(self, topics: np.ndarray, out: np.ndarray, *, is_own: bool = False) -> None:
        """Weight of a topic for each token: its own one, without the token, or not."""
        found = self.kept("found", len(out), self._counts.dtype)
        self._counts.take(self._cells(topics), out=found, mode="clip")
        inverse = self._inverse
        if is_own:
            found -= found.dtype.type(1)
            inverse = (1 / np.maximum(self._totals - 1, _TINY)).astype(np.float32)
        out[:] = found
        out += self._prior_of(topics)
        factor = self.kept("inverse", len(out), np.float32)
        inverse.take(self._columns(topics), out=factor, mode="clip")
        out *= factor

    def _columns(self, topics: np.ndarray) -> np.ndarray:
        """Topics of the type that arrays are asked by."""
        columns = self.kept("columns", len(topics), np.intp)
        columns[:] = topics
        return columns

    def _cells(self, topics: np.ndarray) -> np.ndarray:
        """Where the topics of the tokens are in the counts."""
        cells = self.kept("cells", len(topics), np.intp)
        return np.add(self._at, topics, out=cells)

    def _prior_of(self, topics: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class DocumentWeights(_Weights):
    """Weights of topics in documents.

    Parameters
    ----------
    run : TokenRun
        Tokens of documents.
    counts : ndarray of int of shape (n_documents, n_topics)
        Tokens of each document and topic.
    prior : ndarray of float32 of shape (n_topics,)
        In the literature, this is `alpha`.
    totals : ndarray of float64 of shape (n_topics,)
        What is divided by: tokens of each topic, and the sums of the words' prior.
    kept : KeptArrays, default=None
        Memory to work in.
    """

    def __init__(
        self,
        run: TokenRun,
        counts: np.ndarray,
        prior: np.ndarray,
        totals: np.ndarray,
        kept: KeptArrays | None = None,
    ) -> None:
        super().__init__(run, counts, prior, totals, kept)
        self._is_symmetric = bool((prior == prior[0]).all())

    def _prior_of(self, topics: np.ndarray) -> np.ndarray:
        if self._is_symmetric:
            return self._prior[:1]
        return self._prior.take(topics)


class TermWeights(_Weights):
    """Weights of topics in words.

    Parameters
    ----------
    run : TokenRun
        Tokens of words.
    counts : ndarray of int of shape (n_words, n_topics)
        Tokens of each word and topic.
    prior : ndarray of float32 of shape (n_words,) or (n_words, n_topics)
        In the literature, this is `beta`.
    totals : ndarray of float64 of shape (n_topics,)
        What is divided by: tokens of each topic, and the sums of the words' prior.
    kept : KeptArrays, default=None
        Memory to work in.
    """

    def __init__(
        self,
        run: TokenRun,
        counts: np.ndarray,
        prior: np.ndarray,
        totals: np.ndarray,
        kept: KeptArrays | None = None,
    ) -> None:
        if prior.ndim == 1:
            prior = prior.take(run.owners)
        super().__init__(run, counts, prior, totals, kept)

    def _prior_of(self, topics: np.ndarray) -> np.ndarray:
        if self._prior.ndim == 1:
            return self._prior
        return self._prior.reshape(-1).take(self._cells(topics))
