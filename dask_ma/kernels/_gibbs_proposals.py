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

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dask_ma.kernels._kept import KeptArrays

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
    topics : ndarray of int of shape (n,)
        Topics of the tokens.
    offered : ndarray of int of shape (n_proposals, n)
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
    moved : ndarray of int of shape (n,)
    """
    n, kept = len(topics), weights.kept
    own, weight, other, bar = (
        kept(name, n, np.float32) for name in ("own", "weight", "other", "bar")
    )
    which, proposal = kept("which", n, bool), kept("proposal", n, offered.dtype)
    weights.of(topics, np.float32(1), own)  # the token itself does not count
    own *= without
    now, weight[:] = topics.astype(offered.dtype), own
    for row in offered:  # one at a time: what is worked on stays in the cache
        proposal[:] = row
        weights.of(proposal, np.float32(0), other)
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
        self,
        run: TokenRun,
        counts: np.ndarray,
        prior: np.ndarray,
        inverse: np.ndarray,
        kept: KeptArrays | None,
    ) -> None:
        self.kept = KeptArrays() if kept is None else kept
        self._at = self.kept("at", len(run.owners), np.intp)
        np.multiply(run.owners, np.intp(counts.shape[1]), out=self._at)
        self._counts = counts.reshape(-1)
        self._prior, self._inverse = prior, inverse

    def of(self, topics: np.ndarray, own: np.float32, out: np.ndarray) -> None:
        """Weight of a topic for each token, of whose counts `own` is taken."""
        self.share(topics, out)
        out -= own
        inverse = self.kept("inverse", len(out), np.float32)
        self._inverse.take(self._columns(topics), out=inverse, mode="clip")
        out *= inverse

    def share(self, topics: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Count of a topic for each token, and prior."""
        cells = self._cells(topics)
        found = self.kept("found", len(out), self._counts.dtype)
        self._counts.take(cells, out=found, mode="clip")
        out[:] = found
        out += self._prior_of(topics)
        return out

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
    inverse : ndarray of float32 of shape (n_topics,)
        What is divided by, inverted.
    kept : KeptArrays, default=None
        Memory to work in.
    """

    def __init__(
        self,
        run: TokenRun,
        counts: np.ndarray,
        prior: np.ndarray,
        inverse: np.ndarray,
        kept: KeptArrays | None = None,
    ) -> None:
        super().__init__(run, counts, prior, inverse, kept)
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
    inverse : ndarray of float32 of shape (n_topics,)
        What is divided by, inverted.
    kept : KeptArrays, default=None
        Memory to work in.
    """

    def __init__(
        self,
        run: TokenRun,
        counts: np.ndarray,
        prior: np.ndarray,
        inverse: np.ndarray,
        kept: KeptArrays | None = None,
    ) -> None:
        if prior.ndim == 1:
            prior = prior.take(run.owners)
        super().__init__(run, counts, prior, inverse, kept)

    def _prior_of(self, topics: np.ndarray) -> np.ndarray:
        if self._prior.ndim == 1:
            return self._prior
        return self._prior.reshape(-1).take(self._cells(topics))


def offer_of_documents(
    run: TokenRun,
    urn: np.ndarray,
    lengths: np.ndarray,
    prior: np.ndarray,
    n_proposals: int,
    rng: np.random.Generator,
    kept: KeptArrays | None = None,
) -> np.ndarray:
    """Draw topics in proportion to those of each token's document, plus the prior.

    Parameters
    ----------
    run : TokenRun
        Tokens of documents, in any order.
    urn : ndarray of int of shape (n_tokens,)
        Topics of the tokens of these documents, also of those that are not in the run:
        one document after the other.
    lengths : ndarray of int of shape (n_documents,)
        How many each has.
    prior : ndarray of shape (n_topics,)
        In the literature, this is `alpha`.
    n_proposals : int
        How many for each token.
    rng : Generator
        Random numbers.
    kept : KeptArrays, default=None
        Memory to work in.

    Returns
    -------
    offered : ndarray of int of shape (n_proposals, n)
        Those of a token lie side by side.
    """
    upto = np.cumsum(prior, dtype=np.float64)
    is_symmetric = bool((prior == prior[0]).all())

    def of_prior(size: int) -> np.ndarray:
        if is_symmetric:
            return rng.integers(0, len(prior), size, dtype=np.int32)
        return np.searchsorted(upto[:-1], rng.random(size) * upto[-1], side="right")

    totals = lengths + upto[-1]
    urns = _Urns(urn, np.cumsum(lengths) - lengths, lengths, totals)
    return urns.draw(run.owners, n_proposals, of_prior, urn.dtype, rng, kept)


def offer_of_words(
    run: TokenRun,
    topics: np.ndarray | None,
    cells: FilledCells,
    n_topics: int,
    prior: np.ndarray,
    n_proposals: int,
    rng: np.random.Generator,
    kept: KeptArrays | None = None,
) -> np.ndarray:
    """Draw topics in proportion to the counts of each token's word, plus the prior.

    Parameters
    ----------
    run : TokenRun
        Tokens of words.
    topics : ndarray of int of shape (n,) or None
        Their topics; None if they have none yet.
    cells : FilledCells
        Tokens of each word and topic, also those of other ranks.
    n_topics : int
        Number of topics.
    prior : ndarray of shape (n_words,) or (n_words, n_topics)
        In the literature, this is `beta`.
    n_proposals : int
        How many for each token.
    rng : Generator
        Random numbers.
    kept : KeptArrays, default=None
        Memory to work in.

    Returns
    -------
    offered : ndarray of int32 of shape (n_proposals, n)
        Those of a token lie side by side.
    """
    if prior.ndim == 2:
        weights = prior.copy()
        words = np.repeat(np.arange(len(prior)), cells.lengths)
        weights[words, cells.columns] += cells.sizes
        return _offer_by_rows(run, weights, n_proposals, rng)
    urn: np.ndarray | _Steps
    if topics is not None and cells.sizes.sum(dtype=np.int64) == len(topics):
        urn, (lengths, starts) = topics, _lengths(run)
    else:  # other ranks have some, too
        urn, lengths, starts = _of_all_ranks(cells)

    def of_prior(size: int) -> np.ndarray:
        return rng.integers(0, n_topics, size, dtype=np.int32)

    totals = lengths + n_topics * prior.astype(np.float64)
    urns = _Urns(urn, starts, lengths, totals)
    return urns.draw(run.owners, n_proposals, of_prior, cells.columns.dtype, rng, kept)


