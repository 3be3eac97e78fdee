"""Three ways to an allreduce of one vector: whole, by halves, and in parts.

Whole vectors go from process to process by recursive doubling, in the fewest messages.
In parts, each rank adds up one of them, which it gets from all processes and sends to
all, in the fewest bytes. Halves of vectors, and of halves, need few messages and few
bytes, but can only be added up where each process has the sum of a subtree of the tree
over ranks (:mod:`dask_ma.comm._topology`). All three give the sums of that tree.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from dask_ma import _config
from dask_ma.comm._exchange import others, push_to_local_peers, spread
from dask_ma.comm._group import Group
from dask_ma.comm._reduction import LocalReducer, SubtreeSums, concatenate_parts
from dask_ma.comm._topology import (
    Layout,
    doubling_partners,
    doubling_steps,
    powers_of_two,
    split_bounds,
)

Way = Literal["whole", "halves", "parts"]
_COPY = 1 / 8  # what a byte costs that is copied, by one that is sent


def allreduce_flat(group: Group, flat: np.ndarray, combine: np.ufunc) -> np.ndarray:
    """Allreduce of one vector."""
    if group.size == 1:
        group.raise_if_closed()
        return flat.copy()
    tag = group._next_tag()
    overhead = _config.get_bytes("comm.message-overhead")
    way = quickest_way(group.layout, flat.nbytes, overhead)
    if way == "parts":
        part = reduce_scatter_flat(group, flat, combine, tag)
        parts = spread(group, part, ("parts", tag))
        result = concatenate_parts(parts, flat)
    else:
        add_up = _add_up_whole if way == "whole" else _add_up_by_halves
        result = _between_first_ranks(group, flat, combine, tag, add_up)
    group.take_back()
    return result


def quickest_way(layout: Layout, nbytes: int, overhead: int) -> Way:
    """The way that takes least, by the messages and bytes of the busiest process.

    Parameters
    ----------
    layout : Layout
        Which ranks share a process.
    nbytes : int
        Size of the vector.
    overhead : int
        What a message costs by itself, in bytes.
    """
    n_nodes = layout.n_nodes
    if n_nodes < 3 and layout.size > n_nodes:
        # Threads of a process share the adding up of what is large.
        return "whole" if nbytes <= overhead else "parts"
    # One rank of each process adds up for the others, and they copy the result.
    alone = 2 * nbytes if layout.size > n_nodes else 0
    costs: dict[Way, float] = {
        "whole": _cost_whole(n_nodes, nbytes, overhead),
        "halves": alone + _cost_of_halves(n_nodes, nbytes, overhead),
        "parts": 2 * (n_nodes - 1) * (overhead + nbytes / n_nodes),
    }
    way = min(costs, key=lambda way: costs[way])
    if way == "halves" and not _has_subtrees(layout):
        del costs["halves"]
        way = min(costs, key=lambda way: costs[way])
    return way


def reduce_scatter_flat(
    group: Group, flat: np.ndarray, combine: np.ufunc, tag: int
) -> np.ndarray:
    """This rank's part of the combined vector; it may share memory with `flat`."""
    overhead = _config.get_bytes("comm.message-overhead")
    if scatters_by_halves(group.layout, flat.nbytes, overhead):
        return _scatter_by_halves(group, flat, combine, tag)
    layout, inputs = group.layout, ("inputs", tag)
    push_to_local_peers(group, flat, inputs, copy=False)
    local = {
        rank: flat if rank == group.rank else group.recv(rank, inputs)
        for rank in group.local_ranks
    }
    # Each rank adds up, over the ranks of its process, the parts that it is the
    # delegate for, sends those to their owners, and completes its own part.
    reducer = LocalReducer(layout, combine, local)
    node = layout.node_of(group.rank)
    for owner in others(range(group.size), group.rank):
        if layout.node_of(owner) != node and layout.delegate(owner, node) == group.rank:
            sums = reducer.partial_sums(reducer.part(owner))
            group.push(sums, owner, tag, copy=False)
    sources = [layout.delegate(group.rank, n) for n in range(layout.n_nodes)]
    own = reducer.partial_sums(reducer.part(group.rank))
    partial = [own if r == group.rank else group.recv(r, tag) for r in sources]
    return reducer.total(partial)


# What the ways cost -----------------------------------------------------------------


def scatters_by_halves(layout: Layout, nbytes: int, overhead: int) -> bool:
    """Whether parts are added up by halves, and not each by its rank at once.

    That takes fewer messages with as many bytes, and a copy of the vector. It is for a
    power of two of processes with a rank each.

    Parameters
    ----------
    layout : Layout
        Which ranks share a process.
    nbytes : int
        Size of the vector.
    overhead : int
        What a message costs by itself, in bytes.
    """
    n_nodes = layout.n_nodes
    if layout.size > n_nodes or n_nodes & (n_nodes - 1):
        return False
    n_spared = n_nodes - 1 - len(doubling_steps(n_nodes))
    return n_spared * overhead > _COPY * nbytes


