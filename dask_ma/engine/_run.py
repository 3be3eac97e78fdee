"""One run, and the part of it that happens on a rank."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

from dask.sizeof import sizeof
from distributed import Status, Worker, get_worker, secede

from dask_ma import _config
from dask_ma.comm import (
    KEY_PREFIX,
    DaskGroup,
    broadcast,
    is_aborted,
    payload_nbytes,
)
from dask_ma.engine._client import mark_seceded
from dask_ma.engine._context import RankContext
from dask_ma.engine._events import EventLink, RecordLog
from dask_ma.engine._process import kept_memory, limited_blas
from dask_ma.engine.recovery._identity import FitInfo
from dask_ma.engine.recovery._memory import state_memory
from dask_ma.engine.recovery._states import (
    RegroupError,
    StoppedError,
    forget_request,
    forget_stop,
)
from dask_ma.exceptions import GroupClosedError, PeerLostError

_LARGE = 2**22  # bytes of a result's arrays that take longer than to connect

#: ``agent(context, shard, params) -> result``, the same function on every rank.
Agent = Callable[[RankContext, Any, Any], Any]


@dataclass(frozen=True)
class Run:
    """One launch of an agent on all ranks.

    Parameters
    ----------
    name : str
        Name of the estimator or function, for the dashboard and for errors.
    run_id : str
        Identity of this launch; a second launch of the same fit has another.
    addresses : tuple of str
        Address of the worker of each rank.
    agent : callable
        What each rank does.
    params : object
        What the agent gets besides its shard.
    shares_params : bool
        Whether only rank 0 is sent `params`, and passes them on.
    shares_addresses : bool
        Whether only rank 0 is sent `addresses`, and passes them on.
    seed : int
        Seed of the ranks' random numbers.
    blas_threads : int
        Threads that BLAS may use in a process.
    listening : bool
        Whether records are sent to the client while the run lasts.
    collect : {"root", "all"}
        Whose results are wanted.
    fit_info : FitInfo or None
        The fit that this launch belongs to.
    is_timed : bool
        Whether rank 0 is sent what all ranks have done when.
    """

    name: str
    run_id: str
    addresses: tuple[str, ...]
    agent: Agent
    params: Any
    shares_params: bool
    shares_addresses: bool
    seed: int
    blas_threads: int
    listening: bool
    collect: str
    fit_info: FitInfo | None = None
    is_timed: bool = True

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.addresses)

    def of_rank(self, rank: int) -> Run:
        """What the task of a rank is sent of this run."""
        changes: dict[str, Any] = {}
        if self.fit_info is not None:
            changes["fit_info"] = self.fit_info.of_rank()
        if self.shares_params and rank:
            changes["params"] = None
        if self.shares_addresses and rank:
            changes["addresses"] = ()
        return replace(self, **changes) if changes else self

    def key(self, rank: int) -> str:
        """Key of the task of a rank; its prefix is what the dashboard shows."""
        return f"{KEY_PREFIX}{self.name}-{self.run_id}-{rank}"

    def describe(self, rank: int) -> str:
        """A rank and where it runs, for messages."""
        return f"rank {rank} of {self.size} (worker {self.addresses[rank]})"


class Outcome:
    """Result of a rank; what the rank has kept of its fit goes when this goes.

    Parameters
    ----------
    result : object
        What the agent returned, if it is wanted.
    notes : list of str
        What the user is to be told.
    regroup : bool
        Whether the rank has ended to start again on more workers.
    stopped : bool
        Whether the rank has ended because the process of the client is to end.
    series : str or None
        Where the fit is saved; None if it is not.
    """

    def __init__(
        self,
        result: Any = None,
        notes: Sequence[str] = (),
        *,
        regroup: bool = False,
        stopped: bool = False,
        series: str | None = None,
    ) -> None:
        self.result = result
        self.notes = list(notes)
        self.regroup = regroup
        self.stopped = stopped
        self.series = series

    def __sizeof__(self) -> int:
        """Bytes of the result, which Dask takes into account."""
        return object.__sizeof__(self) + int(sizeof(self.result))

    def bind(self, fit_id: str, rank: int, attempt: int) -> None:
        """Have the state that a rank has kept dropped together with this object."""
        kept = state_memory.get(fit_id, rank)
        if kept is not None and kept.attempt <= attempt:  # else this rank is late
            weakref.finalize(self, state_memory.drop, fit_id, rank, kept)


class LargeOutcome(Outcome):
    """One that is worth a connection of the client to the worker that has it.

    The client is told the type of an outcome, and not its size.
    """


def run_rank(run: Run, rank: int, shard: Any) -> Outcome:
    """Task of one rank: join the group, run the agent, leave the group."""
    worker = get_worker()
    # Out of the thread pool, so that ranks of several fits, and tasks that wait for a
    # fit, never keep each other from starting.
    secede()
    mark_seceded()
    try:
        outcome = _run_agent(run, rank, shard, worker)
    except BaseException as error:
        if run.fit_info is not None and not _is_wanted(worker):
            # The client may have cancelled this rank, which is late, and gone on.
            state_memory.forget(run.fit_info.fit_id, run.fit_info.attempt)
        if (end := _end_of(run, error)) is None:
            raise
        return end
    if run.fit_info is not None and run.fit_info.keeps:
        outcome.bind(run.fit_info.fit_id, rank, run.fit_info.attempt)
    return outcome


def _end_of(run: Run, error: BaseException) -> Outcome | None:
    """What a rank returns whose agent was ended by `error`, None for a failure."""
    if isinstance(error, RegroupError):
        return Outcome(regroup=True)
    if isinstance(error, StoppedError):
        return Outcome(stopped=True)
    if isinstance(error, GroupClosedError) and is_aborted(run.run_id):
        return Outcome()  # the client, which ended the run, knows why
    return None


def _is_wanted(worker: Worker) -> bool:
    """Whether the scheduler still knows the task of this thread."""
    # It forgets the tasks of a client that has gone without a word, so that nobody will
    # ask for what the ranks have kept.
    if worker.status not in (Status.running, Status.paused):
        return True  # perhaps: what is kept here ends with the worker
    key = worker.get_current_task()

    async def ask() -> bool:
        found = await worker.scheduler.get_task_status(keys=[key])
        return found[key] is not None

    question, asked = ask(), None
    try:
        asked = asyncio.run_coroutine_threadsafe(question, worker.loop.asyncio_loop)
        return asked.result(_config.get_timeout("launch.abort-timeout"))
    except (Exception, asyncio.CancelledError):  # what the rank has to say matters more
        if asked is None:
            question.close()  # the loop is closed already
        else:
            asked.cancel()
        return True  # likewise: without a scheduler the worker ends, too


def _run_agent(run: Run, rank: int, shard: Any, worker: Worker) -> Outcome:
    """Run the agent with its group open."""
    with ExitStack() as stack:
        group = DaskGroup(
            run.run_id, rank, run.addresses, worker, hears=run.shares_addresses
        )
        stack.enter_context(group)
        if run.shares_addresses:
            group.tell_addresses()
        stack.callback(forget_request, run.run_id)
        stack.callback(forget_stop, run.run_id)
        stack.enter_context(limited_blas(run.blas_threads))
        stack.enter_context(kept_memory())
        listener = log = None
        if rank == 0:
            log = stack.enter_context(RecordLog(run.name, run.run_id, worker))
        if run.listening and rank == 0:
            check = group.raise_if_closed
            listener = stack.enter_context(EventLink(run.run_id, worker, check))
        context = RankContext(
            group,
            run.seed,
            listening=run.listening,
            listener=listener,
            log=log,
            fit_info=run.fit_info,
            run_id=run.run_id,
            arguments=shard,
            n_threads=max(1, worker.state.nthreads // group.n_beside),
            is_timed=run.is_timed,
        )
        with context.blaming_checkpoint():
            params = run.params
            if run.shares_params:
                params = broadcast(group, params)
            try:
                result = run.agent(context, shard, params)
            except (RegroupError, StoppedError):
                with suppress(PeerLostError):  # that has ended, as all do
                    group.flush()  # others may still wait for what made this rank end
                raise
        group.flush()
        if run.collect == "all" or rank == 0:
            kind = LargeOutcome if payload_nbytes(result) >= _LARGE else Outcome
            return kind(result, context.notes, series=context.series)
        return Outcome()
