"""Rows of counts in memory, from which tokens are laid out without a copy of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.data import Shard, is_on_disk

_CHUNK = 2**17  # tokens, of whole documents, that are looked at together


class Cells(NamedTuple):
    """Words of some documents that follow each other, and how often each occurs.

    Attributes
    ----------
    first : int
        Number of the first document.
    owners : ndarray of int32 of shape (n,)
        Document of each cell, in increasing order.
    words : ndarray of int of shape (n,)
        Its word, in increasing order within a document.
    counts : ndarray of int64 of shape (n,)
        Its tokens.
    """

    first: int
    owners: np.ndarray
    words: np.ndarray
    counts: np.ndarray


class CountRows:
    """Rows of a rank, read in the order of its documents.

    Parameters
    ----------
    blocks : list of CSR
        Whole numbers, or what is rounded to such; each row names its words once and in
        increasing order.
    places : ndarray of int of shape (n_documents,)
        Row of each document, counted over all blocks.
    starts : ndarray of int64 of shape (n_documents + 1,)
        Where the tokens of each document begin.
    """

    def __init__(
        self, blocks: list[Any], places: np.ndarray, starts: np.ndarray
    ) -> None:
        self._blocks = blocks
        first_rows = np.cumsum([0, *(X.shape[0] for X in blocks)])
        of_block = np.searchsorted(first_rows, places, side="right") - 1
        self._of_block = of_block.astype(np.int32)
        self._rows = (places - first_rows[of_block]).astype(np.int32)
        self._starts = starts

    def read(self) -> Iterator[Cells]:
        """All cells, those of some documents at a time."""
        n_documents, starts = len(self._rows), self._starts
        cuts = np.searchsorted(starts, np.arange(0, int(starts[-1]), _CHUNK), "left")
        bounds = np.unique([0, *cuts.tolist(), n_documents]).tolist()
        for first, last in zip(bounds[:-1], bounds[1:], strict=True):
            yield self._cells(first, last)

    def count(self, n_words: int) -> np.ndarray:
        """Tokens of each word, int64 of shape (n_words,)."""
        totals = np.zeros(n_words, dtype=np.int64)
        for cells in self.read():
            np.add.at(totals, cells.words.astype(np.intp, copy=False), cells.counts)
        return totals

    def _cells(self, first: int, last: int) -> Cells:
        """Cells of the documents from `first` on and before `last`."""
        of_block, rows = self._of_block[first:last], self._rows[first:last]
        edges = [0, *(np.flatnonzero(np.diff(of_block)) + 1).tolist(), last - first]
        parts = [
            _rows_of(self._blocks[of_block[begin]], rows[begin:end])
            for begin, end in zip(edges[:-1], edges[1:], strict=True)
        ]
        lengths, words, values = (
            column[0] if len(column) == 1 else np.concatenate(column)
            for column in zip(*parts, strict=True)
        )
        if values.dtype.kind == "f":
            values = np.rint(values)
        numbers = np.arange(first, last, dtype=np.int32)
        owners = np.repeat(numbers, lengths)
        return Cells(first, owners, words, values.astype(np.int64))


def rows_in_order(shard: Shard) -> list[Any] | None:
    """Blocks of a shard, if all are rows in memory that :class:`CountRows` can read.

    Parameters
    ----------
    shard : Shard
        Rows of counts.

    Returns
    -------
    blocks : list of csr_array or None
        They share the memory of the rows.
    """
    if not shard.is_sparse or any(is_on_disk(block.X) for block in shard.blocks):
        return None
    blocks = [sparse.csr_array(block.X) for block in shard.blocks]
    return blocks if all(X.has_canonical_format for X in blocks) else None


def _rows_of(X: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lengths of some rows, and their columns and values one after the other."""
    begins, ends = X.indptr.take(rows), X.indptr.take(rows + 1)
    lengths = ends - begins
    if (begins[1:] == ends[:-1]).all():
        places: Any = slice(begins[0], ends[-1])
        return lengths, X.indices[places], X.data[places]
    places = ranges(begins, lengths)
    return lengths, X.indices.take(places), X.data.take(places)


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Numbers from each start on, so many of each.

    Parameters
    ----------
    starts, lengths : ndarray of int of shape (n,)

    Returns
    -------
    numbers : ndarray of int64
    """
    ends = np.cumsum(lengths)
    offsets = np.repeat(starts - (ends - lengths), lengths)
    return offsets + np.arange(len(offsets))
