"""Multi-phase coordinated asynchronous exchange (section 4 of the paper).

Ranks never wait for each other. After each step a rank looks at what has arrived: parts
of models that it is to add up, and parts of the joint model that others have sent. Both
take the way between steps, so no second thread competes with the network.

The exchanges of a fit are numbered; exchange `k` carries shard ``k % n_phases``. The
joint model of a shard lies in equal parts on all ranks: a rank sends each other rank a
part of what it has, adds up its own part, and sends that to everybody, who works out
by itself where it is on its way to. All connections carry the same load in both
directions, which a single rank in the place of the paper's driver could not have.
"""

from __future__ import annotations

import os
from time import perf_counter, sleep
from typing import Any

import numpy as np

from dask_ma import _config
from dask_ma.mpca.networks._anchors import ProximalTerm
from dask_ma.mpca.strategies._base import Batch, Strategy, Trainee
from dask_ma.mpca.strategies._compression import Difference, DifferenceCoder
from dask_ma.mpca.strategies._joint import Cut, JointPart, Projection
from dask_ma.mpca.strategies._messages import CoalescedMessages, ExchangeBudget
from dask_ma.mpca.strategies._progress import N_FIELDS, Decision
from dask_ma.mpca.strategies._schedules import CycleSchedule

_MODEL, _JOINT = "model", "joint"
_SHORT_STEP = 1e-3  # seconds
_MOMENT = 1e-4  # seconds, long enough for another thread to wake up
_TAU_MEMORY = 0.5  # of the length of cycles before the last one


