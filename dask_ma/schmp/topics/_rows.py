"""Sparse rows of counts that are worked on as dense ones, some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.kernels import FilledCells, KeptArrays
from dask_ma.schmp.topics._cells import ranges


class OpenRows:
    """A table of counts whose rows are taken out as dense ones, and put back.

    Rows are taken in increasing order, each at most once.

    Parameters
    ----------
    table : csr_array of int32 of shape (n_rows, n_columns)
        Its column indices increase within each row.
    kept : KeptArrays
        Memory to work in.
    coming : int, default=0
        By how much the sum of a row is going to grow at most.
    """

    def __init__(self, table: Any, kept: KeptArrays, coming: int = 0) -> None:
        self._table = table
        self._rows = [np.empty(0, dtype=np.intp)]
        self._found: list[FilledCells] = []
        self._kept = kept
        upto = np.append(0, np.cumsum(table.data, dtype=np.int64))
        sums = upto[table.indptr[1:]] - upto[table.indptr[:-1]]
        # The smaller the numbers, the more of them the cache holds.
        self._dtype = np.min_scalar_type(int(sums.max(initial=0)) + coming)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Some rows, all of which are behind those that were taken before, dense.

        Parameters
        ----------
        rows : ndarray of int of shape (n,)

        Returns
        -------
        counts : ndarray of shape (n, n_columns)
            Of unsigned numbers. Overwritten when others are taken.
        """
        table, n_columns = self._table, self._table.shape[1]
        counts = self._kept("rows", len(rows) * n_columns, self._dtype)
        counts.fill(0)
        starts = table.indptr.take(rows)
        lengths = table.indptr.take(rows + 1) - starts
        places = ranges(starts, lengths)
        cells = np.repeat(np.arange(len(rows)) * n_columns, lengths)
        cells += table.indices.take(places)
        counts[cells] = table.data.take(places)
        self._rows.append(rows)
        return counts.reshape(-1, n_columns)

    def put(self, cells: FilledCells) -> None:
        """Give back what was taken last."""
        self._found.append(cells)

    def close(self) -> None:
        """Change the table, in place."""
        table, changed = self._table, np.concatenate(self._rows)
        if not self._found:
            return
        cells = FilledCells(
            *(np.concatenate(column) for column in zip(*self._found, strict=True))
        )
        lengths = np.diff(table.indptr)
        is_changed = np.zeros(len(lengths), dtype=bool)
        is_changed[changed] = True
        stays = ~np.repeat(is_changed, lengths)
        lengths[changed] = cells.lengths
        is_new = np.repeat(is_changed, lengths)
        arrays = []
        for new, old in ((cells.columns, table.indices), (cells.sizes, table.data)):
            joined = np.empty(len(is_new), dtype=old.dtype)
            joined[is_new], joined[~is_new] = new, old[stays]
            arrays.append(joined)
        ends = np.cumsum(np.append(0, lengths), dtype=table.indptr.dtype)
        table.indptr, table.indices, table.data = ends, *arrays


@contextmanager
def opened(counts: Any) -> Iterator[np.ndarray]:
    """A table of counts as a dense one, whose changes it takes over in the end.

    Parameters
    ----------
    counts : ndarray or csr_array of int32 of shape (n_rows, n_columns)

    Yields
    ------
    table : ndarray of int32 of shape (n_rows, n_columns)
    """
    if not sparse.issparse(counts):
        yield counts
        return
    table = counts.toarray()
    yield table
    cells = FilledCells.of(table)
    ends = np.append(0, np.cumsum(cells.lengths))
    counts.indptr = ends.astype(counts.indptr.dtype)
    counts.indices, counts.data = cells.columns, cells.sizes


def filled(counts: Any, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts that matter for a likelihood, and their prior.

    Parameters
    ----------
    counts : ndarray or csr_array of int of shape (n_words, n_topics)
    prior : ndarray of shape (n_words,) or (n_words, n_topics)

    Returns
    -------
    counts, prior : ndarray
        Of shapes that go together; those of a sparse table above 0 alone.
    """
    if isinstance(counts, np.ndarray):
        return counts, prior if prior.ndim == 2 else prior[:, np.newaxis]
    words = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    if prior.ndim == 2:
        return counts.data, prior[words, counts.indices]
    return counts.data, prior[words]


def stacked(parts: list[Any]) -> Any:
    """Tables of counts, dense or sparse, one under the other."""
    if sparse.issparse(parts[0]):
        return sparse.csr_array(sparse.vstack(parts, format="csr"))
    return np.concatenate(parts)
