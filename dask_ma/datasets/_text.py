"""Counts of words from text, with the vectorizers of scikit-learn, block by block."""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from collections.abc import Iterable
from numbers import Integral
from typing import Any, NamedTuple

import dask
import numpy as np
from dask.delayed import Delayed
from distributed import Client
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfVectorizer,
)

from dask_ma import _config
from dask_ma.datasets._corpus import Corpus, stack_blocks

_FAN_IN = 8  # counts that one task adds up


class _Counts(NamedTuple):
    """Words of some blocks before any is left out."""

    lengths: list[int]  # documents of each block
    documents: Counter[str]  # in which a word occurs
    occurrences: Counter[str] | None  # of a word; None where they are not asked for


class _Chosen(NamedTuple):
    """All that goes to the client."""

    lengths: list[int]
    words: list[str]


def vectorize_text(
    texts: Any,
    vectorizer: CountVectorizer | HashingVectorizer | None = None,
    *,
    chunk_rows: int = 10_000,
) -> Corpus:
    """Turn text into counts of words, block by block.

    A ``HashingVectorizer``, and a ``CountVectorizer`` with a vocabulary, need to know
    nothing of the texts: nothing is computed in the call. For a ``CountVectorizer``
    without one the workers go over all the texts once in the call. They count in how
    many documents each word occurs, and only the words that are kept go to the client.
    Columns and counts are those of ``vectorizer.fit_transform`` of all the texts.

    Parameters
    ----------
    texts : dask.bag, dask Series, 1-D dask.array or iterable of str
        The documents. ``dask.bag.read_text`` makes one of each line of some files. With
        ``vectorizer.input="filename"`` they are paths of files that the workers can
        open.
    vectorizer : CountVectorizer or HashingVectorizer, default=None
        Not changed, and so not fitted either: for the words of other texts, see the
        last example. None takes ``CountVectorizer()``. A vectorizer that has been
        fitted is used with its vocabulary. Documents that are lists of words need
        ``CountVectorizer(analyzer=lambda document: document)``. By default a
        HashingVectorizer gives values of either sign in rows of unit length; for
        counts, such as topic models need, make it with ``alternate_sign=False,
        norm=None``.
    chunk_rows : int, default=10000
        Documents per block, if `texts` is not a Dask collection.

    Returns
    -------
    Corpus
        ``X``, a dask.array of shape (n_documents, n_words) of the vectorizer's dtype,
        whose blocks are ``csr_matrix``, one for each partition of `texts`; and
        ``vocabulary``, an ndarray of the words, or None with a HashingVectorizer. Chunk
        sizes are known if the words had to be found or `texts` is not a Dask
        collection, and else not; ``X.compute_chunk_sizes()`` finds them.

    Raises
    ------
    TypeError
        If `vectorizer` is of another type, such as a ``TfidfVectorizer``, or `texts` is
        not one-dimensional. When it is read: for a document that is not a str or bytes,
        with its place.
    ValueError
        If no word is left, or a parameter of `vectorizer` is out of range.

    See Also
    --------
    read_bag_of_words, read_lda_c : Corpora that are counted already.

    Examples
    --------
    >>> from sklearn.base import clone
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from dask_ma.datasets import vectorize_text
    >>> vectorizer = CountVectorizer(min_df=2)
    >>> X, vocabulary = vectorize_text(["a red rose", "a red sky", "sky"], vectorizer)
    >>> vocabulary.tolist()
    ['red', 'sky']
    >>> X.compute().toarray()
    array([[1, 0],
           [1, 1],
           [0, 1]])

    The same columns for other texts:

    >>> fixed = clone(vectorizer).set_params(vocabulary=vocabulary)
    >>> vectorize_text(["sky and sky"], fixed).X.compute().toarray()
    array([[0, 2]])
    """
    vectorizer = CountVectorizer() if vectorizer is None else vectorizer
    _check_vectorizer(vectorizer)
    parts, lengths = _partitions(texts, chunk_rows)
    if isinstance(vectorizer, HashingVectorizer):
        words, n_words = None, vectorizer.n_features
        clone(vectorizer).fit([])  # checks its parameters
    else:
        if not _has_vocabulary(vectorizer):
            vectorizer, lengths = _find_words(parts, vectorizer)
        elif not hasattr(vectorizer, "vocabulary_"):
            vectorizer = _check_parameters(vectorizer, vectorizer.vocabulary)
        words = vectorizer.get_feature_names_out().astype(object)
        n_words = len(words)
    shipped = _ship(vectorizer, words)
    transform = dask.delayed(_transform, pure=False)
    blocks = [
        transform(part, index, shipped, n_words) for index, part in enumerate(parts)
    ]
    X = stack_blocks(blocks, lengths, n_words, vectorizer.dtype)
    return Corpus(X, words)


