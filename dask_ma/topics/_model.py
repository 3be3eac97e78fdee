"""A fitted topic model, applied to blocks of documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.kernels import (
    Inference,
    InferenceSettings,
    WordWeights,
    document_bounds,
    infer_documents,
    mean_word_weights,
    row_slice,
    sums_of_prior,
    topics_bound,
    topics_bound_of_totals,
    word_weights,
)

_ROWS = 4096  # documents worked out at once


class TopicModel(NamedTuple):
    """What is needed to work out documents.

    Attributes
    ----------
    components : ndarray of shape (n_components, n_features)
        Parameters of the topics.
    doc_topic_prior : ndarray of float64, shape (n_components,)
    inference : InferenceSettings
    is_known : bool
        Whether the topics are what the parameters say on average, rather than all that
        they allow.
    """

    components: np.ndarray
    doc_topic_prior: np.ndarray
    inference: InferenceSettings
    is_known: bool = False


class _Part(NamedTuple):
    """Some documents, worked out."""

    X: Any
    found: Inference
    weights: WordWeights
    words: np.ndarray


def topic_parameters(model: TopicModel, X: Any) -> np.ndarray:
    """Parameters of the Dirichlet distributions of the documents' topics.

    Parameters
    ----------
    model : TopicModel
        The topics.
    X : ndarray or CSR of shape (n_documents, n_features)
        Counts.

    Returns
    -------
    gamma : ndarray of shape (n_documents, n_components)
        The prior plus the expected number of words from each topic.

    Raises
    ------
    ValueError
        If a count is negative.
    """
    shape = X.shape[0], len(model.components)
    gamma = np.empty(shape, dtype=model.components.dtype)
    start = 0
    for part in _parts(model, X):
        stop = start + len(part.found.gamma)
        gamma[start:stop] = part.found.gamma
        start = stop
    return gamma


def topic_proportions(model: TopicModel, X: Any) -> np.ndarray:
    """Expected proportions of the topics in documents.

    Parameters
    ----------
    model, X
        As in :func:`topic_parameters`.

    Returns
    -------
    proportions : ndarray of shape (n_documents, n_components)
        Rows that add up to 1.
    """
    gamma = topic_parameters(model, X)
    totals = gamma.sum(axis=1, keepdims=True, dtype=np.float64)
    return np.divide(gamma, totals, out=gamma, casting="same_kind")


def bound_columns(model: TopicModel, X: Any) -> np.ndarray:
    """Each document's part of the bound, and its number of words.

    Parameters
    ----------
    model, X
        As in :func:`topic_parameters`.

    Returns
    -------
    columns : ndarray of float64, shape (n_documents, 2)
    """
    columns = [
        [document_bounds(p.X, p.found, p.weights, model.doc_topic_prior), _lengths(p.X)]
        for p in _parts(model, X)
    ]
    return _stack(columns)


def likelihood_columns(model: TopicModel, X: Any) -> np.ndarray:
    """Logarithm of each document's likelihood at its topics' expected proportions.

    Parameters
    ----------
    model, X
        As in :func:`topic_parameters`.

    Returns
    -------
    columns : ndarray of float64, shape (n_documents, 2)
        ``sum_w count_w log sum_k E[theta_k] E[beta_kw]``, and the number of words.
    """
    columns = [[_likelihoods(model, p, p.X), _lengths(p.X)] for p in _parts(model, X)]
    return _stack(columns)


def completion_columns(model: TopicModel, X: Any) -> np.ndarray:
    """The same of the second half of each document, given its first half.

    The words of a document, in the order of the columns, go to the halves in turn. If
    the counts of a document are no whole numbers, each half gets half of them.

    Parameters
    ----------
    model, X
        As in :func:`topic_parameters`.

    Returns
    -------
    columns : ndarray of float64, shape (n_documents, 2)
        The second column is the number of words in the second half.
    """
    columns = []
    for narrow, words in _narrow_parts(model, X):
        first, second = _halves(narrow)
        part = _work_out(model, first, words)
        columns.append([_likelihoods(model, part, second), _lengths(second)])
    return _stack(columns)


def bound_of_topics(components: np.ndarray, prior: np.ndarray) -> float:
    """``E[log p(beta) - log q(beta)]`` of the topics themselves.

    Parameters
    ----------
    components : ndarray of shape (n_components, n_features)
        Parameters of the topics.
    prior : ndarray of shape (n_features or 1, n_components or 1)
        Prior of the topics' words.

    Returns
    -------
    bound : float
    """
    totals = components.sum(axis=1, dtype=np.float64)
    bound = topics_bound(components.T, prior, totals)
    prior_sums = sums_of_prior(prior, components.shape[1])
    return bound + topics_bound_of_totals(prior_sums, totals)


def _parts(model: TopicModel, X: Any) -> Iterator[_Part]:
    """Work out documents, some at a time."""
    for narrow, words in _narrow_parts(model, X):
        yield _work_out(model, narrow, words)


def _narrow_parts(model: TopicModel, X: Any) -> Iterator[tuple[Any, np.ndarray]]:
    """Some documents at a time, with their own words as columns."""
    if not sparse.issparse(X):
        X = sparse.csr_array(X)
    if len(X.data) and X.data.min() < 0:
        raise ValueError(
            "Negative values in data passed to a topic model: counts must be 0 or "
            f"more, got {X.data.min():g}"
        )
    if not np.isfinite(X.data).all():
        raise ValueError("X contains NaN or infinity: counts must be finite")
    for start in range(0, X.shape[0], _ROWS):
        rows = row_slice(X, start, min(start + _ROWS, X.shape[0]))
        words, columns = np.unique(rows.indices, return_inverse=True)
        data = rows.data.astype(model.components.dtype, copy=False)
        shape = rows.shape[0], len(words)
        yield sparse.csr_array((data, columns, rows.indptr), shape=shape), words


def _work_out(model: TopicModel, X: Any, words: np.ndarray) -> _Part:
    """Topics of some documents."""
    totals = model.components.sum(axis=1, dtype=np.float64)
    parameters = np.ascontiguousarray(model.components[:, words].T)
    if model.is_known:
        weights = mean_word_weights(parameters, totals)
    else:
        weights = word_weights(parameters, totals, model.inference.threshold)
    found = infer_documents(X, weights.weights, model.doc_topic_prior, model.inference)
    return _Part(X, found, weights, words)


def _likelihoods(model: TopicModel, part: _Part, X: Any) -> np.ndarray:
    """Log likelihoods of documents at the proportions that were worked out."""
    topics = model.components[:, part.words].astype(np.float64)
    topics /= model.components.sum(axis=1, keepdims=True, dtype=np.float64)
    gamma = part.found.gamma.astype(np.float64)
    gamma /= gamma.sum(axis=1, keepdims=True)
    values = np.zeros(X.shape[0])
    for i in range(X.shape[0]):  # rows are short: no array of documents x words
        words = slice(X.indptr[i], X.indptr[i + 1])
        likely = gamma[i] @ topics[:, X.indices[words]]
        counts = X.data[words].astype(np.float64)
        seen = counts > 0
        values[i] = counts[seen] @ np.log(likely[seen])
    return values


def _halves(X: Any) -> tuple[Any, Any]:
    """Two halves of each document."""
    if not X.has_canonical_format:  # the order of the columns decides
        X = X.copy()
        X.sum_duplicates()
    counts = X.data.astype(np.float64)
    lengths = np.diff(X.indptr)
    ends = np.cumsum(counts)
    starts = ends - counts
    # Words of the document before each entry, without rounding errors of others.
    before = np.round(starts - np.repeat(_first_of_rows(starts, X), lengths))
    first = np.ceil((before + counts) / 2) - np.ceil(before / 2)
    broken = sparse.csr_array((counts % 1 > 0, X.indices, X.indptr), shape=X.shape)
    is_whole = np.repeat(broken.sum(axis=1) == 0, lengths)
    first = np.where(is_whole, first, counts / 2)
    halves = []
    for half in (first, counts - first):
        data = half.astype(X.dtype)
        halves.append(sparse.csr_array((data, X.indices, X.indptr), shape=X.shape))
    return halves[0], halves[1]


def _first_of_rows(values: np.ndarray, X: Any) -> np.ndarray:
    """The value at the first entry of each row; any number for an empty row."""
    return np.append(values, 0.0)[np.minimum(X.indptr[:-1], len(values))]


def _lengths(X: Any) -> np.ndarray:
    """Number of words of each document."""
    return np.asarray(X @ np.ones(X.shape[1]))


def _stack(columns: list[Any]) -> np.ndarray:
    """Parts of two columns as one array."""
    if not columns:
        return np.empty((0, 2))
    return np.concatenate([np.column_stack(part) for part in columns])
