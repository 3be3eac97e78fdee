"""Metropolis-Hastings sampling of topics, at a cost that does not grow with them.

Topics are proposed by turns from the documents and from the words, each with the
probability that the other side does not look at, so that it cancels out of the
acceptance (WarpLDA, J. Chen et al., VLDB 2016)::

    p(topic) ~ (n_document,topic + alpha) (n_word,topic + beta) / (n_topic + V beta)
               ---- proposes ------------  ---- accepts ----------------------------

A proposal in proportion to counts is the topic of a random token of the document, or of
the word: no table is built. Counts are those before the tokens of a run were moved.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_RUN_TOKENS = 20_000  # that are moved together
_RUN_COUNTS = 400_000  # elements of the counts of a run
_MOST_LAID_OUT = 2**19  # tokens of the words of a run, on all ranks


class TokenRun(NamedTuple):
    """Tokens of some consecutive documents, or words.

    Attributes
    ----------
    first, last : int
        Documents or words from `first` on and before `last`.
    owners : ndarray of int32 of shape (n,)
        Document or word of each token, counted from `first`: one after the other.
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


def cut_runs(starts: np.ndarray, n_topics: int) -> list[tuple[int, int]]:
    """Cut tokens into runs of whole documents, or words.

    Parameters
    ----------
    starts : ndarray of int of shape (n_owners + 1,)
        Where the tokens of each document or word begin.
    n_topics : int
        Number of topics.

    Returns
    -------
    runs : list of (int, int)
        First and last of each, for :meth:`TokenRun.between`; those without tokens are
        left out.
    """
    most, n_owners = max(1, _RUN_COUNTS // n_topics), len(starts) - 1
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
    without: np.ndarray,
    weights: DocumentWeights | TermWeights,
    rng: np.random.Generator,
) -> np.ndarray:
    """Move tokens to topics that are offered, by the rule of Metropolis and Hastings.

    Parameters
    ----------
    topics : ndarray of int32 of shape (n,)
        Topics of the tokens.
    offered : ndarray of int32 of shape (n_proposals, n)
        Proposals, of which one after the other is accepted or not.
    without : ndarray of float32 of shape (n,)
        What proposes, without the token itself, over that with it: from
        :func:`without_itself`.
    weights : DocumentWeights or TermWeights
        What accepts.
    rng : Generator
        Random numbers.

    Returns
    -------
    moved : ndarray of int32 of shape (n,)
    """
    now = topics
    weight = weights.of(now, np.float32(1)) * without  # the token itself does not count
    for proposal in offered:
        same = np.flatnonzero(proposal == topics)
        own = np.zeros(len(topics), dtype=np.float32)
        own[same] = 1
        other = weights.of(proposal, own)
        other[same] *= without[same]
        bar = rng.random(len(now), dtype=np.float32)
        bar *= weight
        accepted = bar < other
        now = np.where(accepted, proposal, now)
        weight = np.where(accepted, other, weight)
    return now


def without_itself(share: np.ndarray) -> np.ndarray:
    """Part that a token's topic has in what proposes without the token itself.

    Parameters
    ----------
    share : ndarray of shape (n,)
        Count of the token's topic, and prior, in its document or word.

    Returns
    -------
    without : ndarray of float32 of shape (n,)
    """
    return np.asarray(((share - 1) / share).astype(np.float32))


class _Weights:
    """Counts of a run and the prior, over the totals of the topics."""

    def __init__(
        self, run: TokenRun, counts: np.ndarray, prior: np.ndarray, inverse: np.ndarray
    ) -> None:
        self._at = run.owners * np.intp(counts.shape[1])
        self._counts = counts.reshape(-1)
        self._prior, self._inverse = prior, inverse
        self._owners = run.owners

    def of(self, topics: np.ndarray, own: np.ndarray | np.float32) -> np.ndarray:
        """Weight of a topic for each token, of whose counts `own` is taken."""
        weight = self.share(topics)
        weight -= own
        weight *= self._inverse.take(topics)
        return weight

    def share(self, topics: np.ndarray) -> np.ndarray:
        """Count of a topic for each token, and prior."""
        share = self._counts.take(self._at + topics).astype(np.float32)
        share += self._prior_of(topics)
        return share

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
    inverse : ndarray of float32 of shape (n_topics,)
        What is divided by, inverted.
    """

    def _prior_of(self, topics: np.ndarray) -> np.ndarray:
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
    inverse : ndarray of float32 of shape (n_topics,)
        What is divided by, inverted.
    """

    def _prior_of(self, topics: np.ndarray) -> np.ndarray:
        if self._prior.ndim == 1:
            return self._prior.take(self._owners)
        return self._prior.reshape(-1).take(self._at + topics)


