"""The joint model: how it is cut into pieces, and how a piece follows the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dask_ma.kernels import blocks
from dask_ma.mpca.strategies._schedules import CycleSchedule


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
    cycle : int
        Cycles made.
    """

    def __init__(
        self, values: np.ndarray, schedule: CycleSchedule, cycle: int = 0
    ) -> None:
        self.values = values.copy()
        self.cycle = cycle
        self._schedule = schedule

    def update(
        self, models: Sequence[np.ndarray], weights: Sequence[float]
    ) -> np.ndarray:
        """Take over what the ranks have learned (equations 8 and 9).

        Parameters
        ----------
        models : sequence of ndarray of shape (n_values,)
            This part of each rank's model.
        weights : sequence of float
            Weight of each rank, not negative: the steps that it has made. If all are 0
            the joint model stays as it is.

        Returns
        -------
        values : ndarray of shape (n_values,)
            The joint model, as a new array.
        """
        total = float(sum(weights))
        if total > 0:
            blending = self._schedule.blending_at(self.cycle)
            for part in blocks(len(self.values)):
                values = self.values[part]
                change = -blending * values
                for model, weight in zip(models, weights, strict=True):
                    if weight > 0:  # what a rank that diverges sends may not be finite
                        change += blending * (weight / total) * model[part]
                values += change
        self.cycle += 1
        return self.values.copy()


class Projection:
    """The joint model as a rank knows it, and where it is on its way to.

    Every rank works out the projection by itself from the joint models that it gets. So
    all have the joint model, which is what is scored, kept and returned, and no message
    more is needed.

    Parameters
    ----------
    values : ndarray of shape (n_values,)
        The joint model at the start; copied.
    n_parameters : int
        How many of its values, from the first on, are projected. The others are such as
        the running variances of a batch normalisation, which may not become negative.
    schedule : CycleSchedule
        Values of the exchange by number of cycle.
    trajectory : ndarray of shape (n_parameters,) or None, default=None
        To go on from; copied. None for 0.

    Attributes
    ----------
    values : ndarray of shape (n_values,)
        The joint model now.
    trajectory : ndarray of shape (n_parameters,)
        Smoothed change of the parameters in a cycle.
    """

    def __init__(
        self,
        values: np.ndarray,
        n_parameters: int,
        schedule: CycleSchedule,
        trajectory: np.ndarray | None = None,
    ) -> None:
        self.values = values.copy()
        if trajectory is None:
            trajectory = np.zeros(n_parameters, values.dtype)
        self.trajectory = trajectory.astype(values.dtype)
        self._schedule = schedule

    def advance(self, start: int, values: np.ndarray, cycle: int) -> np.ndarray:
        """Take over the joint model from `start` on (equations 4 and 5).

        Parameters
        ----------
        start : int
            Position of the first value.
        values : ndarray of shape (n_changed,)
            The joint model there.
        cycle : int
            Cycles that these values have made before.

        Returns
        -------
        projected : ndarray of shape (n_changed,)
            Where the parameters are expected to be later, and the other values as they
            are; a new array.
        """
        known = self.values[start : start + len(values)]
        trajectory = self.trajectory[start : start + len(values)]
        smoothing = self._schedule.smoothing
        extrapolation = self._schedule.extrapolation_at(cycle)
        projected = np.empty_like(values)
        for part in blocks(len(trajectory)):
            smoothed, change = trajectory[part], values[part] - known[part]
            change *= 1 - smoothing
            smoothed *= smoothing
            smoothed += change
            np.multiply(smoothed, extrapolation, out=change)
            np.add(values[part], change, out=projected[part])
            known[part] = values[part]
        rest = slice(len(trajectory), None)
        projected[rest] = known[rest] = values[rest]
        return projected
