"""Parts of the collectives: packed arrays, steps between processes and within one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from distributed.protocol.pickle import dumps, loads

from dask_ma.comm._group import Group
from dask_ma.comm._topology import Layout, doubling_steps


class Packed(NamedTuple):
    """Arrays laid end to end.

    Attributes
    ----------
    flats : list of ndarray of shape (n,)
        One vector per dtype, in the order in which the dtypes first appear.
    slots : list of (int, int, tuple of int)
        For each array: which vector, where it starts there, and its shape.
    """

    flats: list[np.ndarray]
    slots: list[tuple[int, int, tuple[int, ...]]]


def pack(arrays: Sequence[np.ndarray]) -> Packed:
    """Lay arrays end to end; an array alone in its dtype is not copied."""
    dtypes: list[np.dtype] = []
    groups: list[list[np.ndarray]] = []
    slots = []
    for array in arrays:
        if array.dtype not in dtypes:
            dtypes.append(array.dtype)
            groups.append([])
        which = dtypes.index(array.dtype)
        start = sum(a.size for a in groups[which])
        groups[which].append(array)
        slots.append((which, start, array.shape))
    flats = [
        (
            group[0].reshape(-1)
            if len(group) == 1
            else np.concatenate([a.reshape(-1) for a in group])
        )
        for group in groups
    ]
    return Packed(flats, slots)


def unpack(packed: Packed) -> list[np.ndarray]:
    """Views of the flat vectors in the shapes of the original arrays."""
    return [
        packed.flats[which][start : start + prod(shape)].reshape(shape)
        for which, start, shape in packed.slots
    ]


def spread(group: Group, payload: Any, tag: Hashable) -> list[Any]:
    """All-gather: one message to each other process, which hands it on in memory."""
    layout, remote, local = group.layout, ("remote", tag), ("local", tag)
    node = layout.node_of(group.rank)
    for other in others(range(layout.n_nodes), node):
        group.push(payload, layout.delegate(group.rank, other), remote, copy=False)
    push_to_local_peers(group, payload, local, copy=False)
    received: dict[int, Any] = {group.rank: payload}
    elsewhere = [
        r for r in others(range(group.size), group.rank) if r not in group.local_ranks
    ]
    for source in elsewhere:
        if layout.delegate(source, node) == group.rank:
            received[source] = group.recv(source, remote)
            push_to_local_peers(group, received[source], (local, source), copy=False)
    for source in others(group.local_ranks, group.rank):
        received[source] = group.recv(source, local)
    for source in elsewhere:
        if source not in received:
            delegate = layout.delegate(source, node)
            received[source] = group.recv(delegate, (local, source))
    return [received[rank] for rank in range(group.size)]


def gather_by_doubling(group: Group, payload: Any, tag: Hashable) -> list[Any]:
    """All-gather in log2(processes) steps, rounded up (Bruck's algorithm).

    In each the first rank of a process sends what it has so far, which doubles. A
    process sends and receives as many bytes as by one message for each other one.
    """
    layout, leader = group.layout, group.local_ranks[0]
    if group.rank != leader:
        group.push(payload, leader, ("mine", tag), copy=False)
        return list(group.recv(leader, ("all", tag)))
    node, n_nodes = layout.node_of(leader), layout.n_nodes
    mine = [
        payload if rank == leader else group.recv(rank, ("mine", tag))
        for rank in group.local_ranks
    ]
    # What this node has, the one before it, and so on, each packed by its own leader:
    # every array of a message costs as much as a short message by itself.
    packed = [dumps(mine)] if n_nodes > 1 else []
    for distance in doubling_steps(n_nodes):
        dest, source = (node + distance) % n_nodes, (node - distance) % n_nodes
        step = ("step", distance, tag)
        wanted = np.frombuffer(dumps(packed[: n_nodes - distance]), np.uint8)
        group.push(wanted, layout.ranks_of(dest)[0], step, copy=False)
        packed += loads(group.recv(layout.ranks_of(source)[0], step))
    payloads: list[Any] = [None] * group.size
    for back in range(n_nodes):
        of_node = loads(packed[back]) if back else mine
        ranks = layout.ranks_of((node - back) % n_nodes)
        for rank, received in zip(ranks, of_node, strict=True):
            payloads[rank] = received
    push_to_local_peers(group, payloads, ("all", tag), copy=False)
    return payloads


def push_to_local_peers(
    group: Group, payload: Any, tag: Hashable, *, copy: bool
) -> None:
    """Hand a payload to the other ranks of this process."""
    for rank in others(group.local_ranks, group.rank):
        group.push(payload, rank, tag, copy=copy)


def local_barrier(group: Group, tag: int) -> None:
    """Return once every rank of this process has called it."""
    push_to_local_peers(group, None, ("left", tag), copy=False)
    for rank in others(group.local_ranks, group.rank):
        group.recv(rank, ("left", tag))


def others(ranks: Sequence[int], own: int) -> list[int]:
    """The other ranks, those after `own` first, so that not all begin with rank 0."""
    ranks = list(ranks)
    position = ranks.index(own)
    return ranks[position + 1 :] + ranks[:position]


def has_halves(layout: Layout) -> bool:
    """Whether each process carries one rank, and they are a power of two."""
    return layout.size == layout.n_nodes and layout.size & (layout.size - 1) == 0


def allreduce_by_halves(
    group: Group, flat: np.ndarray, combine: np.ufunc, tag: int
) -> np.ndarray:
    """Allreduce of one vector where :func:`has_halves` holds; a collective call.

    Each rank sends ``2 * log2(size)`` messages, and twice the vector in all. In step
    `i` rank `k` and rank ``k XOR 2^i`` exchange halves of what they have, and add up;
    in the end each has the sum of one part. Then parts are exchanged in the same way,
    backwards. The sums are those of the tree over ranks, whose subtrees of ``2^i``
    ranks are what has been added up after `i` steps.
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
