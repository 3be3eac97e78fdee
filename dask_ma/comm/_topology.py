"""Who owns which part and in which order parts are added; pure functions.

Sums over ranks follow one binary tree that depends on the number of ranks alone.
Floating-point addition is not associative, so this is what makes a collective give the
same bits however the ranks are spread over workers: a worker that carries several ranks
adds up whole subtrees of that one tree and sends only their sums.
"""

from __future__ import annotations

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


def tree_cover(low: int, high: int, size: int) -> list[Range]:
    """Fewest subtrees of the tree over `size` ranks that make up ``low..high-1``."""

    def visit(a: int, b: int) -> list[Range]:
        if high <= a or b <= low:
            return []
        if low <= a and b <= high:
            return [(a, b)]
        middle = tree_split(a, b)
        return visit(a, middle) + visit(middle, b)

    return visit(0, size)


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

    Parameters
    ----------
    starts : tuple of int
        ``starts[i]`` is the first rank of node `i`; the last entry is the number of
        ranks. A node is a process, and its ranks are consecutive.
    """

    starts: tuple[int, ...]

    @classmethod
    def from_nodes(cls, nodes: Sequence[object]) -> Layout:
        """Layout of ranks whose node names are `nodes`; equal names are adjacent."""
        starts = [
            rank
            for rank, node in enumerate(nodes)
            if rank == 0 or node != nodes[rank - 1]
        ]
        if len(starts) != len(set(nodes)):
            raise ValueError(
                f"ranks of one node must be consecutive, got the nodes {list(nodes)}"
            )
        return cls((*starts, len(nodes)))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.starts[-1]

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.starts) - 1

    def node_of(self, rank: int) -> int:
        """Node that carries `rank`."""
        return int(np.searchsorted(self.starts, rank, side="right")) - 1

    def ranks_of(self, node: int) -> range:
        """Ranks of `node`."""
        return range(self.starts[node], self.starts[node + 1])

    def delegate(self, rank: int, node: int) -> int:
        """Rank of `node` that handles on that node what concerns `rank`."""
        ranks = self.ranks_of(node)
        local = rank - self.starts[self.node_of(rank)]
        return ranks[local % len(ranks)]
