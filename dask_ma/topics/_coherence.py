"""Coherence of topics: whether their words occur in the same documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import numpy as np
from scipy import sparse

from dask_ma.data import is_dask_collection

MEASURES = ("u_mass", "npmi")


def topic_coherence(
    indicators: Any, topics: list[np.ndarray], measure: str
) -> np.ndarray:
    """Mean over the pairs of a topic's words of how they go together.

    Parameters
    ----------
    indicators : ndarray or dask.array of shape (n_documents, n_words + 1)
        From :func:`occurrences`. Of a Dask array each block is reduced where it is.
    topics : list of ndarray of int
        For each topic the columns of its words, the most probable first.
    measure : {"u_mass", "npmi"}
        What a pair is given.

    Returns
    -------
    coherence : ndarray of float64, shape (n_topics,)
        NaN for a topic of which no two words occur in the documents.

    Raises
    ------
    ValueError
        If no document has a word.
    """
    if is_dask_collection(indicators):
        parts = [_count(block) for block in indicators.to_delayed().ravel()]
        together = np.sum(dask.compute(*parts), axis=0)
    else:
        together = _gram(indicators)
    n_documents = together[-1, -1]
    if not n_documents:
        raise ValueError("X has no words: the coherence in no document is not defined")
    value_of = _u_mass if measure == "u_mass" else _npmi
    return np.array([_mean(together, words, n_documents, value_of) for words in topics])


def occurrences(words: np.ndarray, X: Any) -> np.ndarray:
    """Which words are in which documents.

    Parameters
    ----------
    words : ndarray of int, shape (n_words,)
        Columns of `X`, each once.
    X : ndarray or CSR of shape (n_documents, n_features)
        Counts.

    Returns
    -------
    indicators : ndarray of float32, shape (n_documents, n_words + 1)
        1 where the word is in the document; in the last column where any word is.

    Raises
    ------
    ValueError
        If a count is negative or not finite.
    """
    X = sparse.csr_array(X)
    if len(X.data) and not (np.isfinite(X.data).all() and X.data.min() >= 0):
        raise ValueError(
            "Negative values in data passed to a topic model, or NaN or infinity: "
            "counts must be finite and 0 or more"
        )
    found = np.zeros((X.shape[0], len(words) + 1), dtype=np.float32)
    found[:, :-1] = X[:, words].toarray() > 0
    found[:, -1] = X.sum(axis=1) > 0
    return found


def _gram(indicators: np.ndarray) -> np.ndarray:
    """Number of documents in which two words are."""
    # Whole numbers are exact in float32 only up to 2**24 documents.
    wide = indicators.astype(np.float64)
    return np.asarray(wide.T @ wide)


@dask.delayed(pure=False)
def _count(block: np.ndarray) -> np.ndarray:
    """The same of one block."""
    return _gram(block)


def _mean(
    together: np.ndarray,
    words: np.ndarray,
    n_documents: float,
    value_of: Callable[[float, float, float, float], float],
) -> float:
    """Mean value of the pairs of words that both occur, of a topic."""
    words = words[together[words, words] > 0]
    values = [
        value_of(together[w, v], together[v, v], together[w, w], n_documents)
        for place, w in enumerate(words)
        for v in words[:place]
    ]
    return float(np.mean(values)) if values else float("nan")


def _u_mass(both: float, first: float, second: float, n_documents: float) -> float:
    """Logarithm of the share of a word's documents with a less probable one, too."""
    # One more document has both: there is no logarithm of none.
    return float(np.log((both + 1) / first))


def _npmi(both: float, first: float, second: float, n_documents: float) -> float:
    """Pointwise mutual information, normalised to values from -1 to 1."""
    if not both:
        return -1.0
    if both == n_documents:
        return 1.0
    return float(
        np.log(both * n_documents / (first * second)) / -np.log(both / n_documents)
    )