class _Urns(NamedTuple):
    """Topics of the tokens of owners, from which more are drawn."""

    topics: np.ndarray | _Steps
    starts: np.ndarray  # of each owner, where its tokens begin
    lengths: np.ndarray  # how many it has
    totals: np.ndarray  # and the sum of the prior

    def draw(
        self,
        owners: np.ndarray,
        n_proposals: int,
        of_prior: Callable[[int], np.ndarray],
        dtype: np.dtype,
        rng: np.random.Generator,
        kept: KeptArrays | None,
    ) -> np.ndarray:
        """Topics of random tokens of some owners, or by the prior."""
        kept, n = KeptArrays() if kept is None else kept, len(owners)
        offered = _no_offers(n_proposals, n, dtype)
        columns = kept("columns", n, np.intp)
        columns[:] = owners
        starts, lengths = (kept(name, n, np.int64) for name in ("starts", "lengths"))
        totals, place = (kept(name, n, np.float64) for name in ("totals", "place"))
        self.starts.take(columns, out=starts, mode="clip")
        self.lengths.take(columns, out=lengths, mode="clip")
        self.totals.take(columns, out=totals, mode="clip")
        which, cells = kept("which", n, bool), kept("cells", n, np.int64)
        for row in offered:
            rng.random(out=place)
            place *= totals
            behind = np.flatnonzero(np.greater_equal(place, lengths, out=which))
            cells[:] = place
            cells += starts
            if isinstance(self.topics, _Steps):
                row[:] = self.topics.at(cells)
            else:
                found = kept("found", n, self.topics.dtype)
                row[:] = self.topics.take(cells, out=found, mode="clip")
            row[behind] = of_prior(len(behind))
        return offered


def _no_offers(n_proposals: int, n_tokens: int, dtype: np.dtype) -> np.ndarray:
    """Place for offers, those of a token side by side."""
    return np.empty((n_tokens, n_proposals), dtype=dtype).T


class FilledCells(NamedTuple):
    """Elements of rows of counts that are not zero, row by row.

    Attributes
    ----------
    lengths : ndarray of int of shape (n_rows,)
        How many each row has.
    columns, sizes : ndarray of int32 of shape (n_elements,)
        Their columns, increasing within a row, and the counts.
    """

    lengths: np.ndarray
    columns: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray, kept: KeptArrays | None = None) -> FilledCells:
        """Those of a dense table.

        Parameters
        ----------
        counts : ndarray of int32 of shape (n_rows, n_columns)
        kept : KeptArrays, default=None
            Memory to work in.

        Returns
        -------
        cells : FilledCells
        """
        n_rows, n_columns = counts.shape
        kept, flat = KeptArrays() if kept is None else kept, counts.reshape(-1)
        is_filled = np.not_equal(flat, 0, out=kept("filled", len(flat), bool))
        places = np.flatnonzero(is_filled)  # in a third of the time that numbers take
        ends = np.searchsorted(places, np.arange(1, n_rows + 1) * n_columns)
        lengths = np.diff(ends, prepend=0)
        sizes = flat.take(places)
        places -= np.repeat(np.arange(n_rows) * n_columns, lengths)
        return cls(lengths, places.astype(np.int32), sizes)


class _Steps(NamedTuple):
    """An array of topics in which many that follow each other are equal."""

    topics: np.ndarray
    ends: np.ndarray  # where each of these ends

    def at(self, places: np.ndarray) -> np.ndarray:
        """Topics at some places; any one behind the last."""
        found = np.searchsorted(self.ends, places, side="right")
        return self.topics.take(found, mode="clip")


def _of_all_ranks(
    cells: FilledCells,
) -> tuple[np.ndarray | _Steps, np.ndarray, np.ndarray]:
    """Topics of the tokens of words, how many tokens each has, and where they begin."""
    upto = np.cumsum(cells.sizes, dtype=np.int64)
    ends = np.append(0, upto)[np.cumsum(cells.lengths)]
    starts = np.append(0, ends[:-1])
    urn: np.ndarray | _Steps = _Steps(cells.columns, upto)
    if ends[-1] <= _MOST_LAID_OUT:  # searching for places takes longer
        urn = np.repeat(cells.columns, cells.sizes)
    if not len(upto):
        urn = np.zeros(1, dtype=np.int32)  # any will do
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
    run: TokenRun,
    weights: np.ndarray,
    n_proposals: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Proposals in proportion to any weights of the words' topics."""
    offered = _no_offers(n_proposals, len(run.owners), np.dtype(np.int32))
    for row in offered:
        row[:] = draw_by_rows(run.owners, weights, rng)
    return offered


def _lengths(run: TokenRun) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each owner, and the place of the first of them in the run."""
    lengths = np.bincount(run.owners, minlength=run.last - run.first)
    return lengths, np.cumsum(lengths) - lengths
