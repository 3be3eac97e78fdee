"""The joint model: how it is cut into pieces, and how a piece follows the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dask_ma.mpca._schedules import CycleSchedule


class Cut(NamedTuple):
    """How a vector is cut: into shards, and each shard into a part for each rank.

    Shards and parts are of nearly equal size wherever layers begin and end (section
    4.2), so that each rank sends and receives as much as any other.

    Attributes
    ----------
    n_values : int
        Length of the vector.
    n_shards : int
        Number of shards, at least 1.
    n_ranks : int
        Number of ranks, at least 1.
    """

    n_values: int
    n_shards: int
    n_ranks: int

    def shard(self, number: int) -> tuple[int, int]:
        """First position of a shard, and the one after its last."""
        start = self.n_values * number // self.n_shards
        return start, self.n_values * (number + 1) // self.n_shards

    def part(self, number: int, rank: int) -> tuple[int, int]:
        """The same for the part of a shard that a rank looks after."""
        start, stop = self.shard(number)
        length = stop - start
        return (
            start + length * rank // self.n_ranks,
            start + length * (rank + 1) // self.n_ranks,
        )


class JointPart:
    """A part of the joint model, on the rank that looks after it.

    Parameters
    ----------
    values : ndarray of shape (n_values,)
        The joint model at the start; copied.
    schedule : CycleSchedule
        Values of the exchange by number of cycle.
    cycle : int, default=0
        Cycles made before.

    Attributes
    ----------
    values : ndarray of shape (n_values,)
        The joint model now.
    trajectory : ndarray of shape (n_values,)
        Smoothed change of the joint model in a cycle.
    cycle : int
        Cycles made.
    """

    def __init__(
        self, values: np.ndarray, schedule: CycleSchedule, cycle: int = 0
    ) -> None:
        self.values = values.copy()
        self.trajectory = np.zeros_like(values)
        self.cycle = cycle
        self._schedule = schedule

    def update(
        self, models: Sequence[np.ndarray], weights: Sequence[float]
    ) -> np.ndarray:
        """Take over what the ranks have learned (equations 4, 5, 8 and 9).

        Parameters
        ----------
        models : sequence of ndarray of shape (n_values,)
            This part of each rank's model.
        weights : sequence of float
            Weight of each rank, not negative: the steps that it has made. If all are 0
            the joint model stays as it is.

        Returns
        -------
        projected : ndarray of shape (n_values,)
            Where the joint model is expected to be later; a new array.
        """
        total = float(sum(weights))
        if total > 0:
            blending = self._schedule.blending_at(self.cycle)
            change = -blending * self.values
            for model, weight in zip(models, weights, strict=True):
                if weight > 0:  # what a rank that diverges sends may not be finite
                    change += blending * (weight / total) * model
            self.values += change
            smoothing = self._schedule.smoothing
            self.trajectory *= smoothing
            self.trajectory += (1 - smoothing) * change
        ahead = self._schedule.extrapolation_at(self.cycle)
        self.cycle += 1
        return self.values + ahead * self.trajectory
