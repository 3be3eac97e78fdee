"""Variational inference for the documents of a topic model, in blocks.

Documents of similar length are laid side by side in a block, padded to the longest. The
weights of their words are gathered once and serve all iterations::

    weights[document, topic, word] x theta[document, topic]  ->  norm[document, word]
    weights[document, topic, word] x count / norm            ->  gamma[document, topic]

Most topics of a document die out within a few iterations: their expected number of
words vanishes beside the prior in floating point. They can be left out of the block
without a change of the result, as long as they are less likely in the document than the
topics that are left. So can documents that have converged.

The iterations converge linearly, and slowly where topics are alike. In every third one,
documents therefore go farther in the direction in which the iteration takes them: by
the factor that its change from one iteration to the next tells, as in Aitken's method.
A document has converged when an iteration changes it little, and ends with the result
of that iteration, so it ends at an optimum as before, in a third to two thirds of the
iterations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse, special

from dask_ma.kernels._digamma import digamma, exp_above, exp_digamma
from dask_ma.kernels._dirichlet import dirichlet_bound

# A block is packed anew if this fraction of it is all that is left: packing costs as
# much as some iterations.
_WORTH_PACKING = 0.4
# In these, most topics die out.
_FIRST_ITERATIONS = 20
# After so many iterations what is left is counted: that takes a sixth of one.
_LOOKED = 2
# Iterations before the first that goes farther, and from one such to the next.
_PLAIN_FIRST, _CYCLE = 4, 3
_FARTHEST = 50.0  # times as far as the iteration
# Of what a topic has above its prior after the iteration: so much stays at least.
_LEAST_LEFT = 0.1
# Words of padding that cost as much time as it takes to begin another block.
_MOST_PADDING = 4000
# What a word takes in a block beside its weights: arrays of their type (counts, norms,
# ratios, and parts of them as they are written down), and places.
_ARRAYS_BESIDES = 5
_BYTES_BESIDES = 24
# Words that no topic of a document explains would be divided by 0 otherwise.
_SMALLEST_NORM = {np.dtype(np.float32): 1e-30, np.dtype(np.float64): 1e-300}


class InferenceSettings(NamedTuple):
    """How documents are worked out.

    Attributes
    ----------
    max_iter : int
        Most iterations for a document, at least 1.
    tol : float
        A document has converged when its `gamma` changes by less, on average over the
        topics, from one iteration to the next.
    threshold : float or None
        Precision of :func:`~dask_ma.kernels.digamma`.
    block_bytes : int
        Bytes that a block may take, with the gathered weights of its words. A document
        that alone takes more is a block of its own.
    """

    max_iter: int = 100
    tol: float = 1e-3
    threshold: float | None = 9.0
    block_bytes: int = 2**23


class WordWeights(NamedTuple):
    """``exp(E[log beta])`` or ``E[beta]``, each word's row divided by its largest.

    The documents' topics do not depend on the divisor, and without it the weights of
    rare words would underflow in single precision.

    Attributes
    ----------
    weights : ndarray of shape (n_words, n_topics)
        From 0 to 1.
    shift : ndarray of shape (n_words,)
        Logarithms of the divisors.
    """

    weights: np.ndarray
    shift: np.ndarray


class Inference(NamedTuple):
    """What is known of documents after inference.

    Attributes
    ----------
    gamma : ndarray of shape (n_documents, n_topics)
        Parameters of the Dirichlet distributions of the documents' topics.
    theta : ndarray of shape (n_documents, n_topics)
        ``exp(digamma(gamma))``, and 0 for topics that have died out.
    ratios : ndarray of shape (n_stored,)
        Count of each stored word divided by its norm, ``sum_k theta_k weight_k``.
    log_norms : ndarray of float64, shape (n_documents,)
        Sums over a document's words of count times logarithm of norm, on the scale of
        `theta` and of the divided weights.
    n_iter : int
        Iterations of the document that took most.
    """

    gamma: np.ndarray
    theta: np.ndarray
    ratios: np.ndarray
    log_norms: np.ndarray
    n_iter: int


def word_weights(
    concentration: np.ndarray,
    totals: np.ndarray,
    threshold: float | None = 9.0,
) -> WordWeights:
    """Weights of words from the parameters of the topics' Dirichlet distributions.

    Parameters
    ----------
    concentration : ndarray of shape (n_words, n_topics)
        Parameters of some words; in the literature, this is `lambda`, transposed.
    totals : ndarray of float64, shape (n_topics,)
        Sums of the parameters over all words of the vocabulary.
    threshold : float or None, default=9.0
        Precision of :func:`~dask_ma.kernels.digamma`.

    Returns
    -------
    weights : WordWeights
        In the dtype of `concentration`.
    """
    logs = digamma(concentration, threshold)
    logs -= special.psi(totals).astype(logs.dtype)
    shift = logs.max(axis=1, initial=-np.inf)
    logs -= shift[:, np.newaxis]
    return WordWeights(exp_above(logs), shift)


def mean_word_weights(concentration: np.ndarray, totals: np.ndarray) -> WordWeights:
    """The same from the probabilities of words in topics, ``E[beta]``.

    Parameters
    ----------
    concentration, totals
        As in :func:`word_weights`.

    Returns
    -------
    weights : WordWeights
        In the dtype of `concentration`.
    """
    weights = concentration / totals.astype(concentration.dtype)
    largest = weights.max(axis=1, initial=0)
    weights /= largest[:, np.newaxis]
    return WordWeights(weights, np.log(largest))


def infer_documents(
    X: Any,
    weights: np.ndarray,
    prior: np.ndarray,
    settings: InferenceSettings | None = None,
) -> Inference:
    """Topics of documents, given the weights of the words.

    Parameters
    ----------
    X : CSR of shape (n_documents, n_words)
        Counts, not negative.
    weights : ndarray of shape (n_words, n_topics)
        Those of :class:`WordWeights`.
    prior : ndarray of shape (n_topics,)
        Parameters of the Dirichlet prior of the documents' topics, positive; in the
        literature, this is `alpha`.
    settings : InferenceSettings, optional
        How the documents are worked out.

    Returns
    -------
    inference : Inference
        In the dtype of `weights`. A document without words gets the prior.
    """
    settings = InferenceSettings() if settings is None else settings
    n_documents, n_topics = X.shape[0], weights.shape[1]
    found = Inference(
        gamma=np.tile(prior.astype(weights.dtype), (n_documents, 1)),
        theta=np.zeros((n_documents, n_topics), dtype=weights.dtype),
        ratios=np.empty(len(X.data), dtype=weights.dtype),
        log_norms=np.zeros(n_documents),
        n_iter=0,
    )
    n_iter = 0
    per_word = (n_topics + _ARRAYS_BESIDES) * weights.itemsize + _BYTES_BESIDES
    for documents in _blocks(X, per_word, settings.block_bytes):
        block = _gather(X, documents, weights, prior)
        # BLAS sometimes leaves a flag behind although all its numbers are finite.
        with np.errstate(invalid="ignore"):
            n_iter = max(n_iter, _solve(block, found, settings))
    return found._replace(n_iter=n_iter)


def word_statistics(X: Any, inference: Inference, weights: np.ndarray) -> np.ndarray:
    """Expected number of times that each word was drawn from each topic.

    Parameters
    ----------
    X : CSR of shape (n_documents, n_words)
        The documents.
    inference : Inference
        What :func:`infer_documents` found for them.
    weights : ndarray of shape (n_words, n_topics)
        The weights that it was given.

    Returns
    -------
    statistics : ndarray of shape (n_words, n_topics)
        Their sum is that of the counts, up to rounding.
    """
    ratios = sparse.csr_array((inference.ratios, X.indices, X.indptr), shape=X.shape)
    statistics = ratios.T @ inference.theta
    statistics *= weights
    return np.asarray(statistics)


@dataclass
class _Block:
    """Documents side by side; what has converged is marked, and left out in time."""

    documents: np.ndarray  # numbers of the documents
    positions: np.ndarray  # of their words among the stored ones, padded by repetition
    lengths: np.ndarray  # of the documents, without the padding
    counts: np.ndarray  # of the words, 0 where padded
    weights: np.ndarray  # of the words, (documents, topics, words)
    topics: np.ndarray | None  # numbers of the topics left; None for all of them
    prior: np.ndarray  # of these topics
    alive: np.ndarray  # whether a document has not yet converged


def _blocks(X: Any, bytes_per_word: int, most: int) -> Iterator[np.ndarray]:
    """Cut the documents that have words into blocks, the shortest documents first."""
    lengths = np.diff(X.indptr).astype(np.int64)
    order = np.argsort(lengths, kind="stable")
    lengths = lengths[order]
    start = int(np.searchsorted(lengths, 1))
    while start < len(order):
        # The longest document, the last one, sets the width of the block.
        sizes = lengths[start:] * np.arange(1, len(order) - start + 1)
        padding = sizes - np.cumsum(lengths[start:])
        too_much = (sizes * bytes_per_word > most) | (padding > _MOST_PADDING)
        n_fitting = int(np.argmax(too_much)) if too_much.any() else len(sizes)
        stop = start + max(1, n_fitting)
        yield order[start:stop]
        start = stop


def _gather(
    X: Any, documents: np.ndarray, weights: np.ndarray, prior: np.ndarray
) -> _Block:
    """Lay documents side by side."""
    starts, lengths = X.indptr[documents], np.diff(X.indptr)[documents]
    columns = np.arange(lengths.max())
    positions = starts[:, np.newaxis] + np.minimum(columns, lengths[:, np.newaxis] - 1)
    counts = X.data[positions].astype(weights.dtype)
    counts[columns >= lengths[:, np.newaxis]] = 0
    return _Block(
        documents=documents,
        positions=positions,
        lengths=lengths,
        counts=counts,
        weights=weights.take(X.indices[positions], axis=0).transpose(0, 2, 1),
        topics=None,
        prior=np.broadcast_to(
            prior.astype(weights.dtype), (len(documents), len(prior))
        ),
        alive=np.ones(len(documents), dtype=bool),
    )


def _solve(block: _Block, found: Inference, settings: InferenceSettings) -> int:
    """Work out the documents of a block; return the number of iterations."""
    tol = settings.tol * found.gamma.shape[1]
    # The scale of theta cancels out, so this is any uniform start.
    gamma, theta = np.ones_like(block.prior), np.ones_like(block.prior)
    norms = _norms(block, theta)
    before = change = np.zeros_like(gamma)
    has_shrunk = False  # since it was counted what is left
    for n_iter in range(1, settings.max_iter + 1):
        ratios = np.divide(block.counts, norms, out=norms)
        last = gamma
        gamma = np.matmul(block.weights, ratios[:, :, np.newaxis])[:, :, 0]
        gamma *= theta
        gamma += block.prior
        before, change = change, np.subtract(gamma, last, out=last)
        done = np.add.reduce(np.abs(change), axis=1) < tol
        done &= block.alive
        if n_iter == settings.max_iter:
            done = block.alive
        elif n_iter > _PLAIN_FIRST and (n_iter - _PLAIN_FIRST) % _CYCLE == 0:
            _go_farther(gamma, before, change, done, block.prior)
        theta = exp_digamma(gamma, settings.threshold)
        norms = _norms(block, theta)
        if done.any():
            _store(block, done.nonzero()[0], gamma, theta, norms, found)
            block.alive &= ~done
            has_shrunk = True
            if not block.alive.any():
                break
        if n_iter % _LOOKED != 0 or not (has_shrunk or n_iter <= _FIRST_ITERATIONS):
            continue
        has_shrunk = False
        rows = block.alive.nonzero()[0]
        n_left = _most_topics_left(gamma[rows], block.prior[rows])
        if len(rows) * n_left <= _WORTH_PACKING * gamma.size:
            across = _pack(block, rows, n_left, gamma)
            gamma, theta, change = gamma[across], theta[across], change[across]
            norms = norms[rows]
    return n_iter


def _go_farther(
    gamma: np.ndarray,
    before: np.ndarray,
    change: np.ndarray,
    done: np.ndarray,
    prior: np.ndarray,
) -> None:
    """Go on from what an iteration has given, for the documents that are not done."""
    # Close to the end each change is a multiple of the one before it: their series adds
    # up to 1 / (1 - multiple) changes.
    size = np.add.reduce(before * before, axis=1)
    left = size - np.add.reduce(before * change, axis=1)
    factor = np.full_like(size, _FARTHEST)
    np.divide(size, left, out=factor, where=left * _FARTHEST > size)
    np.maximum(factor - 1, 0, out=factor)
    factor[done] = 0
    # A topic that has not died out is not to look as if it had.
    least = prior + _LEAST_LEFT * (gamma - prior)
    gamma += factor[:, np.newaxis] * change
    np.maximum(gamma, least, out=gamma)


def _most_topics_left(gamma: np.ndarray, prior: np.ndarray) -> int:
    """Most topics that a document still needs: those with the largest gamma."""
    # A topic whose words have vanished beside its prior could come back if the topics
    # that are left were less likely in the document: it is needed, too.
    needed = np.where(gamma > prior, gamma, np.inf)
    lowest = np.minimum.reduce(needed, axis=1, keepdims=True)
    return max(1, int(np.add.reduce(gamma >= lowest, axis=1).max()))


def _norms(block: _Block, theta: np.ndarray) -> np.ndarray:
    """Norm of each word: the sum over topics of theta times weight."""
    norms = np.matmul(theta[:, np.newaxis, :], block.weights)[:, 0, :]
    return np.maximum(norms, _SMALLEST_NORM[norms.dtype], out=norms)


def _store(
    block: _Block,
    rows: np.ndarray,
    gamma: np.ndarray,
    theta: np.ndarray,
    norms: np.ndarray,
    found: Inference,
) -> None:
    """Write down what has been found for some rows of a block."""
    documents, counts, norms = block.documents[rows], block.counts[rows], norms[rows]
    topics = slice(None) if block.topics is None else block.topics[rows]
    where = documents if block.topics is None else documents[:, np.newaxis]
    found.gamma[where, topics] = gamma[rows]
    found.theta[where, topics] = theta[rows]
    is_word = np.arange(counts.shape[1]) < block.lengths[rows, np.newaxis]
    found.ratios[block.positions[rows][is_word]] = (counts / norms)[is_word]
    np.log(norms, out=norms)
    norms *= counts
    found.log_norms[documents] = norms.sum(axis=1, dtype=np.float64)


def _pack(
    block: _Block, rows: np.ndarray, n_left: int, gamma: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Leave out all but some rows and the largest topics of each; where these are."""
    largest = np.argpartition(gamma[rows], -n_left, axis=1)[:, -n_left:]
    kept = np.sort(largest, axis=1)
    across = rows[:, np.newaxis], kept
    block.weights = block.weights[across]
    block.topics = kept if block.topics is None else block.topics[across]
    block.prior = block.prior[across]
    block.documents, block.lengths = block.documents[rows], block.lengths[rows]
    block.positions, block.counts = block.positions[rows], block.counts[rows]
    block.alive = np.ones(len(rows), dtype=bool)
    return across


def document_bounds(
    X: Any, inference: Inference, weights: WordWeights, prior: np.ndarray
) -> np.ndarray:
    """Contribution of each document to the evidence lower bound.

    ``E[log p(words, theta | beta, prior) - log q(theta)]``, with the expectation over
    the topics `beta`, too.

    Parameters
    ----------
    X : CSR of shape (n_documents, n_words)
        The documents.
    inference : Inference
        What :func:`infer_documents` found for them.
    weights : WordWeights
        What it was given.
    prior : ndarray of shape (n_topics,)
        What it was given.

    Returns
    -------
    bounds : ndarray of float64, shape (n_documents,)
        0 for a document without words.
    """
    gamma = inference.gamma.astype(np.float64)
    ones = np.ones(X.shape[0])
    counts = sparse.csr_array((X.data, X.indices, X.indptr), shape=X.shape)
    shifts = counts @ weights.shift.astype(np.float64)
    lengths = counts @ np.ones(X.shape[1])
    # theta is exp(digamma(gamma)), without the digamma of the sum.
    words = inference.log_norms + shifts - lengths * special.psi(gamma.sum(axis=1))
    return words + dirichlet_bound(gamma, np.multiply.outer(ones, prior))
