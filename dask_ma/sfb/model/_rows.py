"""Rows of a rank, some at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import issparse

from dask_ma.data import Shard
from dask_ma.kernels import row_slice
from dask_ma.sfb.model._model import Batch

_CHUNK = 2**18  # values of linear functions, or elements of the rows, at a time


def row_batches(shard: Shard, n_outputs: int) -> Iterator[tuple[slice, Batch]]:
    """Rows of a rank, some at a time, and their places among all of the rank.

    Parameters
    ----------
    shard : Shard
        The rank's rows.
    n_outputs : int
        Values of a row that are held at a time.

    Yields
    ------
    rows : slice
    batch : Batch
    """
    first = 0
    for block in shard.read():
        n_rows = block.X.shape[0]
        # Neither the values nor what is made of the rows themselves takes much.
        stored = block.X.nnz // n_rows if issparse(block.X) else block.X.shape[1]
        size = rows_at_a_time(max(n_outputs, stored))
        for start in range(0, n_rows, size):
            part = slice(start, min(start + size, n_rows))
            rows = slice(first + part.start, first + part.stop)
            yield (
                rows,
                Batch(
                    row_slice(block.X, part.start, part.stop),
                    None if block.y is None else block.y[part],
                    None if block.sample_weight is None else block.sample_weight[part],
                    np.arange(rows.start, rows.stop),
                ),
            )
        first += n_rows


def rows_at_a_time(n_numbers: int) -> int:
    """Rows of so many numbers each that are worked on at a time."""
    return max(64, _CHUNK // n_numbers)
