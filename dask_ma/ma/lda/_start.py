"""Topics that a fit begins with."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dask_ma.comm import allgather
from dask_ma.engine import RankContext
from dask_ma.ma.lda._params import TopicParams
from dask_ma.topics._corpus import Corpus

_SHAPE = 100.0  # of the gamma distribution that first topics are drawn from, of mean 1
_PER_TOPIC = 3  # documents that a first topic is made of
_AT_MOST = 4.0  # times the words that there are for a topic: of its documents, at first
_IN_THE_END = 0.1  # of these words: what the updates leave of those of its documents


def random_excess(
    context: RankContext, corpus: Corpus, params: TopicParams, attempt: int = 0
) -> np.ndarray:
    """Parameters of the topics to begin with, without the prior.

    Drawn ones are the same on every rank, which draws them for itself. They have the
    mean 1, plus what the topic's prior of the word is above the least of all topics: a
    topic that begins elsewhere is hardly led to the words of its prior any more.
    """
    prior = params.topic_word_prior.astype(params.dtype, copy=False)
    if params.components is not None:
        return np.asarray(params.components.T.astype(params.dtype) - prior, order="C")
    key = (attempt, 0, 0, 0) if attempt else ()  # no rank, pass or split has such a one
    seed = np.random.SeedSequence(context.seed.entropy, spawn_key=key)
    rng = np.random.default_rng(seed)
    shape = corpus.n_features, params.n_components
    excess = rng.standard_gamma(_SHAPE, shape, dtype=params.dtype)
    excess /= params.dtype.type(_SHAPE)
    excess -= prior.min(axis=1, keepdims=True)
    return np.asarray(excess)


def add_documents(
    excess: np.ndarray,
    context: RankContext,
    corpus: Corpus,
    params: TopicParams,
    remains: float,
) -> None:
    """Add to each topic the words of some documents, and to all of them all of these.

    A collective call. Topics that are all alike leave it to chance which of them the
    first documents take for all that they have in common; the others get nothing, and
    less the next time. With what all documents have in common in each of them, a
    document takes the topic of documents that are like it.

    Parameters
    ----------
    excess : ndarray of shape (n_features, n_components)
        Parameters of the topics without the prior. Changed in place.
    context : RankContext
        This rank.
    corpus : Corpus
        The documents.
    params : TopicParams
        Parameters of the fit.
    remains : float
        Part of the first topics that the updates to come leave, from 0 to 1.
    """
    parts = allgather(context.group, _some_documents(context, corpus, params))
    X = sparse.csr_array(sparse.vstack(parts))
    topics = np.arange(X.shape[0]) % params.n_components
    each = sparse.csr_array(
        (np.ones(len(topics), X.dtype), (topics, np.arange(len(topics)))),
        shape=(params.n_components, len(topics)),
    )
    words = sparse.csr_array(each @ X)
    per_topic = corpus.total_words / params.n_components
    n_words = min(corpus.n_features, per_topic * weight_of_documents(remains))
    common = words.sum(axis=0, dtype=np.float64)
    common *= n_words / max(1e-30, common.sum())
    excess += common.astype(excess.dtype)[:, np.newaxis]
    totals = words.sum(axis=1, dtype=np.float64)
    for topic in np.flatnonzero(totals > 0):
        part = slice(*words.indptr[topic : topic + 2])
        share = words.data[part] * (n_words / totals[topic])
        excess[words.indices[part], topic] += share.astype(excess.dtype)


def weight_of_documents(remains: float) -> float:
    """Words of a first topic's documents, at most, for a word that there is for it.

    Parameters
    ----------
    remains : float
        Part of the first topics that the updates to come leave, from 0 to 1.

    Returns
    -------
    weight : float
        Four, as some passes get over; fewer where more than a tenth would be left.
    """
    return _IN_THE_END / max(remains, _IN_THE_END / _AT_MOST)


def _some_documents(
    context: RankContext, corpus: Corpus, params: TopicParams
) -> sparse.csr_array:
    """This rank's part of the documents that the first topics are made of."""
    n_all = min(_PER_TOPIC * params.n_components, corpus.total_documents)
    n_own = corpus.part_of(context.group.rank, n_all)
    # The last ones of the first pass, since topics know these too well at first.
    order = corpus.shuffled(context, 0)
    batch = corpus.batch(order[len(order) - n_own :])
    shape = batch.X.shape[0], corpus.n_features
    indices = batch.words[batch.X.indices].astype(np.int32, copy=False)
    return sparse.csr_array((batch.X.data, indices, batch.X.indptr), shape=shape)
