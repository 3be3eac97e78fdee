"""The states of a rank: kept round by round, and given back when a fit goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_ma.comm import allgather, allreduce, broadcast, gather, open_ranks
from dask_ma.engine._checkpoint import Saved, check_identity, load, save
from dask_ma.engine._kept import Kept, kept_states
from dask_ma.engine._ticket import Ticket
from dask_ma.exceptions import FitFailedError

if TYPE_CHECKING:
    from dask_ma.comm import Group
    from dask_ma.engine._context import RankContext

#: ``stand_in(rank, shared)``: the rank whose own state serves a rank that lost its own.
StandIn = Callable[[int, dict[str, Any]], int]


class RegroupError(FitFailedError):
    """The ranks have ended to start again on other workers."""


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
    """

    round: int
    shared: dict[str, Any]
    own: dict[str, Any] | None


class _Found(NamedTuple):
    """What a rank has found in the memory of its process: of which round, and whose."""

    round: int
    is_own: bool


class StateKeeper:
    """Keeps the states of one rank.

    Parameters
    ----------
    context : RankContext
        The rank.
    ticket : Ticket
        The fit.
    run_id : str or None
        Name of the launch; None without a cluster.
    """

    def __init__(
        self, context: RankContext, ticket: Ticket, run_id: str | None
    ) -> None:
        self._context = context
        self._group = context.group
        self._ticket = ticket
        self._run_id = run_id
        self._rank = context.group.rank
        self._saved_round = 0
        self._may_regroup: bool | None = None  # not agreed yet

    # Going on ----------------------------------------------------------------------

    def restore(self, stand_in: StandIn | None) -> State | None:
        """State to go on from, None at a fresh start; a collective call."""
        if self._ticket.attempt:
            self._context.set_elapsed(self._ticket.elapsed)
            if (state := self._from_memory(stand_in)) is not None:
                return state
        settings = self._ticket.checkpoint
        if settings is None or not settings.resume:
            return None
        return self._from_file()

    def _from_memory(self, stand_in: StandIn | None) -> State | None:
        """The newest state that some process has kept."""
        entry = kept_states.newest(self._ticket.fit_id, self._rank)
        rank, kept = (-1, None) if entry is None else entry
        mine = _Found(-1, is_own=False)
        if kept is not None:
            is_own = rank == self._rank and kept.n_ranks == self._group.size
            mine = _Found(kept.round, is_own)
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
        if stand_in is not None and any(has_own):
            own = self._exchange_own(own, has_own, shared, stand_in)
        self._take_over(history, elapsed)
        return State(newest, shared, own)

    def _exchange_own(
        self,
        own: dict[str, Any] | None,
        has_own: list[bool],
        shared: dict[str, Any],
        stand_in: StandIn,
    ) -> dict[str, Any] | None:
        """This rank's own state, or that of the rank that stands in for it.

        Own states fit the number of ranks that there are, so `stand_in` knows them all.
        """
        for rank in range(self._group.size):
            source = stand_in(rank, shared)
            if has_own[rank] or not has_own[source]:
                continue
            tag = ("stand-in", rank)
            if self._rank == source:
                self._group.send(own, rank, tag)
            elif self._rank == rank:
                own = self._group.recv(source, tag)
        return own

    def _from_file(self) -> State | None:
        """The newest checkpoint; rank 0 reads it."""
        settings, ticket, group = self._ticket.checkpoint, self._ticket, self._group
        saved = None
        if group.rank == 0 and settings is not None:
            saved = load(settings)
            if saved is not None:
                check_identity(saved, ticket.name, ticket.parameters)
        found = broadcast(group, None if saved is None else saved._asdict())
        if found is None:
            return None
        saved = Saved(**found)
        own = None
        if len(saved.own) == group.size:
            own = saved.own[self._rank]
        else:
            self._context.note(
                f"the checkpoint in {settings.path if settings else ''} was written by "
                f"{len(saved.own)} ranks and goes on with {group.size}: the fit will "
                "not give the coefficients of an uninterrupted one"
            )
        self._saved_round = saved.round
        self._take_over(saved.history, saved.elapsed)
        return State(saved.round, saved.shared, own)

    def _take_over(self, history: list[dict[str, Any]], elapsed: float) -> None:
        """Go on with the history and the clock of the fit."""
        self._context.history[:] = history
        self._context.set_elapsed(max(elapsed, self._ticket.elapsed))

    # Keeping -----------------------------------------------------------------------

    def keep(
        self,
        n_rounds: int,
        shared: dict[str, Any],
        own: dict[str, Any],
        *,
        settled: bool,
        done: bool,
    ) -> None:
        """Keep the state after a round; a collective call."""
        ticket = self._ticket
        if ticket.keeps:
            history = self._context.history
            kept = Kept(
                round=n_rounds,
                n_ranks=self._group.size,
                shared=shared,
                own=own,
                history=history,
                n_records=len(history),
                elapsed=self._context.elapsed(),
            )
            kept_states.put(ticket.fit_id, self._rank, kept)
        regroup = not done and self._agree_to_regroup()
        settings = ticket.checkpoint
        if settings is not None and n_rounds > self._saved_round:
            due = n_rounds - self._saved_round >= settings.every
            # Whoever leaves takes along what it has in memory.
            if done or (settled and (due or regroup)):
                self._save(n_rounds, shared, own)
        if regroup:
            raise RegroupError("the ranks start again on other workers")

    def _agree_to_regroup(self) -> bool:
        """Whether the ranks end here to start again; a collective call."""
        group, ticket = self._group, self._ticket
        if not ticket.keeps:
            return False
        if self._may_regroup is None:
            self._may_regroup = _any(group, ticket.elastic or group.may_leave)
            if self._may_regroup:
                group.heed_leaving()
        if not self._may_regroup:
            return False
        is_asked = self._rank == 0 and self._run_id in _regroup_wanted
        return _any(group, is_asked or group.is_leaving)

    def _save(self, n_rounds: int, shared: dict[str, Any], own: dict[str, Any]) -> None:
        """Collect what the ranks have of their own; rank 0 writes it all."""
        self._saved_round = n_rounds
        owns = gather(self._group, own)
        if owns is None or self._ticket.checkpoint is None:
            return
        saved = Saved(
            name=self._ticket.name,
            parameters=self._ticket.parameters,
            round=n_rounds,
            elapsed=self._context.elapsed(),
            shared=shared,
            own=owns,
            history=self._context.history,
        )
        save(self._ticket.checkpoint, saved)


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
