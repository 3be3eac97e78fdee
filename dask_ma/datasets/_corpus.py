"""Common parts of the readers of corpora: result, words, blocks of counts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from scipy import sparse

from dask_ma.datasets._lines import LineReader, text_file


class Corpus(NamedTuple):
    """Counts of words in documents, and the words.

    Attributes
    ----------
    X : dask.array.Array of shape (n_documents, n_words)
        How often each document holds each word; blocks are ``csr_matrix`` of all the
        columns. Lazy.
    vocabulary : ndarray of str, shape (n_words,), dtype object, or None
        The word of each column. None where the words are not known.
    """

    X: Any
    vocabulary: np.ndarray | None


def read_vocabulary(
    vocabulary: str | os.PathLike[str] | Sequence[str] | None,
    storage_options: dict[str, Any] | None,
) -> np.ndarray | None:
    """Words from a file with one word per line, or from a sequence."""
    if vocabulary is None:
        return None
    if isinstance(vocabulary, (str, os.PathLike)):
        words = _read_words(vocabulary, storage_options)
    else:
        words = list(vocabulary)
        for index, word in enumerate(words):
            if not isinstance(word, str):
                raise TypeError(
                    f"vocabulary[{index}] is a {type(word).__name__}, expected a str"
                )
    return np.array(words, dtype=object)


def _read_words(
    path: str | os.PathLike[str], storage_options: dict[str, Any] | None
) -> list[str]:
    """Words of a file, without the blanks around them."""
    file = text_file(path, "infer", storage_options)
    file.info()
    with LineReader(file) as reader:
        data = b"".join(data for _, data in reader.pieces())
    return [
        _word(line, f"{file.path}, line {index}")
        for index, line in enumerate(data.split(b"\n")[:-1], start=1)
    ]


def _word(line: bytes, place: str) -> str:
    """The word of a line."""
    try:
        word = line.decode().strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{place}: expected UTF-8, got {line!r}") from error
    if not word:
        raise ValueError(f"{place}: expected a word, got a blank line")
    return word


def largest_count(dtype: Any) -> int:
    """The largest number up to which a dtype holds all integers."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).max)
    # SciPy's sparse matrices have no shorter floats.
    if dtype.kind == "f" and dtype.itemsize >= 4:
        return 2 ** (int(np.finfo(dtype).nmant) + 1)
    raise ValueError(f"dtype must be of integers, float32 or float64, got {dtype}")


def block_of_counts(
    per_document: np.ndarray, words: np.ndarray, counts: np.ndarray, n_words: int
) -> sparse.csr_matrix | None:
    """Rows with sorted columns; None if a document has a word twice."""
    indptr = np.concatenate([[0], np.cumsum(per_document)])
    shape = (len(per_document), n_words)
    X = sparse.csr_matrix((counts, words, indptr), shape=shape)
    X.sort_indices()
    return X if X.has_canonical_format else None


def index_dtype(n_words: int) -> type[np.signedinteger]:
    """The dtype that SciPy uses for the columns."""
    return np.int32 if n_words <= np.iinfo(np.int32).max else np.int64


def stack_blocks(
    blocks: Sequence[Any], lengths: Sequence[float], n_words: int, dtype: Any
) -> Any:
    """Delayed blocks as one dask.array; lengths that are not known are NaN."""
    import dask.array as da  # loads numba, which not every session needs

    keys = [block.key for block in blocks]
    name = f"corpus-{tokenize(keys, n_words, dtype)}"
    # `da.concatenate` would leave out blocks without rows, and then X would not have
    # the blocks of other columns of the same text any more.
    graph = HighLevelGraph.from_collections(
        name, {(name, i, 0): key for i, key in enumerate(keys)}, dependencies=blocks
    )
    meta = sparse.csr_matrix((0, 0), dtype=dtype)
    return da.Array(graph, name, (tuple(lengths), (n_words,)), meta=meta)
