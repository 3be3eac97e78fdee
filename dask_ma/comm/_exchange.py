"""Steps that the collectives are made of: between processes, and within one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from dask_ma.comm._group import Group


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
