"""Topics that documents and words offer to their tokens.

A proposal in proportion to counts is the topic of a random other token of the document,
or of the word: no table is built. Those of the prior come on top.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dask_ma.kernels._gibbs_proposals import TokenRun
from dask_ma.kernels._kept import KeptArrays

_MOST_LAID_OUT = 2**19  # tokens of the words of a run, on all ranks


def offer_of_documents(
    run: TokenRun,
    urn: np.ndarray,
    places: np.ndarray,
    lengths: np.ndarray,
    prior: np.ndarray,
    n_proposals: int,
    rng: np.random.Generator,
    kept: KeptArrays | None = None,
) -> np.ndarray:
    """Draw topics in proportion to those of each token's document, plus the prior.

    The token itself is not drawn.

    Parameters
    ----------
    run : TokenRun
        Tokens of documents, in any order.
    urn : ndarray of int of shape (n_tokens,)
        Topics of the tokens of these documents, also of those that are not in the run:
        one document after the other.
    places : ndarray of int64 of shape (n,)
        Where the tokens of the run are among these.
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
    return urns.draw(run.owners, places, n_proposals, of_prior, urn.dtype, rng, kept)


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

    Those of the token itself are not among them.

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
        return _offer_by_rows(run, topics, weights, n_proposals, rng)
    urn: np.ndarray | _Steps
    places: np.ndarray | None
    if topics is not None and cells.sizes.sum(dtype=np.int64) == len(topics):
        urn, (lengths, starts) = topics, _lengths(run)
        places = np.arange(len(topics))
    else:  # other ranks have some, too
        urn, lengths, starts = _of_all_ranks(cells)
        places = _places_of(run, topics, cells, n_topics, kept)

    def of_prior(size: int) -> np.ndarray:
        return rng.integers(0, n_topics, size, dtype=np.int32)

    totals = lengths + n_topics * prior.astype(np.float64)
    urns = _Urns(urn, starts, lengths, totals)
    dtype = cells.columns.dtype
    return urns.draw(run.owners, places, n_proposals, of_prior, dtype, rng, kept)


class _Urns(NamedTuple):
    """Topics of the tokens of owners, from which more are drawn."""

    topics: np.ndarray | _Steps
    starts: np.ndarray  # of each owner, where its tokens begin
    lengths: np.ndarray  # how many it has
    totals: np.ndarray  # and the sum of the prior

    def draw(
        self,
        owners: np.ndarray,
        own: np.ndarray | None,
        n_proposals: int,
        of_prior: Callable[[int], np.ndarray],
        dtype: np.dtype,
        rng: np.random.Generator,
        kept: KeptArrays | None,
    ) -> np.ndarray:
        """Topics of random other tokens of some owners, or by the prior."""
        kept, n = KeptArrays() if kept is None else kept, len(owners)
        offered = _no_offers(n_proposals, n, dtype)
        columns = kept("columns", n, np.intp)
        columns[:] = owners
        starts, lengths = (kept(name, n, np.int64) for name in ("starts", "lengths"))
        totals, place = (kept(name, n, np.float64) for name in ("totals", "place"))
        self.starts.take(columns, out=starts, mode="clip")
        self.lengths.take(columns, out=lengths, mode="clip")
        self.totals.take(columns, out=totals, mode="clip")
        if own is not None:  # it is passed over
            lengths -= 1
            totals -= 1
        which, cells = kept("which", n, bool), kept("cells", n, np.int64)
        for row in offered:
            rng.random(out=place)
            place *= totals
            behind = np.flatnonzero(np.greater_equal(place, lengths, out=which))
            cells[:] = place
            cells += starts
            if own is not None:
                cells += np.greater_equal(cells, own, out=which)
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
        counts : ndarray of int of shape (n_rows, n_columns)
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
        sizes = flat.take(places).astype(np.int32)
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


def _places_of(
    run: TokenRun,
    topics: np.ndarray | None,
    cells: FilledCells,
    n_topics: int,
    kept: KeptArrays | None,
) -> np.ndarray | None:
    """Where the first tokens are that have the word and the topic of each."""
    if topics is None:
        return None
    kept, n_words = KeptArrays() if kept is None else kept, len(cells.lengths)
    upto = np.cumsum(cells.sizes, dtype=np.int64) - cells.sizes
    begins = np.cumsum(cells.lengths) - cells.lengths
    starts = np.append(upto, 0).take(begins)  # nobody asks where words without are
    upto -= np.repeat(starts, cells.lengths)
    # Counted from the first token of a word: smaller numbers, of which the cache holds
    # more.
    dtype = np.min_scalar_type(int(upto.max(initial=0)))
    firsts = kept("firsts", n_words * n_topics, dtype)
    rows = np.arange(n_words) * n_topics
    firsts[np.repeat(rows, cells.lengths) + cells.columns] = upto
    places = starts.take(run.owners)
    places += firsts.take(run.owners * np.intp(n_topics) + topics)
    return places


def draw_by_rows(
    owners: np.ndarray,
    weights: np.ndarray,
    rng: np.random.Generator,
    own: np.ndarray | None = None,
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
    own : ndarray of int of shape (n,), default=None
        Columns of whose weights one is taken, each for its own draw alone.

    Returns
    -------
    columns : ndarray of int32 of shape (n,)
    """
    n_columns = weights.shape[1]
    upto = np.cumsum(weights.reshape(-1), dtype=np.float64)
    ends = upto[n_columns - 1 :: n_columns]
    starts = np.concatenate([[0.0], ends[:-1]])
    place = rng.random(len(owners))
    place *= (ends - starts)[owners] - (own is not None)
    place += starts[owners]
    if own is not None:
        place += place >= upto.take(owners * np.intp(n_columns) + own) - 1
    found = np.searchsorted(upto, place, side="right") - owners * np.intp(n_columns)
    return np.clip(found, 0, n_columns - 1).astype(np.int32)


def _offer_by_rows(
    run: TokenRun,
    topics: np.ndarray | None,
    weights: np.ndarray,
    n_proposals: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Proposals in proportion to any weights of the words' topics."""
    offered = _no_offers(n_proposals, len(run.owners), np.dtype(np.int32))
    for row in offered:
        row[:] = draw_by_rows(run.owners, weights, rng, topics)
    return offered


def _lengths(run: TokenRun) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of each owner, and the place of the first of them in the run."""
    lengths = np.bincount(run.owners, minlength=run.last - run.first)
    return lengths, np.cumsum(lengths) - lengths
