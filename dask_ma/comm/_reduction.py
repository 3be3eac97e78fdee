"""The arithmetic of the reductions, without any transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from dask_ma.comm._topology import (
    Combine,
    Layout,
    Range,
    split_bounds,
    tree_combine,
    tree_cover,
    tree_path,
)

# Every collective asks for the same ones.
_cover = lru_cache(tree_cover)


class LocalReducer:
    """Combines vectors of the ranks of one process, and then of all processes.

    Parameters
    ----------
    layout : Layout
        Which ranks share a process.
    combine : ufunc
        ``np.add``, ``np.maximum`` or ``np.minimum``.
    local : dict of int to ndarray of shape (n,)
        The vectors of the ranks of this process.
    """

    def __init__(
        self, layout: Layout, combine: Combine, local: Mapping[int, np.ndarray]
    ) -> None:
        self._layout = layout
        self._combine = combine
        self._local = local
        length = len(next(iter(local.values())))
        self._bounds = split_bounds(length, layout.size)

    def part(self, rank: int) -> slice:
        """Elements that `rank` owns."""
        return slice(self._bounds[rank], self._bounds[rank + 1])

    def subtree_sums(self) -> SubtreeSums:
        """Combine whole vectors over the local ranks, to be completed."""
        cover = self._cover(self._layout.node_of(min(self._local)))
        sums = zip(cover, self.partial_sums(slice(None)), strict=True)
        return SubtreeSums(self._layout.size, self._combine, list(sums))

    def partial_sums(self, part: slice) -> list[np.ndarray]:
        """Combine a part over the local ranks: one vector per subtree they make up."""
        return [
            tree_combine(
                {(r, r + 1): self._local[r][part] for r in range(low, high)},
                low,
                high,
                self._combine,
            )
            for low, high in self._cover(self._layout.node_of(min(self._local)))
        ]

    def total(self, partial: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
        """Combine the partial sums of all processes, in the order of the nodes."""
        parts: dict[Range, np.ndarray] = {}
        for node, vectors in enumerate(partial):
            parts.update(zip(self._cover(node), vectors, strict=True))
        return tree_combine(parts, 0, self._layout.size, self._combine)

    def _cover(self, node: int) -> list[Range]:
        """Subtrees that make up the ranks of a process."""
        return _cover(self._layout.ranks_of(node), self._layout.size)


class SubtreeSums:
    """Sums over subtrees of the tree of all ranks, put together as they arrive.

    Whatever arrives when, and however often, each sum is made of the same two.

    Parameters
    ----------
    size : int
        Number of ranks.
    combine : ufunc
        ``np.add``, ``np.maximum`` or ``np.minimum``.
    sums : sequence of (tuple of int, ndarray)
        The first ones: ranks from and up to but not including, and their sum.
    """

    def __init__(
        self, size: int, combine: Combine, sums: Sequence[tuple[Range, np.ndarray]]
    ) -> None:
        self._size = size
        self._combine = combine
        self._sums: dict[Range, np.ndarray] = {}
        self.add(sums)

    def add(self, sums: Sequence[tuple[Range, np.ndarray]]) -> None:
        """Take in sums, which no one may change any more."""
        for (low, high), array in sums:
            if any(a <= low and high <= b for a, b in self._sums):
                continue
            for inside in [r for r in self._sums if low <= r[0] and r[1] <= high]:
                del self._sums[inside]
            self._sums[low, high] = array
            self._merge((low, high))

    def items(self) -> list[tuple[Range, np.ndarray]]:
        """What there is, in the form that :meth:`add` takes."""
        return sorted(self._sums.items(), key=lambda item: item[0])

    @property
    def total(self) -> np.ndarray:
        """The sum over all ranks; it must not be changed."""
        return self._sums[0, self._size]

    def _merge(self, part: Range) -> None:
        """Put a sum together with that of its sibling, and so on upwards."""
        for left, right in reversed(tree_path(part, self._size)):
            if left not in self._sums or right not in self._sums:
                return
            parent = left[0], right[1]
            self._sums[parent] = self._combine(
                self._sums.pop(left), self._sums.pop(right)
            )


def concatenate_parts(parts: Sequence[np.ndarray], like: np.ndarray) -> np.ndarray:
    """Join the parts of all ranks into one new vector of the length of `like`."""
    result = np.empty_like(like)
    bounds = split_bounds(len(like), len(parts))
    for part, low, high in zip(parts, bounds, bounds[1:], strict=False):
        result[low:high] = part
    return result
