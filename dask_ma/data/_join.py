"""Blocks of a rank put together, for work whose cost is that of a block and not a row.

What a solver does once per block, such as a pass over all coefficients, costs as much
for a block of ten rows as for one of a million. So small blocks are joined, as far as
memory allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import scipy.sparse

from dask_ma.data._blocks import n_bytes
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
    X = scipy.sparse.vstack(parts, format="csr") if sparse else np.concatenate(parts)
    for part in parts:
        hand_back(part)
    return first._replace(X=X, y=columns[0], sample_weight=columns[1])