class Coordinated(Strategy):
    """Exchange in phases while the ranks go on computing.

    Parameters
    ----------
    trainee : Trainee
        The rank, whose network holds the joint model to begin with.
    n_phases : int
        Number of shards, which are exchanged in turn: 1, 2 or 3.
    schedule : CycleSchedule
        Values by number of cycle.
    weighting : {"steps", "uniform"}
        Whether a rank's model counts by the steps made since the last exchange of the
        same shard (equation 9), or as much as any other.
    cycles : sequence of int or None
        Cycles that each shard has made before; None for none.
    most_steps : int, default=0
        After so many steps there is an exchange whatever it costs: what all ranks have
        done, and whether that is enough, is known from exchanges only. With 0 the cost
        never counts.
    trajectory : ndarray of shape (n_parameters,) or None, default=None
        Of the joint model, to go on from; None for none.
    most_lead : int, default=0
        A rank that has made so many short steps since it last sent something sleeps
        for a moment after each; with 0 it never does.
    penalty_form : {"shift", "loss"}, default="shift"
        How the penalty acts in a step; see :meth:`Network.step`.
    compression : {"bf16", "int8"} or None, default=None
        What models are sent in, as differences to the joint model; None for their own
        type.
    pulls_at_once : bool, default=False
        Whether the first step after a joint model has come draws the rank there, by as
        much as all steps of a cycle would, where the schedule has no penalty of a step.
    """

    def __init__(
        self,
        trainee: Trainee,
        n_phases: int,
        schedule: CycleSchedule,
        weighting: str,
        cycles: list[int] | None = None,
        most_steps: int = 0,
        trajectory: np.ndarray | None = None,
        most_lead: int = 0,
        *,
        penalty_form: str = "shift",
        compression: str | None = None,
        pulls_at_once: bool = False,
    ) -> None:
        super().__init__(trainee)
        self.form = penalty_form
        self._most_steps = most_steps
        self._most_lead = most_lead
        size, rank = self._group.size, self._group.rank
        self._cut = Cut(self._network.n_values, n_phases, size)
        self._schedule = schedule
        self._pulls_at_once = pulls_at_once and schedule.penalty is None
        self._by_steps = weighting == "steps"
        self._cycles = [0] * n_phases if cycles is None else list(cycles)
        self._parts = []
        for number in range(n_phases):
            values = self._network.read(*self._cut.part(number, rank))
            self._parts.append(JointPart(values, schedule, self._cycles[number]))
        self._models = self._make_coder(compression, feedback=True)
        # The rank that looks after a part knows it in full precision.
        self._joints = self._make_coder(compression, feedback=False)
        self._projection = Projection(
            self._network.read(0, self._network.n_values),
            self._network.n_parameters,
            schedule,
            trajectory,
        )
        self._sent_at = [0] * n_phases  # steps made at the last exchange of a shard
        self._since = [0.0] * n_phases  # when it began
        self._tau = [0.0] * n_phases  # steps between exchanges of a shard, smoothed
        self._n_sent = self._n_reduced = self._n_received = 0
        self._last_step = perf_counter()
        self._messages = CoalescedMessages(self._group, (_MODEL, _JOINT))
        part = _config.get_fraction("mpca.exchange-share")
        self._share = ExchangeBudget(part, self._group)

    # What the trainer calls -----------------------------------------------------------

    def step(self, batch: Batch, learning_rate: float) -> float:
        """Make a step, and forget what has been drawn once and for all."""
        loss = super().step(batch, learning_rate)
        if self._pulls_at_once:
            self.proximal_terms = []
        return loss

    def exchange(self, *, ends_pass: bool, idle: bool) -> list[Decision]:
        """Do all that can be done without waiting; an idle rank waits for a message."""
        while True:
            with self._share.exchanging():
                self._messages.look()
                has_moved = self._reduce()
                has_moved = self._send(idle) or has_moved
                self._messages.send()
                update = self._receive()
            if update is not None:
                # Every rank is to act on an update before it adds to the next ones.
                return [update]
            if has_moved:
                continue
            if not idle:
                self._let_others_run()
                return []
            self._messages.wait()

    def joint(self) -> np.ndarray:
        """The joint model itself, the same on all ranks after the same update."""
        return self._projection.values

    def trajectory(self) -> np.ndarray | None:
        """Smoothed change of the joint model's parameters in a cycle."""
        return self._projection.trajectory

    def cycles(self) -> list[int]:
        """Cycles that each shard has made."""
        return list(self._cycles)

    # The three things that go on ------------------------------------------------------

    def _send(self, idle: bool) -> bool:
        """Send the next shard of this rank's model if it is its turn."""
        number = self._n_sent % len(self._parts)
        # While one shard is added up the one before is on its way back. With three,
        # another one can be sent meanwhile.
        is_turn = self._n_sent <= self._n_reduced + max(0, len(self._parts) - 2)
        is_back = self._n_sent - self._n_received < len(self._parts)
        tau = self._counters.n_steps - self._sent_at[number]
        if not (is_turn and is_back and (idle or (tau and self._is_due()))):
            return False
        weight = float(tau if self._by_steps else tau > 0)
        if self._counters.has_diverged:
            weight = 0.0
        header = np.append(self._counters.take(tau), weight)
        self._sent_at[number] = self._counters.n_steps
        memory = _TAU_MEMORY if self._tau[number] else 0.0
        self._tau[number] = memory * self._tau[number] + (1 - memory) * tau
        self._since[number] = perf_counter()
        start, stop = self._cut.shard(number)
        values = self._network.read(start, stop)
        for rank in range(self._group.size):
            first, last = self._cut.part(number, rank)
            part = values[first - start : last - start]
            packed = self._pack(self._models, first, part)
            self._messages.put(_MODEL, (packed, header), rank)
        self._n_sent += 1
        self._share.note_exchange(self._counters.seconds_computing)
        return True

    def _reduce(self) -> bool:
        """Add up this rank's part of a shard once all ranks have sent theirs."""
        received = self._messages.take(_MODEL)
        if received is None:
            return False
        number = self._n_reduced % len(self._parts)
        headers = [header for _, header in received]
        weights = [float(header[-1]) for header in headers]
        start, stop = self._cut.part(number, self._group.rank)
        models = [
            self._unpack(self._models, start, stop, model) for model, _ in received
        ]
        joint = self._parts[number].update(models, weights)
        packed = self._pack(self._joints, start, joint)
        counts = np.sum([header[:N_FIELDS] for header in headers], axis=0)
        for rank in range(self._group.size):
            self._messages.put(_JOINT, (packed, counts), rank)
        self._n_reduced += 1
        return True

    def _receive(self) -> Decision | None:
        """Take over a shard of the joint model once all its parts are here."""
        received = self._messages.take(_JOINT)
        if received is None:
            return None
        number = self._n_received % len(self._parts)
        parts = [
            self._unpack(self._joints, *self._cut.part(number, rank), part)
            for rank, (part, _) in enumerate(received)
        ]
        counts = received[self._group.rank][1]
        start, _ = self._cut.shard(number)
        joint = np.concatenate(parts)
        projected = self._projection.advance(start, joint, self._cycles[number])
        self._network.set_anchor(start, projected)
        self._cycles[number] += 1
        self._n_received += 1
        self._set_pulls(number)
        self._group.trace.add_beside(self._since[number], perf_counter(), joint.nbytes)
        return self._add(counts)

    # Helpers --------------------------------------------------------------------------

    def _make_coder(
        self, name: str | None, *, feedback: bool
    ) -> DifferenceCoder | None:
        """What writes models down in fewer bits; None if that is not asked for."""
        if name is None:
            return None
        network = self._network
        size = (network.n_values, network.n_parameters, network.dtype)
        return DifferenceCoder(name, *size, feedback=feedback)

    def _pack(self, coder: DifferenceCoder | None, start: int, part: np.ndarray) -> Any:
        """A part of a model as it is sent."""
        if coder is None:
            return part
        # The last joint model of these values that has come back: a rank sends a shard
        # again only then, so all ranks know the same one.
        known = self._projection.values[start : start + len(part)]
        return coder.encode(start, part, known)

    def _unpack(
        self, coder: DifferenceCoder | None, start: int, stop: int, packed: Any
    ) -> np.ndarray:
        """A part of a model as it was before it was packed."""
        if coder is None:
            part: np.ndarray = packed
            return part
        known = self._projection.values[start:stop]
        return coder.decode(start, Difference(*packed), known)

    def _is_due(self) -> bool:
        """Whether it is time for another exchange, or one can be afforded."""
        counters = self._counters
        if counters.n_steps - max(self._sent_at) >= self._most_steps:
            return True
        return self._share.is_due(counters.seconds_computing)

    def _let_others_run(self) -> None:
        """Let other threads of this process take the interpreter after a short step."""
        # Ranks, and the thread of messages, would otherwise get it every 5 ms, or a
        # hundred steps of a small network. Large operations let go of it anyway, and a
        # yield may cost the rest of a time slice.
        if perf_counter() - self._last_step < _SHORT_STEP:
            if self._is_far_ahead():
                # Who only yields has it again before another thread wakes up.
                sleep(_MOMENT)
            elif hasattr(os, "sched_yield"):
                os.sched_yield()
            else:
                sleep(0)  # takes much longer
        self._last_step = perf_counter()

    def _is_far_ahead(self) -> bool:
        """Whether an exchange is overdue, maybe as others do not get to theirs."""
        lead = self._counters.n_steps - max(self._sent_at)
        return self._n_sent > self._n_received and 0 < self._most_lead <= lead

    def _set_pulls(self, new: int) -> None:
        """Draw this rank to what it knows of the joint model, which has a new shard."""
        n_parameters = self._network.n_parameters
        self.proximal_terms = []
        for number, cycle in enumerate(self._cycles):
            if self._pulls_at_once and number != new:
                continue
            start, stop = self._cut.shard(number)
            stop = min(stop, n_parameters)
            n_steps = 1.0 if self._pulls_at_once else max(1.0, self._tau[number])
            strength = self._schedule.penalty_at(cycle, n_steps)
            if strength > 0 and start < stop:
                self.proximal_terms.append(ProximalTerm(start, stop, strength))
