"""The dynamic engine: pipelined iterations of a program (section 3.3.2 of the paper).

Each rank goes through the same steps. In step ``t``, with the pipeline depth ``s``, it
makes the changes of iteration ``t - s``, and then updates the job of iteration ``t``
without waiting for the iterations in between::

    scheduler   schedule t+1 | schedule t+2 | ...
    executors   update   t   | update   t+1 | ...
    scheduler   aggregate t-s+1, which everybody commits before update t+1

A step waits only for messages that other ranks send in earlier steps, or earlier in the
same step, so the ranks cannot wait for each other in a circle. Results are added up in
rank order and at a fixed step, not when they happen to arrive: what a rank reads in an
iteration does not depend on the network.

With one scheduler, the changes of ``t - s`` travel together with the job of ``t``: one
message to each executor per iteration. That rank runs ahead of the others, and adds up
as late as it can. With several schedulers, each schedules one round of all schedulers
ahead, so that they schedule side by side; results are added up half a depth after the
update, which leaves as much time for them as for the changes to travel.

Where ranks have parameters of their own (`Program.own_parameters`), iteration ``t`` is
the business of one rank alone until its change goes to the others, at once after the
update. Ranks that have their next iteration less than ``s`` steps apart work at the
same time. If the program wants that (`Program.announces`), a rank says what it has
chosen before it updates, and the next one chooses when it has heard that::

    rank 0   schedule, update, aggregate t                            | commit t, ...
                  |
                  v announcement
    rank 1        schedule, update, aggregate t+1                     | commit t, ...
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group, allgather, broadcast
from dask_ma.engine import RankContext, RoundLog
from dask_ma.schmp.runtime._messages import (
    JointMessages,
    OwnerMessages,
    PipelineMessages,
)
from dask_ma.schmp.runtime._program import Program
from dask_ma.schmp.runtime._schedulers import Jobs, Schedulers
from dask_ma.schmp.runtime._services import (
    JobExecutor,
    ParameterManager,
    Scheduler,
    scheduled,
)


class Counts(NamedTuple):
    """What some iterations have come to.

    Attributes
    ----------
    n_iterations : int
        Iterations made.
    n_updates : int
        Changes of single parameters, the same on all ranks.
    n_touched : int
        Elements of the data that this rank has read.
    n_rows : int
        Rows that this rank has gone over.
    """

    n_iterations: int
    n_updates: int
    n_touched: int
    n_rows: int


class DynamicEngine:
    """Runs a program on the ranks of a group; every rank has one.

    Making one is a collective call. The program is copied, so that ranks of one process
    do not share an object.

    Parameters
    ----------
    context : RankContext
        This rank.
    program : Program
        The program, the same on all ranks.
    shard : Shard
        Rows of this rank; or its columns, or a design, for a program that takes these.
    pipeline_depth : int or "auto", default="auto"
        Number of iterations that are under way at a time, at least 1. Iteration `t`
        reads the model with the changes up to ``t - pipeline_depth``. "auto" is 1 where
        all ranks share a process, whose messages take no time, and 3 elsewhere. Where
        ranks have parameters of their own it is their number, but at least 3: with
        less, some would always wait. Where the engine goes on from a state, "auto" is
        what it was there.
    n_schedulers : int, default=1
        Number of ranks that schedule, at least 1, each a part of the parameters of its
        own. More than there are ranks or parameters count as so many. A scheduler knows
        the model of ``n_schedulers - 1`` iterations before. Without meaning where ranks
        have parameters of their own.
    log : RoundLog, default=None
        Where the time of computing is counted; one of its own if None.
    state : dict, default=None
        What :meth:`state_dict` has given, to go on from; the same on all ranks.

    Attributes
    ----------
    program : Program
        This rank's own copy.
    local : object
        What the program keeps on this rank.
    schedulers : Schedulers
        Who schedules what.
    iteration : int
        Number of the next iteration.
    log : RoundLog
        Time of computing.
    """

    def __init__(
        self,
        context: RankContext,
        program: Program,
        shard: Any,
        *,
        pipeline_depth: int | str = "auto",
        n_schedulers: int = 1,
        log: RoundLog | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(pipeline_depth, str):
            if pipeline_depth != "auto":
                raise ValueError(
                    'pipeline_depth must be a number from 1 on or "auto", got '
                    f"{pipeline_depth!r}"
                )
        elif pipeline_depth < 1:
            raise ValueError(f"pipeline_depth must be at least 1, got {pipeline_depth}")
        if n_schedulers < 1:
            raise ValueError(f"n_schedulers must be at least 1, got {n_schedulers}")
        self._context = context
        self._group = context.group
        self._n_runs = 0
        self.log = RoundLog(context) if log is None else log
        self.program = copy.deepcopy(program)
        with context.span("compute"):
            self.local = self.program.prepare(shard, self._group)
            self._manager = self._make_manager(state)
            self.schedulers = self._make_schedulers(n_schedulers)
            self.program.prepare_schedule(shard, self._group, self.schedulers)
        self._executor = JobExecutor(self.program, self.local, shard)
        self._scheduler = None
        if self.schedulers.partition_of(self._group.rank) is not None:
            self._scheduler = Scheduler(
                self.program,
                self._manager,
                self.schedulers,
                self._group.rank,
                self._group.size,
            )
        self._depth = self._chosen_depth(pipeline_depth, state)
        n_schedulers = len(self.schedulers.ranks)
        self._ahead = n_schedulers - 1
        # One scheduler adds up as late as it can, several in time for the others.
        self._sum_after = self._depth if n_schedulers == 1 else (self._depth + 1) // 2
        if self.schedulers.alone:  # nothing to wait for
            self._ahead, self._sum_after = 0, 1
        self._announces = self.schedulers.alone and self.program.announces()
        self.iteration = 0 if state is None else int(state["iteration"])
        self._refresh()

    @property
    def model(self) -> np.ndarray:
        """The model, ndarray of shape (n_parameters, ...), a read-only view."""
        return self._manager.model

    @property
    def last_change(self) -> np.ndarray:
        """Size of the last change of each parameter, a read-only view."""
        return self._manager.last_change

    @property
    def n_touched(self) -> int:
        """Elements of the data that this rank has read so far."""
        touched = self.program.n_touched(self.local)
        return self._executor.n_touched if touched is None else touched

    @property
    def pipeline_depth(self) -> int:
        """Number of iterations that are under way at a time."""
        return self._depth

    def state_dict(self) -> dict[str, Any]:
        """What a later engine needs to go on from here, the same on all ranks.

        Returns
        -------
        state : dict
            "model", "last_change", "due" if there is one, "iteration" and
            "pipeline_depth"; arrays are copies.
        """
        state = self._manager.state_dict()
        depth = self._depth
        return {**state, "iteration": self.iteration, "pipeline_depth": depth}

    def own_state_dict(self) -> None:
        """What only this rank has: nothing, all have the model."""
        return None

    def lose_rows(self) -> None:
        """Nothing: the program has laid out the rows that there are."""

    def collect(self) -> np.ndarray:
        """A copy of the model."""
        return self.model.copy()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from another state, which must be the same on all ranks.

        Parameters
        ----------
        state : dict
            As :meth:`state_dict` gives it.

        Raises
        ------
        ValueError
            If the model has another shape.
        """
        self._check_state(state, self.model.shape)
        self._manager.load_state_dict(state)
        self.iteration = int(state["iteration"])
        self._refresh()

    def run(self, n_iterations: int) -> Counts:
        """Make some iterations; a collective call.

        When it returns, all changes are in the models of all ranks.

        Parameters
        ----------
        n_iterations : int
            How many, not negative.

        Returns
        -------
        counts : Counts

        Raises
        ------
        ValueError
            If the program schedules what cannot be carried out, or returns a change of
            the wrong shape or one that is not finite.
        FitFailedError
            If another rank has failed, or a wait takes longer than configured.
        """
        first, stop = self.iteration, self.iteration + n_iterations
        before = self._counted()
        messages = self._make_messages(first, stop)
        steps = _Steps(self._group, self.schedulers, messages, first, stop)
        for step in range(first, stop + self._depth):
            self._step(step, steps)
        self._group.flush()
        self._manager.rebase()
        self.iteration = stop
        self._refresh()
        done = [b - a for a, b in zip(before, self._counted(), strict=True)]
        return Counts(n_iterations, *done)

    def measure(self) -> np.ndarray:
        """The program's sums over this rank's rows, to be added up over ranks."""
        with self.log.computing("evaluate"):
            return np.asarray(
                self.program.measure(self.local, self.model), dtype=np.float64
            )

    def report(self, sums: np.ndarray) -> dict[str, float]:
        """The program's report of the model, from the sums over all ranks.

        Raises
        ------
        TypeError
            If something in it is no number.
        """
        with self.log.computing("evaluate"):
            report = self.program.report(sums, self.model)
        return {str(name): _plain(value, name) for name, value in report.items()}

    # One step ------------------------------------------------------------------------

    def _step(self, step: int, steps: _Steps) -> None:
        """Aggregate, commit, schedule and update, each of another iteration."""
        if steps.is_mine(iteration := step - self._sum_after):
            self._aggregate(iteration, steps)
        if iteration_in(iteration := step - self._depth, steps):
            self._commit(iteration, steps.messages)
        from_ = step if step == steps.first else step + self._ahead
        for iteration in range(from_, step + self._ahead + 1):
            if self._scheduler is not None and steps.is_mine(iteration):
                self._schedule(self._scheduler, iteration, steps)
        if iteration_in(step, steps):
            self._update(step, steps.messages)

    def _aggregate(self, iteration: int, steps: _Steps) -> None:
        """Add up the results of an iteration and send the change to all."""
        jobs = steps.jobs.pop(iteration)
        results = steps.messages.results(iteration, jobs)
        with self._context.span("aggregate"):
            commit = self._manager.aggregate(results, jobs, iteration)
        steps.messages.push_commit(iteration, commit)

    def _schedule(self, scheduler: Scheduler, iteration: int, steps: _Steps) -> None:
        """Choose the jobs of an iteration, and tell those who have to know."""
        messages, announcement = steps.messages, None
        elsewhere: tuple[Any, ...] = ()
        if self._announces and isinstance(messages, OwnerMessages):
            elsewhere = messages.announced(iteration)
        with self.log.computing():
            jobs = scheduler.schedule(iteration, elsewhere)
            if self._announces:
                announcement = self.program.announce(scheduled(jobs))
        steps.jobs[iteration] = jobs
        messages.push_jobs(iteration, jobs)
        if self._announces and isinstance(messages, OwnerMessages):
            messages.push_announcement(iteration, announcement)

    def _commit(self, iteration: int, messages: PipelineMessages) -> None:
        """Make the change of an iteration."""
        commit = messages.commit(iteration)
        if self._scheduler is not None:
            self._scheduler.committed(iteration)
        if len(commit.index):
            with self.log.computing():
                self._manager.apply(commit)
                self._executor.commit(commit, self.model)

    def _update(self, iteration: int, messages: PipelineMessages) -> None:
        """Work on the job of an iteration."""
        job = messages.job(iteration)
        if len(job):
            with self.log.computing():
                result = self._executor.update(job, self.model)
            messages.push_result(iteration, result)

    # Around the steps ----------------------------------------------------------------

    def _make_schedulers(self, wanted: int) -> Schedulers:
        """Who schedules what; a collective call."""
        n_parameters, seed = len(self.model), _seed_of(self._context)
        own = self.program.own_parameters(self.local, n_parameters)
        owned = allgather(
            self._group, None if own is None else (own.start, own.stop, own.step)
        )
        if all(bounds is None for bounds in owned):
            size = self._group.size
            return Schedulers.spread(wanted, size, n_parameters, seed)
        ranges = [range(0) if bounds is None else range(*bounds) for bounds in owned]
        where = f"own_parameters of {type(self.program).__name__}"
        return Schedulers.of_owners(ranges, n_parameters, seed, where)

    def _chosen_depth(self, wanted: int | str, state: dict[str, Any] | None) -> int:
        """Depth of the pipeline."""
        if wanted != "auto":
            return int(wanted)
        if state is not None:
            return int(state["pipeline_depth"])
        n_nodes = len(self._group.layout.members)
        between = 3 if n_nodes > 1 else 1
        return max(3, len(self.schedulers.ranks)) if self.schedulers.alone else between

    def _make_manager(self, state: dict[str, Any] | None) -> ParameterManager:
        """The model to begin with, or the one to go on from."""
        name = f"initial_model of {type(self.program).__name__}"
        model = None
        if state is None:
            model = np.asarray(self.program.initial_model(self.local, self._group))
            model = broadcast(self._group, model)
            if model.dtype.kind != "f":
                model = model.astype(np.float64)
        else:
            model = np.asarray(state["model"])
            self._check_state(state, model.shape)
        if model.ndim not in (1, 2) or not len(model) or not np.isfinite(model).all():
            raise ValueError(
                f"{name} returned an array of shape {model.shape}, expected finite "
                "numbers of shape (n_parameters,) or (n_parameters, K)"
            )
        manager = ParameterManager(self.program, model, self._group.rank)
        if state is not None:
            manager.load_state_dict(state)
        return manager

    def _check_state(self, state: dict[str, Any], shape: tuple[int, ...]) -> None:
        """Refuse a state of another model."""
        found = np.shape(state["model"]), np.shape(state["last_change"])
        if found != (shape, shape[:1]):
            raise ValueError(
                f"the state has a model of shape {found[0]} and changes of shape "
                f"{found[1]}, expected {shape} and {shape[:1]}"
            )

    def _make_messages(self, first: int, stop: int) -> PipelineMessages:
        """What carries the messages of the next iterations."""
        self._n_runs += 1
        kind: type[PipelineMessages] = (
            JointMessages if len(self.schedulers.ranks) == 1 else PipelineMessages
        )
        if self.schedulers.alone:
            kind = OwnerMessages
        return kind(
            self._group, self.schedulers, self._depth, self._n_runs, first, stop
        )

    def _refresh(self) -> None:
        with self.log.computing():
            self.program.refresh(self.local, self.model)

    def _counted(self) -> tuple[int, int, int]:
        return self._manager.n_updates, self.n_touched, self._executor.n_rows_read


class _Steps:
    """Iterations from `first` to `stop`, and the jobs that this rank will add up."""

    def __init__(
        self,
        group: Group,
        schedulers: Schedulers,
        messages: PipelineMessages,
        first: int,
        stop: int,
    ) -> None:
        self._rank = group.rank
        self._schedulers = schedulers
        self.messages = messages
        self.first = first
        self.stop = stop
        self.jobs: dict[int, Jobs] = {}

    def is_mine(self, iteration: int) -> bool:
        """Whether this rank schedules, and adds up, an iteration of these."""
        mine = self._schedulers.rank_of(iteration) == self._rank
        return mine and iteration_in(iteration, self)


def iteration_in(iteration: int, steps: _Steps) -> bool:
    """Whether an iteration is one of these."""
    return steps.first <= iteration < steps.stop


def _seed_of(context: RankContext) -> int:
    """Seed of the run, which all ranks share."""
    entropy: Any = context.seed.entropy
    return int(entropy)


def _plain(value: Any, name: str) -> float:
    """A number of Python's own, which can be sent and saved."""
    number = value.item() if isinstance(value, np.generic | np.ndarray) else value
    if not isinstance(number, int | float):
        raise TypeError(f"report returned {value!r} for {name!r}, expected a number")
    return number