def _cost_whole(n_nodes: int, nbytes: int, overhead: int) -> float:
    """Cost of whole vectors, in bytes."""
    n_steps = len(doubling_steps(n_nodes))
    n_vectors = n_steps
    if n_nodes & (n_nodes - 1):
        # What a process knows after i steps is the sums of about i + 1 subtrees.
        n_vectors = n_steps * (n_steps + 1) // 2
    return float(n_steps * overhead + n_vectors * nbytes)


def _cost_of_halves(n_nodes: int, nbytes: int, overhead: int) -> float:
    """Cost of halves, in bytes, one message after the other."""
    sizes = powers_of_two(n_nodes)
    first = sizes[0]
    n_messages, n_vectors = 2 * len(doubling_steps(first)), 2 * (1 - 1 / first)
    for larger, smaller in zip(sizes, sizes[1:], strict=False):
        n_messages += 1 + len(doubling_steps(larger // smaller))
        n_vectors += (2 - smaller / larger) / smaller
    if len(sizes) > 1:
        n_messages, n_vectors = n_messages + 1, n_vectors + 1
    return n_messages * overhead + n_vectors * nbytes


@lru_cache
def _has_subtrees(layout: Layout) -> bool:
    """Whether the ranks of each process make up a subtree, as many in all but one."""
    sizes = [len(ranks) for ranks in layout.members]
    return (
        layout.nodes == tuple(sorted(layout.nodes))
        and sizes[0] & (sizes[0] - 1) == 0
        and set(sizes[:-1]) == {sizes[0]}
        and sizes[-1] <= sizes[0]
    )


# Between the first ranks of processes -------------------------------------------------


def _between_first_ranks(
    group: Group,
    flat: np.ndarray,
    combine: np.ufunc,
    tag: int,
    add_up: Callable[[Group, SubtreeSums, np.ufunc, int], np.ndarray],
) -> np.ndarray:
    """Allreduce of one vector whose exchange the first rank of each process makes."""
    leader = group.local_ranks[0]
    inputs, result = ("inputs", tag), ("result", tag)
    if group.rank != leader:
        group.push(flat, leader, inputs, copy=False)
        # The leader answers after it has read `flat`, so the caller may change it then.
        return np.array(group.recv(leader, result))
    local = {
        rank: flat if rank == leader else group.recv(rank, inputs)
        for rank in group.local_ranks
    }
    sums = LocalReducer(group.layout, combine, local).subtree_sums()
    total = add_up(group, sums, combine, tag)
    if len(local) == 1:
        return total
    # The peers copy from `total` later, so the caller must not get hold of it.
    push_to_local_peers(group, total, result, copy=False)
    return total.copy()


def _add_up_whole(
    group: Group, sums: SubtreeSums, combine: np.ufunc, tag: int
) -> np.ndarray:
    """Exchange whole vectors, by doubling."""
    layout = group.layout
    node, n_nodes = layout.node_of(group.rank), layout.n_nodes
    for distance in doubling_steps(n_nodes):
        dest, source = doubling_partners(node, distance, n_nodes)
        group.push(sums.items(), layout.ranks_of(dest)[0], (distance, tag), copy=False)
        sums.add(group.recv(layout.ranks_of(source)[0], (distance, tag)))
    return sums.total


def _add_up_by_halves(
    group: Group, sums: SubtreeSums, combine: np.ufunc, tag: int
) -> np.ndarray:
    """Exchange halves, where :func:`_has_subtrees` holds."""
    [(_, vector)] = sums.items()
    bounds = split_bounds(len(vector), powers_of_two(group.layout.n_nodes)[0])
    return _Halves(group, combine, tag, bounds).total(vector)


def _scatter_by_halves(
    group: Group, flat: np.ndarray, combine: np.ufunc, tag: int
) -> np.ndarray:
    """This rank's part, where :func:`scatters_by_halves` holds."""
    # The lowest bit of a rank says which half of the vector it keeps first.
    order = _reversed_bits(group.size)
    bounds = split_bounds(len(flat), group.size)
    parts = [flat[bounds[rank] : bounds[rank + 1]] for rank in order]
    ends = np.cumsum([0, *map(len, parts)]).tolist()
    vector = np.concatenate(parts)
    return _Halves(group, combine, tag, ends).halve(vector).values


@lru_cache
def _reversed_bits(number: int) -> tuple[int, ...]:
    """Numbers below a power of two, the bits of each from last to first."""
    order = [0]
    for _ in doubling_steps(number):
        order = [2 * place for place in order] + [2 * place + 1 for place in order]
    return tuple(order)


# The nodes are taken in teams of powers of two, the largest first: 7 as 4, 2 and 1. The
# vector is cut into as many pieces as the first team has nodes. In step `i` node `k` of
# a team and node ``k XOR 2^i`` exchange halves of what they have, and add up, so that
# each has the sum over its team of a run of pieces. From the last team to the first
# these are handed on and added to what the next team has. Pieces of the total are
# exchanged in the first team, backwards, and it gives the total to the others.
class _Halves:
    """Exchange of halves between nodes of which each has the sum of a subtree."""

    def __init__(
        self, group: Group, combine: np.ufunc, tag: int, bounds: list[int]
    ) -> None:
        self._group, self._combine, self._tag = group, combine, tag
        layout = group.layout
        node = layout.node_of(group.rank)
        self._leaders = [ranks[0] for ranks in layout.members]
        self._sizes = powers_of_two(layout.n_nodes)
        self._bounds = bounds
        self._team, self._start = 0, 0  # this node's team, and its first node
        while node >= self._start + self._sizes[self._team]:
            self._start += self._sizes[self._team]
            self._team += 1
        self._place = node - self._start  # within the team

    def total(self, vector: np.ndarray) -> np.ndarray:
        """The sum over all nodes."""
        run = self._hand_on(self.halve(vector))
        n_first = self._sizes[0]
        if self._team:
            node = self._start + self._place
            return np.array(self._receive(node - n_first, "total"))
        total = self._double(run)
        beyond = self._place + n_first
        if beyond < len(self._leaders):
            self._send(total, beyond, "total")
        return total

    def halve(self, vector: np.ndarray) -> _Run:
        """Sum over the team of the pieces that this place gets."""
        run = _Run(0, self._sizes[0], vector)
        for distance in doubling_steps(self._sizes[self._team]):
            is_upper = bool(self._place & distance)
            peer = self._start + (self._place ^ distance)
            kept, given = self._cut(run, is_upper)
            self._send(given.values, peer, ("halves", distance))
            own, other = kept.values, self._receive(peer, ("halves", distance))
            pair = (other, own) if is_upper else (own, other)
            # The caller's vector may not be written to; sums of it are this rank's.
            out = None if run.values is vector else own
            run = kept._replace(values=self._combine(*pair, out=out))
        return run

    def _hand_on(self, run: _Run) -> _Run:
        """Add what later teams have, and give the sum to the team before."""
        size = self._sizes[self._team]
        if self._team + 1 < len(self._sizes):
            later = self._take_over(size, self._sizes[self._team + 1])
            run = run._replace(values=self._combine(run.values, later))
        if self._team:
            before = self._start - self._sizes[self._team - 1] + self._place
            self._send(run.values, before, "sum")
        return run

    def _take_over(self, size: int, n_later: int) -> np.ndarray:
        """Pieces of this place of what the next team has added up."""
        # As many nodes of this team get them, and halve them with others of it.
        later: _Run | None = None
        if self._place < n_later:
            first, last = 0, self._sizes[0]
            for distance in doubling_steps(n_later):
                first, last = _half(first, last, bool(self._place & distance))
            values = self._receive(self._start + size + self._place, "sum")
            later = _Run(first, last, values)
        for distance in [n_later * step for step in doubling_steps(size // n_later)]:
            if later is not None:
                later, given = self._cut(later, False)
                peer = self._start + self._place + distance
                message = [given.first, given.last, given.values]
                self._send(message, peer, ("later", distance))
            elif self._place < 2 * distance:
                peer = self._start + self._place - distance
                later = _Run(*self._receive(peer, ("later", distance)))
        if later is None:
            raise RuntimeError("no node has handed its pieces on")
        return later.values

    def _double(self, run: _Run) -> np.ndarray:
        """All pieces of the total, from those of this place in the first team."""
        total = np.empty(self._bounds[-1], run.values.dtype)
        first, last = run.first, run.last
        total[self._slice(first, last)] = run.values
        for distance in reversed(doubling_steps(self._sizes[0])):
            peer, width = self._place ^ distance, last - first
            start = first - width if self._place & distance else last
            self._send(total[self._slice(first, last)], peer, ("wholes", distance))
            received = self._receive(peer, ("wholes", distance))
            total[self._slice(start, start + width)] = received
            first = min(first, start)
            last = first + 2 * width
        return total

    def _slice(self, first: int, last: int) -> slice:
        """Elements of some pieces."""
        return slice(self._bounds[first], self._bounds[last])

    def _cut(self, run: _Run, upper: bool) -> tuple[_Run, _Run]:
        """The half that is kept, and the one that is given away."""
        middle = _half(run.first, run.last, False)[1]
        where = self._bounds[middle] - self._bounds[run.first]
        lower = _Run(run.first, middle, run.values[:where])
        higher = _Run(middle, run.last, run.values[where:])
        return (higher, lower) if upper else (lower, higher)

    def _send(self, payload: Any, node: int, what: object) -> None:
        """Send to the first rank of a node."""
        self._group.push(payload, self._leaders[node], (what, self._tag), copy=False)

    def _receive(self, node: int, what: object) -> Any:
        """Receive from the first rank of a node."""
        return self._group.recv(self._leaders[node], (what, self._tag))


class _Run(NamedTuple):
    """Pieces of a vector that follow each other: `first` up to but not `last`."""

    first: int
    last: int
    values: np.ndarray


def _half(first: int, last: int, upper: bool) -> tuple[int, int]:
    """One half of a run of pieces."""
    middle = (first + last) // 2
    return (middle, last) if upper else (first, middle)
