"""Running a user's program on data of any accepted kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import cloudpickle
import numpy as np

from dask_ma.comm import allreduce, broadcast
from dask_ma.data import build_shard
from dask_ma.engine import (
    Identity,
    Method,
    Model,
    RankContext,
    Record,
    RoundLog,
    Snapshot,
    State,
    Work,
    check_counts,
    describe_program,
    fit_rounds,
    run_program_job,
)
from dask_ma.schmp.runtime._block_states import join_parts
from dask_ma.schmp.runtime._dynamic import Counts, DynamicEngine
from dask_ma.schmp.runtime._program import Program, Schedule
from dask_ma.schmp.runtime._rotation import RotationEngine
from dask_ma.schmp.runtime._rotation_program import RotationProgram

_REPORT_EVERY = {Program: 100, RotationProgram: 1}


class ProgramResult(NamedTuple):
    """What a run has found.

    Attributes
    ----------
    model : ndarray of float of shape (n_parameters,) or (n_parameters, K), or dict
        The model; that of a :class:`RotationProgram` is a dict of arrays: the values of
        all parameters, in their order, and what is shared.
    history : list of dict
        One record for each round: its number, the iterations so far, the seconds since
        the start, what the program reports, and over all ranks the elements of the data
        and rows gone over, messages, bytes and times of computing and waiting.
        `restarts` counts how often the ranks have had to start again until then. For a
        :class:`RotationProgram`, `imbalance` is the work of the rank that has most in a
        sub-iteration over the mean.
    converged : bool
        Whether the program ended the run.
    timeline : ndarray or None
        What each rank has done when, see :func:`dask_ma.comm.gather_timeline`; None
        but on rank 0, whose result :func:`run` returns.
    """

    model: Any
    history: list[Record]
    converged: bool
    timeline: np.ndarray | None


class Engine(Protocol):
    """What carries a program out on a rank."""

    program: Any
    iteration: int
    log: RoundLog

    @property
    def model(self) -> Any:
        """The model, as far as this rank has it."""

    def run(self, n_iterations: int) -> Counts:
        """Make some iterations; a collective call."""

    def measure(self) -> np.ndarray:
        """Sums of this rank, to be added up over ranks."""

    def report(self, sums: np.ndarray) -> dict[str, Any]:
        """What the history says, from the sums over all ranks."""

    def state_dict(self) -> dict[str, Any]:
        """What a later engine needs to go on, as far as all ranks have it."""

    def own_state_dict(self) -> dict[str, Any] | None:
        """The same, what only this rank has; None if it has nothing of its own."""

    def lose_rows(self) -> None:
        """Go on with a state of more rows than there are now; a collective call."""

    def collect(self) -> Any:
        """The whole model, on rank 0; a collective call."""


@dataclass(frozen=True)
class RunParams:
    """Parameters of :func:`run` as the ranks get them.

    Parameters
    ----------
    program : bytes
        The program, pickled.
    n_iterations, n_schedulers, report_every : int
        As in :func:`run`.
    pipeline_depth : int or "auto"
        As in :func:`run`.
    has_targets : bool
        Whether the rows have targets.
    row_dtypes : tuple of dtypes
        Types that the program takes rows in; any other becomes the first.
    """

    program: bytes
    n_iterations: int
    pipeline_depth: int | str
    n_schedulers: int
    report_every: int
    has_targets: bool
    row_dtypes: tuple[Any, ...] = (np.float64, np.float32)


def run(
    program: Program | RotationProgram,
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    n_iterations: int,
    pipeline_depth: int | str | None = None,
    n_schedulers: int | None = None,
    report_every: int | None = None,
    random_state: Any = None,
    n_ranks: int | None = None,
) -> ProgramResult:
    """Run a program of scheduled model parallelism on the rows of all workers.

    Rows stay on the workers that hold them. The run uses the current Dask client, and
    threads of this process without one. It goes on after the loss of a worker and from
    checkpoints as fits do, from the end of the last round.

    Parameters
    ----------
    program : Program or RotationProgram
        The program; pickled, so that the ranks do not share it with the caller.
    X : array-like, sparse, DataFrame, dask.array or dask.dataframe
        Rows, of shape (n_samples, n_features).
    y : array-like or Dask column of shape (n_samples,), default=None
        Targets, as the program wants them; None if it wants none.
    sample_weight : array-like or Dask column, shape (n_samples,), default=None
        Weights of the rows, not negative; rows of weight 0 are left out.
    n_iterations : int
        Most iterations, at least 1; of a :class:`RotationProgram` rotations, in which
        every parameter meets all rows.
    pipeline_depth : int, "auto" or None, default=None
        Iterations under way at a time, at least 1. Iteration `t` reads the model with
        the changes of the iterations up to ``t - pipeline_depth``. "auto" is 1 where
        all ranks share a process, and 3 elsewhere; where ranks have parameters of their
        own it is their number, but at least 3. A number gives the same model on any
        cluster. None leaves it to the schedules that the program keeps as attributes,
        and is "auto" where there are none. Rotations have no pipeline.
    n_schedulers : int or None, default=None
        Ranks that schedule, at least 1, each a part of the parameters of its own. None
        leaves it to the schedules, and is 1 where there are none. The schedule of a
        rotation is known to all ranks.
    report_every : int or None, default=None
        Iterations of a round, at least 1; None stands for 100, or for 1 rotation. At
        the end of a round the pipeline runs empty, the program reports, and the model
        is kept.
    random_state : int, RandomState instance or None, default=None
        Seed of the schedules.
    n_ranks : int, default=None
        Number of ranks. None means one per worker thread, and one without a client.

    Returns
    -------
    result : ProgramResult

    Raises
    ------
    TypeError
        If `program` is no program.
    ValueError
        For a number that cannot be, for data that cannot be used, and for what the
        program must not do.
    FitFailedError
        If a worker is lost for good, or a wait takes longer than configured.

    Examples
    --------
    Non-negative least squares, one coordinate at a time for each rank's rows:

    >>> import numpy as np
    >>> from dask_ma.schmp import Program, run, schedules
    >>> class NonNegative(Program):
    ...     def __init__(self):
    ...         self._schedule = schedules.Cyclic(n_candidates=1)
    ...     def prepare(self, shard, group):
    ...         return [(block.X, block.y) for block in shard.blocks]
    ...     def initial_model(self, local, group):
    ...         return np.zeros(3)
    ...     def schedule(self, model, request):
    ...         return self._schedule(model, request)
    ...     def update(self, job, local, model):
    ...         return sum(
    ...             np.array([X[:, job].T @ (y - X @ model), (X[:, job] ** 2).sum(0)])
    ...             for X, y in local
    ...         )
    ...     def aggregate(self, results, jobs, model):
    ...         products, squares = sum(results)
    ...         return np.maximum(products / squares, -model[jobs])
    >>> X = np.array([[1.0, 0, 1], [0, 2, 1], [1, 1, 0], [0, 0, 1]])
    >>> y = X @ [1.0, 2, 0] - [0, 0, 0, 0.5]
    >>> result = run(NonNegative(), X, y, n_iterations=60, pipeline_depth=1)
    >>> result.model.round(3)
    array([1., 2., 0.])
    """
    _check_program(program)
    _check_pipeline(program, pipeline_depth, n_schedulers)
    if pipeline_depth is None:
        pipeline_depth = _from_schedules(program, "pipeline_depth")
    if n_schedulers is None:
        n_schedulers = _from_schedules(program, "n_schedulers")
    if report_every is None:
        report_every = _default_rounds(program)
    check_counts(
        n_iterations=n_iterations,
        pipeline_depth=1 if pipeline_depth == "auto" else pipeline_depth,
        n_schedulers=n_schedulers,
        report_every=report_every,
        n_ranks=1 if n_ranks is None else n_ranks,
    )
    params = RunParams(
        cloudpickle.dumps(program),
        n_iterations,
        pipeline_depth,
        n_schedulers,
        report_every,
        y is not None,
    )
    result: ProgramResult = run_program_job(
        run_program,
        params,
        (X, y, sample_weight),
        identity=Identity(
            type(program).__name__,
            describe_program(
                program,
                pipeline_depth=pipeline_depth,
                n_schedulers=n_schedulers,
                report_every=report_every,
            ),
            {"n_iterations": int(n_iterations)},
            prolongs="n_iterations",
            step=int(report_every),  # the pipeline runs empty at the end of a round
        ),
        n_ranks=n_ranks,
        random_state=random_state,
        join=join_results if isinstance(program, RotationProgram) else None,
    )
    return result


def join_results(results: list[ProgramResult], params: Any = None) -> ProgramResult:
    """The result of a rotation program, whose model no rank has as a whole.

    Parameters
    ----------
    results : list of ProgramResult
        Of all ranks, whose models are :class:`ModelPart`.
    params : object, default=None
        Not used.
    """
    return results[0]._replace(model=join_parts([each.model for each in results]))


def run_program(
    context: RankContext, arguments: Any, params: RunParams
) -> ProgramResult:
    """Agent: rounds of iterations, each with its report.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : RunParams
        Parameters of the run.

    Returns
    -------
    result : ProgramResult
        The same on every rank, but for the times in the history and the timeline, which
        rank 0 has, and the model of a rotation program, of which each rank has a part.
    """
    program = cloudpickle.loads(params.program)
    state = context.restore_state(whole=isinstance(program, RotationProgram))
    rounds = Rounds(context, program, arguments, params)
    ended = fit_rounds(context, rounds, state)
    engine = rounds.engine
    model = engine.part() if isinstance(engine, RotationEngine) else engine.collect()
    return ProgramResult(model, context.history, ended.stop, context.timeline())


class Rounds(Method):
    """Iterations of a user's program, so many to a round."""

    engine: Engine
    _counts: Counts

    def __init__(
        self, context: RankContext, program: Any, arguments: Any, params: RunParams
    ) -> None:
        super().__init__(context)
        self._program = program
        self._arguments = arguments
        self._params = params
        self._first_record = 0  # of the rows that there are now

    @property
    def is_complete(self) -> bool:
        return self.engine.iteration >= self._params.n_iterations

    def begin(self) -> None:
        self._make_engine(None)

    def load_state_dict(self, state: State) -> None:
        self._make_engine(state)
        self._take_own(state)
        self._first_record = int(state.shared["first_record"])
        if state.shared["n_rows"] != self._n_rows:  # some have been lost
            self._first_record = len(self.context.history)
            self.engine.lose_rows()

    def _take_own(self, state: State) -> None:
        """Take over what is no part of the engine's state; a collective call."""

    def shared_state(self) -> dict[str, Any]:
        """The part of the state that all ranks have."""
        rows = {"n_rows": self._n_rows, "first_record": self._first_record}
        return {**self.engine.state_dict(), **rows}

    def state_dict(self) -> Snapshot | None:
        own = self.engine.own_state_dict()
        return Snapshot(self.shared_state(), own, whole=own is not None)

    def round(self) -> Work:
        engine, params = self.engine, self._params
        left = params.n_iterations - engine.iteration
        self._counts = engine.run(min(params.report_every, left))
        self._measured = engine.measure()
        return Work(self._counts.n_rows, {"iteration": engine.iteration})

    def measure(self) -> list[np.ndarray]:
        return [self._measured, np.array([self._counts.n_touched], dtype=np.float64)]

    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        record["n_updates"] = self._counts.n_updates
        record["n_touched"] = int(sums[1][0])
        report = self.engine.report(sums[0])
        taken = sorted(set(report) & set(record))
        if taken:
            raise ValueError(
                f"report of {type(self.engine.program).__name__} returned "
                f"{taken[0]!r}, which the history has already; choose another name"
            )
        record.update(report)

    def is_done(self, record: Record) -> bool:
        """Whether the program ends the run; rank 0 asks it, as times differ."""
        over = False
        if self.context.group.rank == 0:
            records = self.context.history[self._first_record :]
            over = bool(self.engine.program.has_converged(records))
        return bool(broadcast(self.context.group, over))

    def model(self) -> Model:
        model = self.engine.collect()
        return model if isinstance(model, dict) else {"model": model}

    def _make_engine(self, state: State | None) -> None:
        """Let the program see the rows; a collective call."""
        params, program = self._params, self._program
        shard = build_shard(
            self._arguments,
            dtype=params.row_dtypes,
            require_labels=params.has_targets,
        )
        self._n_rows = int(allreduce(self.context.group, np.array(shard.n_rows)))
        if isinstance(program, RotationProgram):
            self.engine = RotationEngine(
                self.context, program, shard, log=self.log, state=state
            )
            return
        self.engine = DynamicEngine(
            self.context,
            program,
            shard,
            pipeline_depth=params.pipeline_depth,
            n_schedulers=params.n_schedulers,
            log=self.log,
            state=None if state is None else state.shared,
        )


