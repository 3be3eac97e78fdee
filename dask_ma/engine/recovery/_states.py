"""The states of a rank: kept round by round, and given back when a fit goes on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_ma.comm import (
    allgather,
    allreduce,
    barrier,
    broadcast,
    gather,
    open_ranks,
)
from dask_ma.data import combine_digests, digest_shard, rows_of
from dask_ma.engine.recovery._checkpoint import Store, blaming
from dask_ma.engine.recovery._identity import FitInfo
from dask_ma.engine.recovery._manifest import Saved
from dask_ma.engine.recovery._memory import StateCopy, state_memory
from dask_ma.engine.recovery._saving import Progress, Saver
from dask_ma.engine.recovery._series import Choice, Series, choose, place_of
from dask_ma.engine.recovery._whole import (
    exchange_copies,
    find_whole,
    pieces_in_files,
)
from dask_ma.exceptions import FitFailedError, PeerLostError

if TYPE_CHECKING:
    from dask_ma.comm import Group

#: ``replica_of(rank, shared)``: the rank whose own state serves one that lost its own.
ReplicaOf = Callable[[int, dict[str, Any]], int]


#: Goes through what each rank has saved; a collective call.
Pieces = Callable[[Any], Iterator[dict[str, Any]]]


def _no_pieces(group: Any) -> Iterator[dict[str, Any]]:
    """Nothing: what the ranks have is not put together."""
    return iter(())


class RegroupError(FitFailedError):
    """The ranks have ended to start again on other workers."""


class NotStartedError(RegroupError):
    """Workers were paused, or have left, before their ranks had come to a round."""


class StoppedError(FitFailedError):
    """The ranks have saved what they have and ended, as they were asked to."""


class State(NamedTuple):
    """State that a fit goes on from.

    Attributes
    ----------
    round : int
        Number of the last round that it holds.
    shared : dict
        What is the same on all ranks.
    own : dict or None
        What only this rank has; None if it was lost or the number of ranks is another.
    pieces : callable
        ``pieces(group)`` goes through what each rank had, on all ranks together; where
        the parts of all ranks make up one model.
    """

    round: int
    shared: dict[str, Any]
    own: dict[str, Any] | None
    pieces: Pieces = _no_pieces


class _Found(NamedTuple):
    """What a rank has found in the memory of its process: of which round, and whose."""

    round: int
    is_own: bool


class StateStore:
    """Keeps the states of one rank.

    Parameters
    ----------
    context : Progress
        The rank, and how far it is.
    fit_info : FitInfo
        The fit.
    run_id : str or None
        Name of the launch; None without a cluster.
    arguments : object
        Data of the rank's shard.
    """

    def __init__(
        self, context: Progress, fit_info: FitInfo, run_id: str | None, arguments: Any
    ) -> None:
        # No cycle, in which what a rank has would outlive it.
        self._context: Progress = weakref.proxy(context)
        self._group = context.group
        self._fit_info = fit_info
        self._run_id = run_id
        self._rank = context.group.rank
        self._arguments = arguments
        # A function of the user gets other arguments.
        has_rows = isinstance(arguments, dict) and "cuts" in arguments
        self._rows = rows_of(arguments) if has_rows else None
        self._series: Series | None = None
        self._source: str | None = None  # checkpoint that has not been left behind yet
        self._saved_round = 0
        self._saver = Saver(context, fit_info)
        self._may_regroup: bool | None = None  # not agreed yet

    @property
    def place(self) -> str | None:
        """Where the fit is saved; None if it is not."""
        settings = self._fit_info.checkpoint
        if settings is None or self._series is None:
            return None
        return place_of(settings, self._series.name)

    @property
    def is_of_use(self) -> bool:
        """Whether states are kept in memory or in files."""
        return self._fit_info.keeps or self._fit_info.checkpoint is not None

    @property
    def is_saved(self) -> bool:
        """Whether states are kept in files."""
        return self._fit_info.checkpoint is not None

    def blaming(self) -> AbstractContextManager[None]:
        """Have errors that a checkpoint leads to say so."""
        return blaming(lambda: self._source)

    # Going on ----------------------------------------------------------------------

    def restore_state(
        self, replica_of: ReplicaOf | None, *, whole: bool
    ) -> State | None:
        """State to go on from, None at a fresh start; a collective call."""
        if self._fit_info.attempt:
            self._context.set_elapsed(self._fit_info.elapsed)
            state = (
                self._whole_from_memory() if whole else self._from_memory(replica_of)
            )
            if state is not None:
                self._recall_series()
                return state
        if self._fit_info.checkpoint is None:
            return None
        return self._from_file(whole=whole)

    def _whole_from_memory(self) -> State | None:
        """The newest model all parts of which some process has kept."""
        here = state_memory.parts(self._fit_info.fit_id)
        found, any_left = find_whole(self._group, here)
        if found is None:
            if any_left:
                self._context.note(
                    f"workers of the fit of {self._fit_info.name} were lost that had "
                    "the only copies of a part of the model; it "
                    + (
                        "begins anew, since there is no checkpoint "
                        "(dask-ma.checkpoint.path)"
                        if self._fit_info.checkpoint is None
                        else "goes on from the last checkpoint"
                    )
                )
            return None
        self._take_over(found.history, found.elapsed)
        if found.own is not None:  # otherwise the next loss would find gaps
            self._remember(found.round, found.shared, found.own, whole=True)
        return State(found.round, found.shared, found.own, found.pieces)

    def _from_memory(self, replica_of: ReplicaOf | None) -> State | None:
        """The newest state that some process has kept."""
        entry = state_memory.newest(self._fit_info.fit_id, self._rank)
        rank, kept = (-1, None) if entry is None else entry
        mine = _Found(-1, is_own=False)
        if kept is not None:
            is_own = rank == self._rank and kept.n_ranks == self._group.size
            mine = _Found(kept.round, is_own and kept.rows == self._rows)
        found = [_Found(*item) for item in allgather(self._group, tuple(mine))]
        newest = max(item.round for item in found)
        if newest < 0:
            return None
        root = [item.round for item in found].index(newest)
        given = None
        if kept is not None:
            given = kept.shared, kept.history[: kept.n_records], kept.elapsed
        shared, history, elapsed = broadcast(self._group, given, root)
        # What a rank kept of an earlier round does not go with the newest model.
        has_own = [item.is_own and item.round == newest for item in found]
        own = kept.own if kept is not None and has_own[self._rank] else None
        if replica_of is not None and any(has_own):
            own = self._exchange_own(own, has_own, shared, replica_of)
        self._take_over(history, elapsed)
        return State(newest, shared, own)

    def _exchange_own(
        self,
        own: dict[str, Any] | None,
        has_own: list[bool],
        shared: dict[str, Any],
        replica_of: ReplicaOf,
    ) -> dict[str, Any] | None:
        """This rank's own state, or that of the rank that stands in for it."""
        for rank in range(self._group.size):
            # Own states fit the number of ranks, so it knows them all.
            source = replica_of(rank, shared)
            if has_own[rank] or not has_own[source]:
                continue
            tag = ("stand-in", rank)
            if self._rank == source:
                self._group.send(own, rank, tag)
            elif self._rank == rank:
                own = self._group.recv(source, tag)
        return own

    def _recall_series(self) -> None:
        """Find out from those who know where the fit is saved; a collective call."""
        if self._fit_info.checkpoint is None:
            return
        entry = state_memory.newest(self._fit_info.fit_id, self._rank)
        known = allgather(self._group, None if entry is None else entry[1].series)
        self._series = next((series for series in known if series is not None), None)

    def _from_file(self, *, whole: bool) -> State | None:
        """The checkpoint to go on from, which rank 0 finds; a collective call."""
        settings, group = self._fit_info.checkpoint, self._group
        digests = gather(group, digest_shard(self._arguments))
        choice = None
        if digests is not None:
            choice = self._choose(combine_digests(digests))
        choice = broadcast(group, choice)
        if choice is None or settings is None:
            self._context.note(
                f"the fit of {self._fit_info.name} is not saved: its data cannot be "
                "told from others; what is wrong with them is in the log of "
                "dask_ma.data, at the level INFO"
            )
            return None
        self._series = choice.series
        if choice.note is not None:
            self._context.note(choice.note)
        saved = choice.saved
        if saved is None:
            return None
        own = None
        if saved.shares == allgather(group, self._rows):
            own = saved.own[self._rank]
        else:
            before, now = len(saved.own), group.size
            what = (
                f"{before} ranks and goes on with {now}"
                if before != now
                else f"{now} ranks with other shares of the rows"
            )
            self._context.note(
                f"the checkpoint in {settings.path} was written by {what}: the fit "
                "will not be the one that would have gone on without a stop"
            )
        self._source = choice.path
        self._saved_round = saved.round
        self._context.set_seed(saved.seed, self._rank)
        self._take_over(saved.history, saved.elapsed)
        if whole:
            return self._whole_from_file(saved, settings.path)
        self._remember(saved.round, saved.shared, own)
        return State(saved.round, saved.shared, own)

    def _whole_from_file(self, saved: Saved, path: str) -> State:
        """A model whose parts are in files of their own; a collective call."""
        pieces = partial(pieces_in_files, Store(path), saved.own)
        own = None
        if len(saved.own) == self._group.size:
            own = Store(path).load_part(saved.own[self._rank])
            self._remember(saved.round, saved.shared, own, whole=True)
        return State(saved.round, saved.shared, own, pieces)

    def _choose(self, data: dict[str, Any] | None) -> Choice | None:
        """What rank 0 finds; None where the rows cannot be used."""
        fit_info = self._fit_info
        if data is None or fit_info.identity is None or fit_info.checkpoint is None:
            return None
        return choose(
            fit_info.checkpoint,
            fit_info.identity,
            data,
            fit_info.session,
            fit_info.fit_id,
            fit_info.attempt,
        )

    def _take_over(self, history: list[dict[str, Any]], elapsed: float) -> None:
        """Go on with the history and the clock of the fit."""
        self._context.history[:] = history
        self._context.set_elapsed(max(elapsed, self._fit_info.elapsed))

    # Keeping -----------------------------------------------------------------------

    def save_state(
        self,
        n_rounds: int,
        shared: dict[str, Any],
        own: dict[str, Any],
        *,
        whole: bool,
        settled: bool,
        in_memory: bool,
        rest: Callable[[], dict[str, Any]] | None,
        done: bool,
        leave: Callable[[], None] | None,
    ) -> None:
        """Keep the state after a round; a collective call."""
        self._source = None
        if in_memory:
            self._remember(n_rounds, shared, own, whole=whole, is_last=done)
        regroup = not done and self._agree_to_regroup()
        if regroup and not in_memory and rest is not None:
            self._remember(n_rounds, {**shared, **rest()}, own, whole=whole)
        self._saver.finish_parts(at_once=False)
        if self._series is not None and n_rounds > self._saved_round:
            save = self._saver.begin_parts if whole else self._saver.save
            now = partial(save, self._series, self._rows, n_rounds, shared, own)
            if done:
                self._saved_round = n_rounds
                now(done=True)
            elif settled:
                # Whoever leaves takes along what it has in memory.
                self._save_if_due(now, n_rounds, leave, at_once=regroup)
        self._saver.finish_parts(at_once=done or regroup)
        if regroup:
            self._leave(leave)
            raise RegroupError("the ranks start again on other workers")

    def _agree_to_regroup(self) -> bool:
        """Whether the ranks end here to start again; a collective call."""
        group, fit_info = self._group, self._fit_info
        if not fit_info.keeps:
            return False
        if self._may_regroup is None:
            self._may_regroup = _any(group, fit_info.elastic or group.may_leave)
            group.agree_on_leaving(heeds=self._may_regroup)
        if not self._may_regroup:
            return False
        is_asked = self._rank == 0 and self._run_id in _regroup_wanted
        return _any(group, is_asked or group.is_leaving)

    def _leave(self, leave: Callable[[], None] | None) -> None:
        """Come to an end together with all ranks; a collective call."""
        if leave is not None:
            leave()
        # Others may have yet to send to a rank that is ahead, or wait for what a second
        # thread of it answers.
        self._group.flush()
        barrier(self._group)
        with suppress(PeerLostError):  # that had come here and has left with its worker
            self._group.flush()
        # The rows will be shared out anew, perhaps over as many ranks as before.
        state_memory.forget_own(self._fit_info.fit_id)

    def _remember(
        self,
        n_rounds: int,
        shared: dict[str, Any],
        own: dict[str, Any] | None,
        *,
        whole: bool = False,
        is_last: bool = False,
    ) -> None:
        """Keep a state in the memory of this process, and perhaps of a neighbour."""
        if not self._fit_info.keeps:
            return
        replica = None
        # The client is about to get the parts of the last round: who loses one before
        # goes on from the round before, which costs less than a copy in each fit.
        if whole and own is not None and not is_last:
            replica = exchange_copies(self._group, own, n_rounds)
        history = self._context.history
        kept = StateCopy(
            round=n_rounds,
            n_ranks=self._group.size,
            rows=self._rows,
            shared=shared,
            own=own,
            history=history,
            n_records=len(history),
            elapsed=self._context.elapsed(),
            series=self._series,
            attempt=self._fit_info.attempt,
            is_whole=whole,
            replica=replica,
        )
        state_memory.put(self._fit_info.fit_id, self._rank, kept)

    def _save_if_due(
        self,
        save: Callable[..., None],
        n_rounds: int,
        leave: Callable[[], None] | None,
        *,
        at_once: bool,
    ) -> None:
        """Save, or save and end, as rank 0 says; a collective call."""
        settings = self._fit_info.checkpoint
        is_due = is_wanted = False
        if self._group.rank == 0 and settings is not None:
            is_due = at_once or (
                n_rounds - self._saved_round >= settings.every
                and self._saver.seconds_since() >= settings.every_seconds
            )
            is_wanted = not _stop_wanted.isdisjoint(
                (self._run_id, self._fit_info.fit_id)
            )
        is_due, is_wanted = broadcast(self._group, (is_due, is_wanted))
        if is_due or is_wanted:
            self._saved_round = n_rounds
            save(done=False)
        if is_wanted:
            self._saver.finish_parts(at_once=True)
            self._leave(leave)
            raise StoppedError(f"the fit of {self._fit_info.name} was asked to end")


