"""Places of the values of a vector in a tensor with gaps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """Values that lie side by side in the vector and in the tensor alike."""

    vector: slice
    tensor: slice


class Placement:
    """Where parts of a vector lie in a tensor in which each begins at a round place.

    Parameters
    ----------
    sizes : sequence of int
        Values of each part, in the order of both.
    alignment : int
        Each part begins at a multiple of it; 1 leaves no gaps.

    Attributes
    ----------
    starts : list of int
        Where each part begins in the tensor.
    n_values : int
        Length of the vector.
    length : int
        Length of the tensor.
    """

    def __init__(self, sizes: Sequence[int], alignment: int) -> None:
        self.starts: list[int] = []
        self._runs: list[Run] = []
        self.n_values = end = 0
        for size in sizes:
            start = -(-end // alignment) * alignment
            self._append(start, size)
            self.starts.append(start)
            self.n_values += size
            end = start + size
        self.length = end
        self._begins = [run.vector.start for run in self._runs]

    def _append(self, start: int, size: int) -> None:
        """Add a part to the runs, or to the last of them."""
        first, stop = self.n_values, self.n_values + size
        if self._runs and self._runs[-1].tensor.stop == start:
            last = self._runs.pop()
            first, start = last.vector.start, last.tensor.start
        if stop > first:
            self._runs.append(
                Run(slice(first, stop), slice(start, start + stop - first))
            )

    def between(self, start: int, stop: int) -> list[Run]:
        """Part of the vector as runs; the slices of the vector count from `start`."""
        found = []
        for run in self._runs[max(0, bisect_right(self._begins, start) - 1) :]:
            first, last = max(run.vector.start, start), min(run.vector.stop, stop)
            if first >= last:
                break
            shift = run.tensor.start - run.vector.start
            found.append(
                Run(
                    slice(first - start, last - start),
                    slice(first + shift, last + shift),
                )
            )
        return found

    def around(self, start: int, stop: int) -> slice:
        """Part of the tensor that holds a part of the vector, gaps between included."""
        runs = self.between(start, stop)
        return slice(runs[0].tensor.start, runs[-1].tensor.stop) if runs else slice(0)
