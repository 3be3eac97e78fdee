"""The interface of a strategy, and two of them: alone, and averaging."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group, allreduce, weighted_mean
from dask_ma.mpca.networks._anchors import ProximalTerm
from dask_ma.mpca.networks._network import Network
from dask_ma.mpca.strategies._compression import CompressedMean
from dask_ma.mpca.strategies._progress import Decision, FitProgress, RankCounters


class Batch(NamedTuple):
    """Rows for one step.

    Attributes
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
    y : ndarray of shape (n_rows,)
    sample_weight : ndarray of shape (n_rows,) or None
    ends_pass : bool
        Whether it is the last one of a pass over the rank's rows.
    """

    X: Any
    y: np.ndarray
    sample_weight: np.ndarray | None
    ends_pass: bool


class Trainee(NamedTuple):
    """A rank in training.

    Attributes
    ----------
    group : Group
        The rank.
    network : Network
        Its network.
    counters : RankCounters
        What the rank has done.
    progress : FitProgress
        What all ranks have done.
    elapsed : callable
        Gives the seconds since the fit began.
    """

    group: Group
    network: Network
    counters: RankCounters
    progress: FitProgress
    elapsed: Callable[[], float]


class Strategy(ABC):
    """How a rank shares what it learns.

    Parameters
    ----------
    trainee : Trainee
        The rank.
    """

    def __init__(self, trainee: Trainee) -> None:
        self._group = trainee.group
        self._network = trainee.network
        self._counters = trainee.counters
        self._progress = trainee.progress
        self._elapsed = trainee.elapsed
        self.proximal_terms: list[ProximalTerm] = []
        self.form = "shift"  # of the proximal terms

    def step(self, batch: Batch, learning_rate: float) -> float:
        """Make a step on a batch and return its loss."""
        return self._network.step(
            batch.X,
            batch.y,
            batch.sample_weight,
            learning_rate=learning_rate,
            proximal_terms=self.proximal_terms,
            form=self.form,
        )

    @abstractmethod
    def exchange(self, *, ends_pass: bool, idle: bool) -> list[Decision]:
        """Share what there is to share; called after each step.

        Parameters
        ----------
        ends_pass : bool
            Whether the rank has gone over all its rows.
        idle : bool
            Whether the rank makes no steps, and may as well wait for messages.

        Returns
        -------
        updates : list of Decision
            What has become known since the last call; every rank gets the same updates
            in the same order, though not at the same time.
        """

    def share_score(self) -> list[Decision]:
        """Share the rank's part of a score; by default together with the next counts.

        Returns
        -------
        updates : list of Decision
            What has become known by it.
        """
        return []

    @abstractmethod
    def joint(self) -> np.ndarray:
        """Joint model after the latest update, as this rank knows it; may be a copy."""

    def collect(self) -> np.ndarray:
        """Joint model after the last update, the same everywhere; a collective call."""
        return self.joint()

    def leave(self) -> None:
        """Leave no other rank waiting for this one; a collective call."""

    def cycles(self) -> list[int]:
        """Exchanges made so far, for each shard."""
        return []

    def trajectory(self) -> np.ndarray | None:
        """Smoothed change of the joint model, if the strategy has one."""
        return None

    def _add(self, counts: np.ndarray) -> Decision:
        """Add counts of all ranks to the progress."""
        return self._progress.add(counts, self._elapsed())

    def _add_now(self, tau: float, n_exchanges: int = 1) -> Decision:
        """Add up what all ranks have done; a collective call."""
        counts = self._counters.take(tau, n_exchanges)
        return self._add(allreduce(self._group, counts))


class Alone(Strategy):
    """Each rank trains by itself; the joint model is the mean after each pass."""

    def __init__(self, trainee: Trainee) -> None:
        super().__init__(trainee)
        self._mean = self._network.read(0, self._network.n_values)

    def exchange(self, *, ends_pass: bool, idle: bool) -> list[Decision]:
        """Add up what has been done, and take the mean, after each pass."""
        if not (ends_pass or idle):
            return []
        self._mean = self._network.read(0, self._network.n_values)
        if self._group.size > 1:
            weight = float(self._counters.n_steps * (not self._counters.has_diverged))
            self._mean = mean_of_models(self._group, self._mean, weight)
        return [self._add_now(0.0)]

    def share_score(self) -> list[Decision]:
        """Share it at once."""
        return [self._add_now(0.0)]

    def joint(self) -> np.ndarray:
        """Mean of the ranks' models after the last pass."""
        return self._mean


class Averaging(Strategy):
    """All ranks stop after so many steps and go on from their mean (section 3.1).

    Parameters
    ----------
    trainee : Trainee
        The rank.
    period : int
        Steps from one mean to the next, at least 1.
    compression : {"bf16", "int8"} or None, default=None
        What models are sent in, as differences to the last mean; None for their own
        type.
    """

    def __init__(
        self, trainee: Trainee, period: int, compression: str | None = None
    ) -> None:
        super().__init__(trainee)
        self._period = period
        self._n_done = 0
        network = self._network
        self._joint = network.read(0, network.n_values)
        self._compressed: CompressedMean | None = None
        if compression is not None:
            self._compressed = CompressedMean(
                self._group, compression, network.n_parameters, self._joint
            )

    def exchange(self, *, ends_pass: bool, idle: bool) -> list[Decision]:
        """Replace the model by the mean over ranks when it is time."""
        self._n_done += 1
        if self._n_done < self._period and not idle:
            return []
        weight = 0.0 if idle or self._counters.has_diverged else 1.0
        self._n_done = 0
        model = self._network.read(0, self._network.n_values)
        if self._compressed is None:
            self._joint = mean_of_models(self._group, model, weight, self._joint)
        else:
            self._joint = self._compressed.update(model, weight, self._joint)
        self._network.write(0, self._joint)
        return [self._add_now(self._period * weight)]

    def share_score(self) -> list[Decision]:
        """Share it at once."""
        return [self._add_now(0.0)]

    def joint(self) -> np.ndarray:
        """The last mean."""
        return self._joint


def mean_of_models(
    group: Group, model: np.ndarray, weight: float, otherwise: np.ndarray | None = None
) -> np.ndarray:
    """Mean of the models of those ranks that have a weight; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    model : ndarray
        Its model; it may hold anything if the weight is 0.
    weight : float
        Weight of the rank.
    otherwise : ndarray, default=None
        Result if no rank has a weight; None for the rank's own model.
    """
    total = float(allreduce(group, np.array(weight)))
    if total == 0:
        return model if otherwise is None else otherwise
    if weight == 0:
        model = np.zeros_like(model)
    return weighted_mean(group, model, weight, total=total)
