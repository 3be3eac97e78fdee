"""Columns of sparse rows on a disk, for which all rows are read."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather
from dask_ma.data import (
    Shard,
    hand_back,
    is_on_disk,
    memory_here,
    memory_taken,
    read_ahead,
)

# Bytes that columns in memory take for each byte of the rows, with those of working
# sets, and the part of its limit up to which a worker has room for them.
COPIES = 1.5
_MOST = 0.7


def is_read(group: Group, shard: Shard) -> bool:
    """Whether rows lie on a disk, and their columns are too many for the memory.

    A collective call, before any rank has columns: those of another rank of the process
    are to come, and not there already.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        Its rows.
    """
    is_there = bool(shard.blocks) and is_on_disk(shard.blocks[0].X)
    # To ask makes the process give back what it has freed, only to get it again page by
    # page: a quarter of a fit of some milliseconds.
    known = [(memory_taken(), shard.nbytes) if is_there else (0, 0)]
    if group.layout.n_nodes < group.size:
        found: list[tuple[int, int]] = allgather(group, known[0])
        known = [found[rank] for rank in group.local_ranks]
    # At one time, a rank may have seen a little more of the process than another one.
    taken = max(taken for taken, _ in known)
    needed = taken + COPIES * sum(nbytes for _, nbytes in known)
    return is_there and bool(needed > _MOST * memory_here())


class ReadColumns:
    """Has what :class:`RowColumns` has of few columns, and no places in memory.

    Parameters
    ----------
    blocks : list of CSR, of shape (n, n_features)
        Rows, at least one block of them, that name no column twice.
    """

    def __init__(self, blocks: list[Any]) -> None:
        self._blocks = blocks
        self.dtype = np.result_type(*[X.dtype for X in blocks])
        self._counts = np.zeros(blocks[0].shape[1], dtype=np.int64)
        for X in read_ahead(blocks):
            self._counts += np.bincount(X.indices, minlength=len(self._counts))
            hand_back(X)

    def n_stored(self, index: np.ndarray) -> int:
        """Elements of some columns."""
        return int(self._counts[index].sum())

    def take(self, index: np.ndarray, dtype: np.dtype | None = None) -> Any:
        """Some columns as a CSC of shape (n_rows, k)."""
        parts = []
        for X in read_ahead(self._blocks):
            parts.append(X[:, index].astype(dtype or self.dtype, copy=False))
            hand_back(X)
        return sparse.vstack(parts, format="csr").tocsc()