# -- Arguments -----------------------------------------------------------------------


def _check_vectorizer(vectorizer: Any) -> None:
    """Refuse what does not count, or reads from open files."""
    if not isinstance(vectorizer, (CountVectorizer, HashingVectorizer)) or isinstance(
        vectorizer, TfidfVectorizer
    ):
        raise TypeError(
            f"vectorizer is a {type(vectorizer).__name__}, expected a CountVectorizer "
            "or a HashingVectorizer"
        )
    if vectorizer.input == "file":
        raise ValueError(
            "vectorizer.input is 'file', but open files cannot be sent to workers; "
            "use 'filename' or 'content'"
        )


def _has_vocabulary(vectorizer: CountVectorizer) -> bool:
    """Whether the words are given or found already."""
    return vectorizer.vocabulary is not None or hasattr(vectorizer, "vocabulary_")


def _check_parameters(vectorizer: CountVectorizer, vocabulary: Any) -> CountVectorizer:
    """A copy with these words, after scikit-learn's own checks."""
    # Without documents, which it would have to open if they were paths.
    return clone(vectorizer).set_params(vocabulary=vocabulary).fit([])


def _partitions(texts: Any, chunk_rows: int) -> tuple[list[Any], list[float]]:
    """Delayed blocks of texts, and how many there are in each, NaN if unknown."""
    # A Delayed has any attribute that it is asked for.
    wrong = isinstance(texts, (str, bytes, Delayed)) or getattr(texts, "ndim", 1) != 1
    if not wrong and hasattr(texts, "to_delayed"):
        with _config.partitions_kept():
            parts = list(np.ravel(texts.to_delayed()))
        return parts, [np.nan] * len(parts)
    if wrong or not isinstance(texts, Iterable):
        raise TypeError(
            f"texts is a {type(texts).__name__}, expected a one-dimensional collection "
            "of documents, such as a dask.bag, a dask Series or a list"
        )
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, got {chunk_rows}")
    documents = list(texts)
    chunks = [
        documents[start : start + chunk_rows]
        for start in range(0, max(len(documents), 1), chunk_rows)
    ]
    name = f"texts-{uuid.uuid4().hex}"
    parts = [
        dask.delayed(chunk, name=f"{name}-{i}", traverse=False)
        for i, chunk in enumerate(chunks)
    ]
    return parts, list(map(len, chunks))


def _ship(vectorizer: Any, words: np.ndarray | None) -> Any:
    """A reference to the vectorizer: one key of the graph, or a future."""
    n_bytes = 0 if words is None else sum(map(sys.getsizeof, words))
    if n_bytes > _config.get_bytes("data.embed-limit"):
        try:
            client = Client.current(allow_global=True)
        except ValueError:
            pass
        else:
            [future] = client.scatter([vectorizer], hash=False)
            return dask.delayed(future)
    return dask.delayed(vectorizer, name=f"vectorizer-{uuid.uuid4().hex}")


# -- The vocabulary ------------------------------------------------------------------


def _find_words(
    parts: list[Any], vectorizer: CountVectorizer
) -> tuple[CountVectorizer, list[float]]:
    """A vectorizer with the words of all the texts, and the lengths of the blocks."""
    _check_parameters(vectorizer, ["word"])
    shipped = dask.delayed(vectorizer, name=f"vectorizer-{uuid.uuid4().hex}")
    count, add = (dask.delayed(f, pure=False) for f in (_count_words, _add))
    counts = [count(part, index, shipped) for index, part in enumerate(parts)]
    while len(counts) > 1:
        groups = range(0, len(counts), _FAN_IN)
        counts = [add(counts[start : start + _FAN_IN]) for start in groups]
    [chosen] = dask.compute(dask.delayed(_choose, pure=False)(counts[0], shipped))
    vocabulary = {word: column for column, word in enumerate(chosen.words)}
    return clone(vectorizer).set_params(vocabulary=vocabulary), list(chosen.lengths)


