"""Copies of states in the memory of the workers, for fits that have to go on."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

_N_FITS = 16  # fits whose client may have gone without a word


class StateCopy(NamedTuple):
    """State of a fit after a round, as one rank has it.

    Attributes
    ----------
    round : int
        Number of the round.
    n_ranks : int
        Number of ranks then; 0 if their rows have been shared out anew since.
    rows : list of [int, int] or None
        Which rows the rank had.
    shared : dict
        What is the same on all ranks.
    own : dict or None
        What only this rank has; None if that is not known.
    history : list of dict
        Records of the fit, to which more may be added.
    n_records : int
        How many of them there were after the round.
    elapsed : float
        Seconds that the fit had taken.
    series : object
        Where the fit is saved; None if it is not.
    attempt : int
        Launch of the fit in which it was kept.
    is_whole : bool
        Whether the parts of all ranks make up one model.
    replica : dict or None
        Then, what the left neighbour has of its own.
    before : StateCopy or None
        Then, the state before.
    """

    round: int
    n_ranks: int
    rows: list[list[int]] | None
    shared: dict[str, Any]
    own: dict[str, Any] | None
    history: list[dict[str, Any]]
    n_records: int
    elapsed: float
    series: Any = None
    attempt: int = 0
    is_whole: bool = False
    replica: dict[str, Any] | None = None
    before: StateCopy | None = None


class PartKey(NamedTuple):
    """Names a rank's part of a model.

    Attributes
    ----------
    round, attempt : int
        When it was kept.
    n_ranks, rank : int
        How many ranks there were, and whose part it is.
    """

    round: int
    attempt: int
    n_ranks: int
    rank: int


class StateMemory:
    """The last state of each rank in this process, by fit and rank. Thread-safe.

    An entry goes with the result of its rank, or when the client ends the fit.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fits: OrderedDict[str, dict[int, StateCopy]] = OrderedDict()

    def put(self, fit_id: str, rank: int, state: StateCopy) -> None:
        """Keep a state in place of the rank's last one."""
        with self._lock:
            states = self._fits.setdefault(fit_id, {})
            if rank in states and states[rank].attempt > state.attempt:
                return  # a rank of an earlier launch is late
            if state.is_whole and rank in states:
                state = state._replace(before=states[rank]._replace(before=None))
            states[rank] = state
            self._fits.move_to_end(fit_id)
            while len(self._fits) > _N_FITS:
                self._fits.popitem(last=False)

    def newest(self, fit_id: str, rank: int) -> tuple[int, StateCopy] | None:
        """Rank and state of a fit: the rank's own if it is here, else the newest."""
        with self._lock:
            states = self._fits.get(fit_id, {})
            if not states:
                return None
            if rank not in states:
                rank = max(states, key=lambda s: states[s].round)
            return rank, states[rank]

    def parts(self, fit_id: str) -> dict[PartKey, tuple[StateCopy, dict[str, Any]]]:
        """Parts of models that are here, and the states that they are in."""
        found: dict[PartKey, tuple[StateCopy, dict[str, Any]]] = {}
        with self._lock:
            kept = list(self._fits.get(fit_id, {}).items())
        for rank, newest in kept:
            for state in filter(None, (newest, newest.before)):
                key = PartKey(state.round, state.attempt, state.n_ranks, rank)
                if state.is_whole and state.own is not None:
                    found[key] = state, state.own
                if state.replica is not None:
                    left = key._replace(rank=(rank - 1) % state.n_ranks)
                    found.setdefault(left, (state, state.replica))
        return found

    def newest_round(self, fit_id: str) -> int:
        """Last round of a fit, 0 if nothing is kept of it."""
        with self._lock:
            states = self._fits.get(fit_id, {}).values()
            return max((state.round for state in states), default=0)

    def get(self, fit_id: str, rank: int) -> StateCopy | None:
        """The rank's own last state."""
        with self._lock:
            return self._fits.get(fit_id, {}).get(rank)

    def drop(self, fit_id: str, rank: int, state: StateCopy) -> None:
        """Drop a state unless another has taken its place."""
        with self._lock:
            states = self._fits.get(fit_id, {})
            if states.get(rank) is state:
                del states[rank]
            if not states:
                self._fits.pop(fit_id, None)

    def forget_own(self, fit_id: str) -> None:
        """Drop what belongs to the rows of single ranks: they are shared out anew."""
        with self._lock:
            states = self._fits.get(fit_id, {})
            for rank, state in states.items():
                if not state.is_whole:  # of those, no row says whose a part is
                    states[rank] = state._replace(n_ranks=0, own={})

    def forget(self, fit_id: str, up_to: int | None = None) -> None:
        """Drop all states of a fit, or those of its launches up to one."""
        with self._lock:
            states = self._fits.pop(fit_id, {})
            if up_to is None:
                return
            later = {r: state for r, state in states.items() if state.attempt > up_to}
            if later:
                self._fits[fit_id] = later

    def fits(self) -> list[str]:
        """Fits of which something is kept in this process."""
        with self._lock:
            return list(self._fits)


state_memory = StateMemory()


def forget_fit(fit_id: str) -> None:
    """Drop what this process keeps of a fit; meant for ``client.run``."""
    state_memory.forget(fit_id)


def forget_rows(fit_id: str) -> int:
    """Drop what belongs to single ranks' rows; meant for ``client.run``.

    Returns
    -------
    number : int
        That of :func:`newest_round`.
    """
    state_memory.forget_own(fit_id)
    return newest_round(fit_id)


def newest_round(fit_id: str) -> int:
    """Last round of a fit that this process has kept; meant for ``client.run``.

    Returns
    -------
    number : int
        0 if it has kept none.
    """
    return state_memory.newest_round(fit_id)
