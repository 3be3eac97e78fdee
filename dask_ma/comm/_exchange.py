"""Parts of the collectives: packed arrays, steps between processes and within one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from distributed.protocol.pickle import dumps, loads

from dask_ma.comm._group import Group
from dask_ma.comm._topology import doubling_steps


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
