"""Shares of a problem's weights: all of them on one rank, or a slice on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from dask_ma.comm import (
    Group,
    allgather,
    allreduce,
    alltoall_steps,
    broadcast,
    reduce_scatter,
)
from dask_ma.engine import Adder

T = TypeVar("T")


class Share:
    """All weights, on a rank that needs no other one.

    Parameters
    ----------
    n_features : int
        Number of columns, each of which has a weight.

    Attributes
    ----------
    n_features : int
        The same.
    """

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features

    def sums(self, *values: float) -> tuple[float, ...]:
        """Sums over all ranks of what each has found for its weights."""
        return values

    def largest(self, value: float) -> float:
        """Largest of what the ranks have found."""
        return value

    def decide(self, make: Callable[[], T]) -> T:
        """What one rank makes, on all of them."""
        return make()

    def take(self, part: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Some weights of a vector that is shared out; their numbers are rising."""
        return part[weights]

    def put(self, part: np.ndarray, weights: np.ndarray, values: np.ndarray) -> None:
        """Set some weights of a vector that is shared out."""
        part[weights] = values

    def foremost(self, pull: np.ndarray, size: int) -> np.ndarray:
        """Numbers of the columns with the largest values, in rising order."""
        if size >= len(pull):
            return np.arange(len(pull))
        return np.sort(np.argpartition(-pull, size - 1)[:size])

    def gather(self, parts: np.ndarray) -> np.ndarray:
        """Whole vectors, one a row, from those that are shared out."""
        return parts


class Slice(Share):
    """Weights of as many columns on each rank; its methods are collective.

    Ranks decide alike, whatever their processors: what they go by are sums of the same
    parts in the same order, each of which one rank has found.

    Parameters
    ----------
    group : Group
        This rank.
    n_features : int
        Number of columns.
    add_up : callable or None
        Sums arrays over ranks; None leaves each rank with its slice alone.
    fit_intercept : bool
        Whether the intercept, which the last rank holds, is one of the weights.

    Attributes
    ----------
    features, weights : slice
        This rank's columns, and its weights.
    """

    def __init__(
        self,
        group: Group,
        n_features: int,
        add_up: Adder | None,
        *,
        fit_intercept: bool,
    ) -> None:
        super().__init__(n_features)
        self._group = group
        self._add_up = add_up
        self._n_intercepts = int(fit_intercept)
        # The bounds are those of the parts of a reduce-scatter.
        low, high = (n_features * k // group.size for k in (group.rank, group.rank + 1))
        self.features = slice(low, high)
        self.has_intercept = fit_intercept and group.rank == group.size - 1
        self.weights = slice(low, high + self.has_intercept)

    def sums(self, *values: float) -> tuple[float, ...]:
        """Sums over all ranks of what each has found for its weights."""
        return tuple(allreduce(self._group, np.array(values, float)).tolist())

    def add_up(self, table: np.ndarray) -> np.ndarray:
        """Sums over all ranks of a small array."""
        return allreduce(self._group, table)

    def largest(self, value: float) -> float:
        """Largest of what the ranks have found."""
        return float(allreduce(self._group, np.array(value, float), op="max"))

    def decide(self, make: Callable[[], T]) -> T:
        """What one rank makes, on all of them."""
        made: T = broadcast(self._group, make() if self._group.rank == 0 else None)
        return made

    def take(self, part: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Some weights of a vector that is shared out; their numbers are rising."""
        own, places = self._own(weights)
        values = np.zeros(len(weights))
        values[own] = part[places]
        return allreduce(self._group, values)

    def put(self, part: np.ndarray, weights: np.ndarray, values: np.ndarray) -> None:
        """Set some weights of a vector that is shared out."""
        own, places = self._own(weights)
        part[places] = values[own]

    def foremost(self, pull: np.ndarray, size: int) -> np.ndarray:
        """Numbers of the columns with the largest values, in rising order."""
        best = super().foremost(pull, size)
        found = allgather(self._group, (best + self.features.start, pull[best]))
        columns, pulls = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return np.sort(columns[np.argsort(-pulls, kind="stable")[:size]])

    def gather(self, parts: np.ndarray) -> np.ndarray:
        """Whole vectors, one a row, from those that are shared out."""
        group = self._group
        if group.layout.n_nodes < group.size:
            # Ranks of one process exchange through memory.
            return np.concatenate(allgather(group, parts), axis=1)
        # Each part goes as it is, which takes half of the time of packed ones.
        whole = np.empty((len(parts), self.n_features + self._n_intercepts))
        for rank, part in alltoall_steps(group, [parts] * group.size):
            low = self.n_features * rank // group.size
            whole[:, low : low + part.shape[1]] = part
        return whole

    def scatter(self, rows: np.ndarray) -> np.ndarray:
        """This rank's columns of the sums over ranks of vectors, one a row."""
        if self._add_up is not None:
            (total,) = self._add_up([rows])
            return total[:, self.features].copy()
        parts = [reduce_scatter(self._group, row) for row in rows]
        return np.array(parts).reshape(len(rows), -1)

    def _own(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of some weights this rank holds, and where."""
        low, high = self.weights.start, self.weights.stop
        own = (low <= weights) & (weights < high)
        return own, weights[own] - low
