"""The arithmetic of the reductions, without any transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dask_ma.comm._topology import (
    Combine,
    Layout,
    Range,
    split_bounds,
    tree_combine,
    tree_cover,
)


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
        return tree_cover(self._layout.ranks_of(node), self._layout.size)


def concatenate_parts(parts: Sequence[np.ndarray], like: np.ndarray) -> np.ndarray:
    """Join the parts of all ranks into one new vector of the length of `like`."""
    result = np.empty_like(like)
    bounds = split_bounds(len(like), len(parts))
    for part, low, high in zip(parts, bounds, bounds[1:], strict=False):
        result[low:high] = part
    return result