def _check_program(program: Any) -> None:
    """Refuse what is no program."""
    if not isinstance(program, Program | RotationProgram):
        raise TypeError(
            "program must be an object of a subclass of dask_ma.schmp.Program or "
            f"dask_ma.schmp.RotationProgram, got {program!r}"
        )


def _check_pipeline(program: Any, pipeline_depth: Any, n_schedulers: Any) -> None:
    """Refuse what says nothing to a program whose schedule is known before."""
    if not isinstance(program, RotationProgram):
        return
    given = {"pipeline_depth": pipeline_depth, "n_schedulers": n_schedulers}
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name}={value!r} has no effect on a RotationProgram, which has no "
                "pipeline and no scheduler; leave it out"
            )


def _default_rounds(program: Any) -> int:
    """Iterations of a round."""
    return next(n for kind, n in _REPORT_EVERY.items() if isinstance(program, kind))


def _from_schedules(program: Any, name: str) -> Any:
    """An attribute of the schedules that a program keeps, all of which must agree."""
    kept = [value for value in vars(program).values() if isinstance(value, Schedule)]
    found = {getattr(schedule, name) for schedule in kept}
    if not found:
        return getattr(Schedule, name)
    if len(found) > 1:
        shown = ", ".join(sorted(map(repr, found)))
        raise ValueError(
            f"the schedules of {type(program).__name__} differ in {name}: {shown}; "
            f"give {name} to run"
        )
    return found.pop()
