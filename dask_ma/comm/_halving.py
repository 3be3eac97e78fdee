"""Large sums in few messages: halves of what is left, between one partner and another.

In step `i` rank `k` and rank ``k XOR 2^i`` exchange halves of what they have, and add
up; in the end each has the sum of one part. Then parts are exchanged in the same way,
backwards. The sums are those of the tree over ranks, whose subtrees of ``2^i`` ranks
are what has been added up after `i` steps.
"""

from __future__ import annotations

import numpy as np

from dask_ma.comm._group import Group
from dask_ma.comm._topology import Layout, doubling_steps


def has_halves(layout: Layout) -> bool:
    """Whether each process carries one rank, and they are a power of two."""
    return layout.size == layout.n_nodes and layout.size & (layout.size - 1) == 0


def allreduce_by_halves(
    group: Group, flat: np.ndarray, combine: np.ufunc, tag: int
) -> np.ndarray:
    """Allreduce of one vector where :func:`has_halves` holds; a collective call.

    Each rank sends ``2 * log2(size)`` messages, and twice the vector in all.
    """
    size, rank = group.size, group.rank
    length = -(-len(flat) // size)
    if len(flat) == length * size:
        parts = flat.reshape(size, length)
    else:
        parts = np.zeros((size, length), flat.dtype)
        parts.reshape(-1)[: len(flat)] = flat
    distances = doubling_steps(size)
    for distance in distances:
        is_upper = int(rank & distance != 0)
        message = ("halves", tag, distance)
        sent = np.ascontiguousarray(parts[1 - is_upper :: 2])
        group.push(sent, rank ^ distance, message, copy=False)
        own, other = parts[is_upper::2], group.recv(rank ^ distance, message)
        parts = combine(other, own) if is_upper else combine(own, other)
    for distance in reversed(distances):
        is_upper = int(rank & distance != 0)
        message = ("wholes", tag, distance)
        group.push(parts, rank ^ distance, message, copy=False)
        joined = np.empty((2 * len(parts), length), flat.dtype)
        joined[is_upper::2] = parts
        joined[1 - is_upper :: 2] = group.recv(rank ^ distance, message)
        parts = joined
    total: np.ndarray = parts.reshape(-1)[: len(flat)]
    return total