def _any(group: Group, flag: bool) -> bool:
    """Whether the flag of any rank is set; a collective call."""
    return bool(allreduce(group, np.array(flag, dtype=np.int8), "max"))


_regroup_wanted: set[str | None] = set()


def request_regroup(run_id: str) -> bool:
    """Ask a run to end after its round; meant for ``client.run`` on rank 0's worker.

    Returns
    -------
    asked : bool
        False if the run has not started there.
    """
    if not open_ranks(run_id):
        return False
    _regroup_wanted.add(run_id)
    return True


def forget_request(run_id: str) -> None:
    """Drop a request; rank 0 has ended."""
    _regroup_wanted.discard(run_id)


# Runs on workers, and fits of this process, whose ranks are to save and end.
_stop_wanted: set[str | None] = set()


def want_stop(name: str) -> None:
    """Have rank 0 of a run or fit in this process end it after the round."""
    _stop_wanted.add(name)


def request_stop(run_id: str) -> bool:
    """Ask a run to save and end; meant for ``client.run`` on rank 0's worker.

    Returns
    -------
    asked : bool
        False if the run has not started there.
    """
    if not open_ranks(run_id):
        return False
    want_stop(run_id)
    return True


def forget_stop(name: str) -> None:
    """Drop a request; the run or fit has ended."""
    _stop_wanted.discard(name)
