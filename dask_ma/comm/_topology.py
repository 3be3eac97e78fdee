"""Owners of parts, and the order in which parts are added; pure functions.

Sums over ranks follow one binary tree that depends on the number of ranks alone.
Floating-point addition is not associative, so this is what makes a collective give the
same bits however the ranks are spread over workers: a worker that carries several ranks
adds up whole subtrees of that one tree and sends only their sums.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Range = tuple[int, int]
Combine = Callable[..., np.ndarray]


def split_bounds(length: int, parts: int) -> list[int]:
    """Bounds that cut `length` elements into `parts` runs of nearly equal length."""
    return [length * i // parts for i in range(parts + 1)]


def tree_split(low: int, high: int) -> int:
    """Where the tree splits ranks ``low..high-1``: after the largest power of two."""
    return low + (1 << ((high - low - 1).bit_length() - 1))


def tree_cover(ranks: Sequence[int], size: int) -> list[Range]:
    """Fewest subtrees of the tree over `size` ranks that make up sorted `ranks`."""

    def visit(a: int, b: int) -> list[Range]:
        n_inside = bisect_left(ranks, b) - bisect_left(ranks, a)
        if not n_inside:
            return []
        if n_inside == b - a:
            return [(a, b)]
        middle = tree_split(a, b)
        return visit(a, middle) + visit(middle, b)

    return visit(0, size)


def tree_path(part: Range, size: int) -> list[tuple[Range, Range]]:
    """Halves that lie on the way from the root of the tree down to a subtree of it."""
    low, high, path = 0, size, []
    while (low, high) != part:
        middle = tree_split(low, high)
        path.append(((low, middle), (middle, high)))
        low, high = (low, middle) if part[1] <= middle else (middle, high)
    return path


def doubling_steps(n_nodes: int) -> list[int]:
    """Distances 1, 2, 4, ... below a number of nodes."""
    return [1 << step for step in range((n_nodes - 1).bit_length())]


def powers_of_two(number: int) -> list[int]:
    """Different powers of two whose sum is a number, the largest first."""
    return [
        1 << bit for bit in reversed(range(number.bit_length())) if number >> bit & 1
    ]


def doubling_partners(node: int, distance: int, n_nodes: int) -> tuple[int, int]:
    """Whom to send to and to receive from, so that after all steps each knows of all.

    The two are one where the number of nodes is a power of two.
    """
    if n_nodes & (n_nodes - 1):
        return (node + distance) % n_nodes, (node - distance) % n_nodes
    return node ^ distance, node ^ distance


def tree_combine(
    parts: Mapping[Range, np.ndarray], low: int, high: int, combine: Combine
) -> np.ndarray:
    """Combine `parts` in the order of the tree over ranks ``low..high-1``.

    `parts` maps subtrees to arrays; together they cover the range. The result is a new
    array unless one part covers the whole range, in which case it is that part.
    """
    result, _ = _combine(parts, low, high, combine)
    return result


def _combine(
    parts: Mapping[Range, np.ndarray], low: int, high: int, combine: Combine
) -> tuple[np.ndarray, bool]:
    """Return the combination and whether its memory may be written to."""
    if (low, high) in parts:
        return parts[low, high], False
    middle = tree_split(low, high)
    left, owned = _combine(parts, low, middle, combine)
    right, _ = _combine(parts, middle, high, combine)
    return combine(left, right, out=left if owned else None), True


class Layout(NamedTuple):
    """Which ranks share memory.

    A node is a process. Nodes are numbered in the order of their first ranks. Where a
    rank has moved to another process, the ranks of a node need not be consecutive.

    Parameters
    ----------
    nodes : tuple of int
        Node of each rank.
    members : tuple of tuple of int
        Ranks of each node, in ascending order.
    places : tuple of int
        Position of each rank among those of its node.
    """

    nodes: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    places: tuple[int, ...]

    @classmethod
    def from_nodes(cls, names: Sequence[object]) -> Layout:
        """Layout of ranks whose nodes have the names given."""
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        members: list[list[int]] = [[] for _ in numbers]
        places = []
        for rank, name in enumerate(names):
            places.append(len(members[numbers[name]]))
            members[numbers[name]].append(rank)
        return cls(
            tuple(numbers[name] for name in names),
            tuple(map(tuple, members)),
            tuple(places),
        )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.nodes)

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.members)

    def node_of(self, rank: int) -> int:
        """Node that carries `rank`."""
        return self.nodes[rank]

    def ranks_of(self, node: int) -> tuple[int, ...]:
        """Ranks of `node`, in ascending order."""
        return self.members[node]

    def delegate(self, rank: int, node: int) -> int:
        """Rank of `node` that handles on that node what concerns `rank`."""
        ranks = self.members[node]
        return ranks[self.places[rank] % len(ranks)]
