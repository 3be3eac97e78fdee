"""Sparse rows of counts that are worked on as dense ones, some at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.kernels import FilledCells


class OpenRows:
    """A table of counts whose rows are taken out as dense ones, and put back.

    Rows have to come in increasing order, each at most once.

    Parameters
    ----------
    table : csr_array of int32 of shape (n_rows, n_columns)
        Its column indices increase within each row.
    """

    def __init__(self, table: Any) -> None:
        self._table = table
        self._found: list[FilledCells] = []
        self._done = 0
        self._space = np.empty(0, dtype=table.dtype)

    def take(self, first: int, last: int) -> np.ndarray:
        """Rows from `first` on and before `last`, dense, until the next are taken."""
        self._keep(first)
        cells, n_columns = self._cells(first, last), self._table.shape[1]
        size = (last - first) * n_columns
        if len(self._space) < size:  # new memory has to be fetched page by page
            self._space = np.empty(size, dtype=self._table.dtype)
        rows = self._space[:size].reshape(last - first, n_columns)
        rows.fill(0)
        owners = np.repeat(np.arange(last - first), cells.lengths)
        rows.reshape(-1)[owners * n_columns + cells.columns] = cells.sizes
        return rows

    def put(self, cells: FilledCells) -> None:
        """Give back what was taken last."""
        self._found.append(cells)
        self._done += len(cells.lengths)

    def close(self) -> None:
        """Change the table, in place."""
        self._keep(self._table.shape[0])
        lengths, columns, sizes = zip(*self._found, strict=True)
        self._table.indptr = np.cumsum(
            np.concatenate([[0], *lengths]), dtype=self._table.indptr.dtype
        )
        self._table.indices = np.concatenate(columns)
        self._table.data = np.concatenate(sizes)

    def _keep(self, last: int) -> None:
        """Leave the rows before one as they are, from the last that was put back."""
        if self._done < last:
            self.put(self._cells(self._done, last))

    def _cells(self, first: int, last: int) -> FilledCells:
        """Elements of some rows."""
        table = self._table
        part = slice(table.indptr[first], table.indptr[last])
        lengths = np.diff(table.indptr[first : last + 1])
        return FilledCells(lengths, table.indices[part], table.data[part])


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
