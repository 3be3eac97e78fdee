"""What a rank knows while it runs."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from dask_ma.comm import Group, broadcast

Record = dict[str, Any]
Model = dict[str, Any]
#: Called with a record and a function that returns the model at that point; True asks
#: the fit to stop.
Listener = Callable[[Record, Callable[[], Model]], bool]


class RankContext:
    """A rank's group, random numbers and history.

    Parameters
    ----------
    group : Group
        The rank among the others.
    seed : int
        Seed of the run.
    listening : bool
        Whether somebody follows the run; the same on all ranks.
    listener : callable, default=None
        Where rank 0 reports to if `listening`.

    Attributes
    ----------
    group : Group
        The rank among the others.
    seed : SeedSequence
        This rank's own stream of seeds; it depends on the seed and the rank alone.
    history : list of dict
        The records so far; empty but on rank 0.
    """

    def __init__(
        self,
        group: Group,
        seed: int,
        *,
        listening: bool = False,
        listener: Listener | None = None,
    ) -> None:
        self.group = group
        self.seed = np.random.SeedSequence(seed, spawn_key=(group.rank,))
        self.history: list[Record] = []
        self._listening = listening
        self._listener = listener
        self._start = perf_counter()

    @property
    def is_followed(self) -> bool:
        """Whether somebody follows the run; the same on all ranks."""
        return self._listening

    def elapsed(self) -> float:
        """Seconds since this rank started."""
        return perf_counter() - self._start

    def record(self, record: Record, model: Model) -> bool:
        """Note what a round has brought; a collective call if somebody listens.

        Parameters
        ----------
        record : dict
            Names and plain numbers.
        model : dict
            The model after the round, for callbacks that ask for it.

        Returns
        -------
        stop : bool
            Whether a callback wants the fit to end here; the same on all ranks.
        """
        stop = False
        if self.group.rank == 0:
            self.history.append(record)
            if self._listener is not None:
                stop = self._listener(record, lambda: model)
        if self._listening:
            stop = broadcast(self.group, stop)
        return stop