def _count_words(
    texts: Iterable[Any], index: int, vectorizer: CountVectorizer
) -> _Counts:
    """Words of a block (runs on a worker)."""
    analyze = vectorizer.build_analyzer()
    documents: Counter[str] = Counter()
    occurrences: Counter[str] = Counter()
    checked = _checked(texts, index, vectorizer)
    for text in checked:
        words = analyze(text)
        different = set(words)
        documents.update(different)
        if vectorizer.max_features is not None:
            occurrences.update(different if vectorizer.binary else words)
    limited = vectorizer.max_features is not None
    return _Counts([len(checked)], documents, occurrences if limited else None)


def _add(parts: list[_Counts]) -> _Counts:
    """Sum of the counts of consecutive blocks."""
    documents: Counter[str] = Counter()
    occurrences: Counter[str] = Counter()
    for part in parts:
        documents.update(part.documents)
        occurrences.update(part.occurrences or ())
    lengths = [length for part in parts for length in part.lengths]
    return _Counts(
        lengths, documents, None if parts[0].occurrences is None else occurrences
    )


def _choose(counts: _Counts, vectorizer: CountVectorizer) -> _Chosen:
    """The words that scikit-learn would keep, in its order."""
    words = sorted(counts.documents)
    if not words:
        raise ValueError(
            "empty vocabulary; perhaps the documents only contain stop words"
        )
    frequencies = np.array([counts.documents[word] for word in words])
    n_documents = sum(counts.lengths)
    most = _as_count(vectorizer.max_df, n_documents)
    least = _as_count(vectorizer.min_df, n_documents)
    if most < least:
        raise ValueError("max_df corresponds to < documents than min_df")
    kept = np.flatnonzero((frequencies >= least) & (frequencies <= most))
    limit = vectorizer.max_features
    if limit is not None and len(kept) > limit:
        kept = kept[_most_frequent(counts, words, kept, vectorizer)]
    if not len(kept):
        raise ValueError(
            "After pruning, no terms remain. Try a lower min_df or a higher max_df."
        )
    return _Chosen(counts.lengths, [words[i] for i in kept])


def _as_count(bound: float, n_documents: int) -> float:
    """A number of documents, which may be given as a part of all."""
    return bound if isinstance(bound, Integral) else bound * n_documents


def _most_frequent(
    counts: _Counts, words: list[str], kept: np.ndarray, vectorizer: CountVectorizer
) -> np.ndarray:
    """Which of the kept words occur most often, in ascending order."""
    occurrences = counts.occurrences or Counter()
    # Ties: argsort is not stable. Of the same numbers in the same dtype it makes the
    # same choice as in scikit-learn, whose sums are of this dtype.
    dtype = sparse.csr_array((1, 1), dtype=vectorizer.dtype).sum(axis=0).dtype
    sums = np.array([occurrences[words[i]] for i in kept]).astype(dtype)
    return np.sort((-sums).argsort()[: vectorizer.max_features])


# -- The counts ----------------------------------------------------------------------


def _transform(
    texts: Iterable[Any], index: int, vectorizer: Any, n_words: int
) -> sparse.csr_matrix:
    """Counts of a block (runs on a worker)."""
    documents = _checked(texts, index, vectorizer)
    if not documents:
        return sparse.csr_matrix((0, n_words), dtype=vectorizer.dtype)
    return sparse.csr_matrix(vectorizer.transform(documents))


def _checked(texts: Iterable[Any], index: int, vectorizer: Any) -> list[Any]:
    """The documents of a block, none of which is missing."""
    documents = list(texts)
    own = callable(vectorizer.analyzer) or callable(vectorizer.preprocessor)
    if own or vectorizer.input == "filename":
        return documents
    for number, document in enumerate(documents):
        if not isinstance(document, (str, bytes)):
            raise TypeError(
                f"document {number} of block {index} is a {type(document).__name__} "
                f"({document!r:.60}), expected a str or bytes; {_advice(document)}"
            )
    return documents


def _advice(document: Any) -> str:
    """What to do about a document that is no text."""
    if isinstance(document, (list, tuple, np.ndarray)):
        return (
            "if it holds the words already, pass the vectorizer "
            "CountVectorizer(analyzer=lambda document: document)"
        )
    return "remove or fill missing ones first"
