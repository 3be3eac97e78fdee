"""Metropolis-Hastings sampling of topics, one token after the other.

Where many tokens are moved together, each looks at counts from before the others were
moved, which makes no difference among thousands of them. Among a few dozens it does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np

_FEWEST_TOKENS = 256  # of a corpus whose tokens are moved together


class TokenTables(NamedTuple):
    """Counts of some tokens, with those of all tokens that have the same words.

    Attributes
    ----------
    documents : ndarray of int of shape (n_documents, n_topics)
        Tokens of each document and topic.
    words : ndarray of int of shape (n_words, n_topics)
        The same of words.
    totals : ndarray of int64 of shape (n_topics,)
        Tokens of each topic.
    document_prior : ndarray of float64 of shape (n_topics,)
        In the literature, this is `alpha`.
    word_prior : ndarray of shape (n_words, n_topics)
        In the literature, this is `beta`.
    prior_sums : ndarray of float64 of shape (n_topics,)
        Sums of that over all words.
    """

    documents: np.ndarray
    words: np.ndarray
    totals: np.ndarray
    document_prior: np.ndarray
    word_prior: np.ndarray
    prior_sums: np.ndarray


def are_moved_singly(n_tokens: int) -> bool:
    """Whether a corpus is so small that its tokens are moved one after the other."""
    return n_tokens < _FEWEST_TOKENS


def move_singly(
    documents: np.ndarray,
    words: np.ndarray,
    topics: np.ndarray,
    tables: TokenTables,
    n_proposals: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Move tokens, each given what the ones before have become.

    A token is offered topics by its word, which its document accepts or not, and then
    topics by its document, which its word accepts or not.

    Parameters
    ----------
    documents, words, topics : ndarray of int of shape (n,)
        Of each token.
    tables : TokenTables
        Counts that have these tokens, and priors; not changed.
    n_proposals : int
        Of each kind, for each token.
    rng : Generator
        Random numbers.

    Returns
    -------
    moved : ndarray of int64 of shape (n,)
        Topics of the tokens.
    """
    # Lists: of so few numbers, arrays take ten times as long.
    of_documents, of_words, totals, alpha, beta, sums = (
        np.asarray(table).tolist() for table in tables
    )
    chances = iter(rng.random(4 * n_proposals * len(topics)).tolist())
    moved = topics.tolist()
    tokens = zip(documents.tolist(), words.tolist(), strict=True)
    for place, (document, word) in enumerate(tokens):
        tallies = of_documents[document], of_words[word], totals
        topic = moved[place]
        _add(tallies, topic, -1)
        by_document, by_word, over = (
            [count + weight for count, weight in zip(tally, prior, strict=True)]
            for tally, prior in zip(tallies, (alpha, beta[word], sums), strict=True)
        )
        topic = _step(topic, by_word, by_document, over, n_proposals, chances)
        topic = _step(topic, by_document, by_word, over, n_proposals, chances)
        _add(tallies, topic, 1)
        moved[place] = topic
    return np.array(moved, dtype=np.int64)


def _add(tallies: tuple[list[int], ...], topic: int, step: int) -> None:
    """Count a token of a topic in, or out."""
    for tally in tallies:
        tally[topic] += step


def _step(
    topic: int,
    offers: list[float],
    accepts: list[float],
    over: list[float],
    n_proposals: int,
    chances: Iterator[float],
) -> int:
    """The topic after some proposals in proportion to one side, by the other."""
    upto = list(accumulate(offers))
    weight, last = accepts[topic] / over[topic], len(upto) - 1
    for _ in range(n_proposals):
        other = min(bisect_right(upto, next(chances) * upto[-1]), last)
        found = accepts[other] / over[other]
        if next(chances) * weight < found:
            topic, weight = other, found
    return topic