def offer_of_documents(
    run: TokenRun,
    topics: np.ndarray,
    prior: np.ndarray,
    n_proposals: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw topics in proportion to those of each token's document, plus the prior.

    Parameters
    ----------
    run : TokenRun
        Tokens of documents.
    topics : ndarray of int32 of shape (n,)
        Their topics.
    prior : ndarray of shape (n_topics,)
        In the literature, this is `alpha`.
    n_proposals : int
        How many for each token.
    rng : Generator
        Random numbers.

    Returns
    -------
    offered : ndarray of int32 of shape (n_proposals, n)
    """
    upto = np.cumsum(prior, dtype=np.float64)
    is_symmetric = bool((prior == prior[0]).all())
    lengths, starts = (array.take(run.owners) for array in _lengths(run))
    totals = lengths + upto[-1]
    offered = np.empty((n_proposals, len(topics)), dtype=np.int32)
    for row in offered:
        place = rng.random(len(topics))
        place *= totals
        behind = np.flatnonzero(place >= lengths)
        row[:] = _urn(topics, starts, place)
        if is_symmetric:
            row[behind] = rng.integers(0, len(prior), len(behind), dtype=np.int32)
        else:
            rest = rng.random(len(behind)) * upto[-1]
            row[behind] = np.searchsorted(upto[:-1], rest, side="right")
    return offered


def offer_of_words(
    run: TokenRun,
    topics: np.ndarray,
    counts: np.ndarray,
    prior: np.ndarray,
    n_proposals: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw topics in proportion to the counts of each token's word, plus the prior.

    Parameters
    ----------
    run : TokenRun
        Tokens of words.
    topics : ndarray of int32 of shape (n,)
        Their topics.
    counts : ndarray of int of shape (n_words, n_topics)
        Tokens of each word and topic, also those of other ranks.
    prior : ndarray of shape (n_words,) or (n_words, n_topics)
        In the literature, this is `beta`.
    n_proposals : int
        How many for each token.
    rng : Generator
        Random numbers.

    Returns
    -------
    offered : ndarray of int32 of shape (n_proposals, n)
    """
    if prior.ndim == 2:
        return _offer_by_rows(run, counts + prior, n_proposals, rng)
    n_topics = counts.shape[1]
    lengths, starts = _lengths(run)
    urn: np.ndarray | _Steps = topics
    if counts.sum(dtype=np.int64) != len(topics):  # other ranks have some, too
        urn, lengths, starts = _of_all_ranks(counts)
    totals = (lengths + n_topics * prior.astype(np.float64)).take(run.owners)
    lengths, starts = lengths.take(run.owners), starts.take(run.owners)
    offered = np.empty((n_proposals, len(topics)), dtype=np.int32)
    for row in offered:
        place = rng.random(len(topics))
        place *= totals
        behind = np.flatnonzero(place >= lengths)
        row[:] = _urn(urn, starts, place)
        row[behind] = rng.integers(0, n_topics, len(behind), dtype=np.int32)
    return offered


class _Steps(NamedTuple):
    """An array of topics in which many that follow each other are equal."""

    topics: np.ndarray
    ends: np.ndarray  # where each of these ends

    def at(self, places: np.ndarray) -> np.ndarray:
        """Topics at some places; any one behind the last."""
        found = np.searchsorted(self.ends, places, side="right")
        return self.topics.take(found, mode="clip")


def _of_all_ranks(
    counts: np.ndarray,
) -> tuple[np.ndarray | _Steps, np.ndarray, np.ndarray]:
    """Topics of the tokens of words, how many tokens each has, and where they begin."""
    n_words, n_topics = counts.shape
    filled = np.flatnonzero(counts != 0)  # of truth values in a third of the time
    sizes = counts.reshape(-1).take(filled)
    upto = np.cumsum(sizes, dtype=np.int64)
    ends = np.searchsorted(filled, np.arange(1, n_words + 1) * n_topics)
    ends = np.append(upto, 0)[ends - 1] * (ends > 0)
    starts = np.concatenate([[0], ends[:-1]])
    topics = filled % n_topics
    urn: np.ndarray | _Steps = _Steps(topics, upto)
    if ends[-1] <= _MOST_LAID_OUT:  # searching for places takes longer
        urn = np.repeat(topics, sizes)
    return urn, ends - starts, starts


def draw_by_rows(
    owners: np.ndarray, weights: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Draw a column for each of some rows, in proportion to the weights of the row.

    Parameters
    ----------
    owners : ndarray of int of shape (n,)
        Rows.
    weights : ndarray of shape (n_rows, n_columns)
        Not negative, not all 0 in a row that is drawn from.
    rng : Generator
        Random numbers.

    Returns
    -------
    columns : ndarray of int32 of shape (n,)
    """
    n_columns = weights.shape[1]
    upto = np.cumsum(weights.reshape(-1), dtype=np.float64)
    ends = upto[n_columns - 1 :: n_columns]
    starts = np.concatenate([[0.0], ends[:-1]])
    place = rng.random(len(owners))
    place *= (ends - starts)[owners]
    place += starts[owners]
    found = np.searchsorted(upto, place, side="right") - owners * np.intp(n_columns)
    return np.clip(found, 0, n_columns - 1).astype(np.int32)


def _offer_by_rows(
    run: TokenRun, weights: np.ndarray, n_proposals: int, rng: np.random.Generator
) -> np.ndarray:
    """Proposals in proportion to any weights of the words' topics."""
    drawn = [draw_by_rows(run.owners, weights, rng) for _ in range(n_proposals)]
    return np.stack(drawn)


def _lengths(run: TokenRun) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each owner, and the place of the first of them in the run."""
    lengths = np.bincount(run.owners, minlength=run.last - run.first)
    return lengths, np.cumsum(lengths) - lengths


def _urn(
    topics: np.ndarray | _Steps, starts: np.ndarray, place: np.ndarray
) -> np.ndarray:
    """Topic of the token at a place of an owner's tokens; any one behind the last."""
    places = starts + place.astype(np.int64)
    if isinstance(topics, _Steps):
        return topics.at(places)
    return topics.take(places, mode="clip")
