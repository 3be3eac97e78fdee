"""Blocks of a rank put together, for work whose cost is that of a block and not a row.

What a solver does once per block, such as a pass over all coefficients, costs as much
for a block of ten rows as for one of a million. So small blocks are joined, as far as
memory allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from dask_ma.data._blocks import as_whole, csr_of, n_bytes
from dask_ma.data._mapped import hand_back
from dask_ma.data._shard import Block, Shard

__all__ = ["join_groups", "join_shard"]


def join_shard(shard: Shard, limit: int) -> Shard:
    """Make one block of a shard that is small enough.

    Parameters
    ----------
    shard : Shard
        Blocks of one kind and dtype.
    limit : int
        Most bytes that the copy may take; a larger shard stays as it is.

    Returns
    -------
    shard : Shard
        The same rows in the same order. A shard of one block is returned as it is.
    """
    if len(shard.blocks) < 2 or shard.nbytes > limit:
        return shard
    return replace(shard, blocks=[_join(shard.blocks)])


def join_groups(blocks: Iterable[Block], limit: int) -> Iterator[Block]:
    """Join blocks that follow each other, one group at a time.

    Parameters
    ----------
    blocks : iterable of Block
        Blocks of one kind and dtype.
    limit : int
        Bytes of a group; a block that takes more by itself is passed on as it is.

    Yields
    ------
    block : Block
        The rows of a group. Only one copy is made at a time.
    """
    group: list[Block] = []
    size = 0
    for block in blocks:
        added = n_bytes(block[:3])
        if group and size + added > limit:
            yield _join(group)
            group, size = [], 0
        group.append(block)
        size += added
    if group:
        yield _join(group)


def _join(blocks: Sequence[Block]) -> Block:
    """The rows of some blocks as one, which has the number of the first."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    parts = [block.X for block in blocks]
    sparse = scipy.sparse.issparse(first.X)
    columns = [
        None if column[0] is None else np.concatenate(column)
        for column in zip(*((b.y, b.sample_weight) for b in blocks), strict=True)
    ]
    X = _stacked(parts) if sparse else _put_together(parts)
    for part in parts:
        hand_back(part)
    return first._replace(X=X, y=columns[0], sample_weight=columns[1])


def _stacked(parts: Sequence[Any]) -> Any:
    """The rows of CSR matrices one below the other."""
    lie_together = _view_of_all([part.data for part in parts]) is not None
    if not lie_together:
        return scipy.sparse.vstack(parts, format="csr")
    data, indices = (
        _put_together([getattr(part, name) for part in parts])
        for name in ("data", "indices")
    )
    ends = np.cumsum([part.nnz for part in parts], dtype=parts[0].indptr.dtype)
    starts = np.concatenate([[0], ends[:-1]]).astype(ends.dtype)
    pointers = [p.indptr[1:] + start for p, start in zip(parts, starts, strict=True)]
    indptr = np.concatenate([[0], *pointers]).astype(ends.dtype)
    shape = sum(part.shape[0] for part in parts), parts[0].shape[1]
    return csr_of((data, indices, indptr), shape, type(parts[0]))


def _put_together(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays one behind the other; not copied where they lie like that already."""
    whole = _view_of_all(arrays)
    return np.concatenate(arrays) if whole is None else whole


def _view_of_all(arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """One array of neighbours in memory, as the shares of a rank are; None if not."""
    owner, first = _owner(arrays[0]), arrays[0]
    if isinstance(owner, np.memmap) or not owner.flags.c_contiguous:
        return None
    address = first.ctypes.data
    for array in arrays:
        is_next = array.ctypes.data == address and _owner(array) is owner
        if not is_next or not array.flags.c_contiguous or array.dtype != first.dtype:
            return None
        address += array.nbytes
    start = first.ctypes.data - owner.ctypes.data
    stop = address - owner.ctypes.data
    found = owner.reshape(-1).view(np.uint8)[start:stop].view(first.dtype)
    return as_whole(found.reshape(-1, *first.shape[1:]))


def _owner(array: np.ndarray) -> np.ndarray:
    """The array whose memory an array is a part of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
