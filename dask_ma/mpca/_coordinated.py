"""Multi-phase coordinated asynchronous exchange (section 4 of the paper).

Ranks never wait for each other. After each step a rank looks at what has arrived: parts
of models that it is to add up, and parts of the joint model that others have sent. Both
take the way between steps, so no second thread competes with the network.

The exchanges of a fit are numbered; exchange `k` carries shard ``k % n_phases``. The
joint model of a shard lies in equal parts on all ranks: a rank sends each other rank a
part of what it has, adds up its own part, and sends that to everybody. All connections
carry the same load in both directions, which a single rank in the place of the paper's
driver could not have.
"""

from __future__ import annotations

from time import perf_counter, sleep
from typing import Any

import numpy as np

from dask_ma.comm import allgather
from dask_ma.mpca._joint import Cut, JointPart
from dask_ma.mpca._ledger import N_FIELDS, Update
from dask_ma.mpca._network import Pull
from dask_ma.mpca._schedules import CycleSchedule
from dask_ma.mpca._strategy import Strategy

_MODEL = ("mpca", "model")
_JOINT = ("mpca", "joint")


class Coordinated(Strategy):
    """Exchange in phases while the ranks go on computing.

    Parameters
    ----------
    n_phases : int
        Number of shards, which are exchanged in turn: 1, 2 or 3.
    schedule : CycleSchedule
        Values by number of cycle.
    weighting : {"steps", "uniform"}
        Whether a rank's model counts by the steps made since the last exchange of the
        same shard (equation 9), or as much as any other.
    cycles : sequence of int or None
        Cycles that each shard has made before; None for none.
    **common
        As for :class:`~dask_ma.mpca._strategy.Strategy`. The network holds the joint
        model to begin with.
    """

    def __init__(
        self,
        n_phases: int,
        schedule: CycleSchedule,
        weighting: str,
        cycles: list[int] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        size, rank = self._group.size, self._group.rank
        self._cut = Cut(self._network.n_values, n_phases, size)
        self._schedule = schedule
        self._by_steps = weighting == "steps"
        self._cycles = [0] * n_phases if cycles is None else list(cycles)
        self._parts = []
        for number in range(n_phases):
            values = self._network.read(*self._cut.part(number, rank))
            self._parts.append(JointPart(values, schedule, self._cycles[number]))
        self._known = self._network.read(0, self._network.n_values)
        self._sent_at = [0] * n_phases  # steps made at the last exchange of a shard
        self._since = [0.0] * n_phases  # when it began
        self._n_sent = self._n_reduced = self._n_received = 0
        self._models: dict[int, Any] = {}
        self._joints: dict[int, Any] = {}

    # What the trainer calls -----------------------------------------------------------

    def exchange(self, *, ends_pass: bool, idle: bool) -> list[Update]:
        """Do all that can be done without waiting; an idle rank waits for a message."""
        updates: list[Update] = []
        while True:
            has_moved = self._reduce() or self._send(idle)
            update = self._receive()
            if update is not None:
                updates.append(update)
                # Every rank is to act on an update before it adds to the next ones.
                return updates
            if not has_moved:
                if not idle:
                    self._let_others_run()
                    return updates
                self._group.wait_any(self._wanted())

    def joint(self) -> np.ndarray:
        """Projected joint model as all ranks know it after the latest update."""
        return self._known

    def collect(self) -> np.ndarray:
        """The joint model itself, from the parts on all ranks."""
        gathered = allgather(self._group, [part.values for part in self._parts])
        joint = np.empty_like(self._known)
        for rank, parts in enumerate(gathered):
            for number, values in enumerate(parts):
                start, stop = self._cut.part(number, rank)
                joint[start:stop] = values
        return joint

    def cycles(self) -> list[int]:
        """Cycles that each shard has made."""
        return list(self._cycles)

    # The three things that go on ------------------------------------------------------

    def _send(self, idle: bool) -> bool:
        """Send the next shard of this rank's model if it is its turn."""
        number = self._n_sent % len(self._parts)
        # While one shard is reduced the ones before it are on their way to the ranks.
        is_turn = self._n_sent <= self._n_reduced
        is_back = self._n_sent - self._n_received < len(self._parts)
        tau = self._ledger.n_steps - self._sent_at[number]
        if not (is_turn and is_back and (tau or idle)):
            return False
        weight = float(tau if self._by_steps else tau > 0)
        if self._ledger.has_diverged:
            weight = 0.0
        header = np.append(self._ledger.take(tau), weight)
        self._sent_at[number] = self._ledger.n_steps
        self._since[number] = perf_counter()
        start, stop = self._cut.shard(number)
        values = self._network.read(start, stop)
        for rank in self._others_first():
            first, last = self._cut.part(number, rank)
            part = values[first - start : last - start]
            # Neither is written to again.
            self._group.push((part, header), rank, _MODEL, copy=False)
        self._n_sent += 1
        return True

    def _reduce(self) -> bool:
        """Add up this rank's part of a shard once all ranks have sent theirs."""
        if not self._gather(self._models, _MODEL):
            return False
        number = self._n_reduced % len(self._parts)
        received = [self._models[rank] for rank in range(self._group.size)]
        self._models.clear()
        headers = [header for _, header in received]
        weights = [float(header[-1]) for header in headers]
        projected = self._parts[number].update(
            [model for model, _ in received], weights
        )
        counts = np.sum([header[:N_FIELDS] for header in headers], axis=0)
        for rank in self._others_first():
            self._group.push((projected, counts), rank, _JOINT, copy=False)
        self._n_reduced += 1
        return True

    def _receive(self) -> Update | None:
        """Take over a shard of the joint model once all its parts are here."""
        if not self._gather(self._joints, _JOINT):
            return None
        number = self._n_received % len(self._parts)
        n_bytes = 0
        for rank, (projected, _) in self._joints.items():
            start, stop = self._cut.part(number, rank)
            self._known[start:stop] = projected
            n_bytes += projected.nbytes
        counts = self._joints[self._group.rank][1]
        self._joints.clear()
        start, stop = self._cut.shard(number)
        self._network.aim(start, self._known[start:stop].copy())
        self._cycles[number] += 1
        self._n_received += 1
        self._set_pulls()
        self._group.trace.add_beside(self._since[number], perf_counter(), n_bytes)
        return self._add(counts)

    # Helpers --------------------------------------------------------------------------

    def _gather(self, messages: dict[int, Any], tag: tuple[str, str]) -> bool:
        """Look for messages that are missing; whether all ranks have sent theirs."""
        for rank in range(self._group.size):
            if rank not in messages:
                arrived, message = self._group.poll(rank, tag)
                if arrived:
                    messages[rank] = message
        return len(messages) == self._group.size

    def _let_others_run(self) -> None:
        """Let other threads of this process take the interpreter.

        They are the other ranks, if there are any here, and the one that sends and
        receives. It would otherwise change hands every 5 ms only, which may be a
        hundred steps of a small network.
        """
        sleep(0)

    def _wanted(self) -> list[tuple[int, Any]]:
        """Messages that this rank is waiting for."""
        return [
            (rank, tag)
            for messages, tag in ((self._models, _MODEL), (self._joints, _JOINT))
            for rank in range(self._group.size)
            if rank not in messages
        ]

    def _others_first(self) -> list[int]:
        """All ranks, from the next one on, so that not all send to the same at once."""
        size, rank = self._group.size, self._group.rank
        return [(rank + 1 + offset) % size for offset in range(size)]

    def _set_pulls(self) -> None:
        """Draw this rank to what it knows of the joint model."""
        n_parameters = self._network.n_parameters
        self.pulls = []
        for number, cycle in enumerate(self._cycles):
            start, stop = self._cut.shard(number)
            stop = min(stop, n_parameters)
            strength = self._schedule.penalty_at(cycle)
            if strength > 0 and start < stop:
                self.pulls.append(Pull(start, stop, strength))
