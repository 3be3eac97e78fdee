"""Likelihood of documents whose topics are known, by particles from left to right."""

from __future__ import annotations

from typing import Any

import numpy as np

_ELEMENTS = 2**20  # of the counts of particles at a time


def left_to_right(
    X: Any,
    topics: np.ndarray,
    prior: np.ndarray,
    n_particles: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Estimate the log likelihood of documents, their proportions integrated out.

    Word after word, each particle draws a topic from what its topics of the words
    before make likely. What the particles say of the next word on average, multiplied
    over the words, has the likelihood as its expectation.

    Parameters
    ----------
    X : CSR of shape (n_documents, n_words)
        Counts; whole numbers.
    topics : ndarray of shape (n_words, n_topics)
        Probability of each word in each topic, above 0.
    prior : ndarray of float64 of shape (n_topics,)
        Prior of the documents' topics.
    n_particles : int
        More make the estimate exact, at the same cost each.
    rng : Generator
        Random numbers; words are taken in random order.

    Returns
    -------
    log_likelihood : ndarray of float64 of shape (n_documents,)

    References
    ----------
    H. Wallach, I. Murray, R. Salakhutdinov, D. Mimno, Evaluation methods for topic
    models, ICML 2009. W. Buntine, Estimating likelihoods for topic models, ACML 2009.
    """
    counts = X.data.astype(np.int64)
    lengths = np.diff(np.concatenate([[0], np.cumsum(counts)])[X.indptr])
    tokens = np.repeat(X.indices, counts)
    starts = np.cumsum(lengths) - lengths
    order = np.argsort(-lengths, kind="stable")
    step = max(1, _ELEMENTS // (n_particles * len(prior)))
    found = np.zeros(X.shape[0])
    for first in range(0, len(order), step):
        some = order[first : first + step]
        words = [
            rng.permutation(tokens[starts[d] : starts[d] + lengths[d]]) for d in some
        ]
        found[some] = _run(words, topics, prior, n_particles, rng)
    return found


def _run(
    documents: list[np.ndarray],
    topics: np.ndarray,
    prior: np.ndarray,
    n_particles: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The same of documents of which the longest come first."""
    lengths = np.array([len(words) for words in documents])
    found = np.zeros(len(documents))
    counts = np.zeros((len(documents), n_particles, len(prior)))
    particles = np.arange(n_particles)
    for place in range(int(lengths.max(initial=0))):
        n = int((lengths > place).sum())
        words = np.array([own[place] for own in documents[:n]])
        rows = np.arange(n)[:, np.newaxis]
        upto = counts[:n] + prior
        upto *= topics[words][:, np.newaxis, :]
        np.cumsum(upto, axis=2, out=upto)
        likely = upto[:, :, -1] / (place + prior.sum())
        found[:n] += np.log(likely.mean(axis=1))
        kept = _resample(likely, rng)
        upto = upto[rows, kept]
        drawn = rng.random((n, n_particles, 1)) * upto[:, :, -1:]
        topic = np.minimum((upto <= drawn).sum(axis=2), len(prior) - 1)
        counts[:n] = counts[rows, kept]
        counts[rows, particles, topic] += 1
    return found


def _resample(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Particles of each row by their weights, each as often as its share, or so."""
    n, n_particles = weights.shape
    upto = np.cumsum(weights, axis=1)
    points = (rng.random((n, 1)) + np.arange(n_particles)) / n_particles
    points *= upto[:, -1:]
    kept = (upto[:, np.newaxis, :] <= points[:, :, np.newaxis]).sum(axis=2)
    return np.minimum(kept, n_particles - 1)
