"""Context of one rank: group, seed, history, states, notes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any

import numpy as np

from dask_ma.comm import TIMELINE_DTYPE, Group, broadcast, gather_timeline
from dask_ma.engine.recovery._identity import FitInfo
from dask_ma.engine.recovery._states import ReplicaOf, State, StateStore

Record = dict[str, Any]
Model = dict[str, Any]
#: Called with a record and a function that returns the model at that point; True asks
#: the fit to stop.
Listener = Callable[[Record, Callable[[], Model]], bool]
#: Called with each record, whether or not somebody listens.
Logger = Callable[[Record], None]


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
    log : callable, default=None
        Where rank 0 logs its records in any case.
    fit_info : FitInfo, default=None
        The fit that this run belongs to; None for one of its own.
    run_id : str, default=None
        Name of the run; None without a cluster.
    arguments : object, default=None
        Data of the rank's shard, which tell a checkpoint of other data.
    n_threads : int, default=1
        Threads that the rank may compute with where it computes with several.
    is_timed : bool, default=True
        Whether the timeline is asked for; the same on all ranks.

    Attributes
    ----------
    group : Group
        The rank among the others.
    seed : SeedSequence
        This rank's own stream of seeds; it depends on the seed and on the number of
        the rank alone.
    history : list of dict
        The records so far.
    n_threads : int
        As given.
    notes : list of str
        What the user is to be told after the run; rank 0's are.
    """

    def __init__(
        self,
        group: Group,
        seed: int,
        *,
        listening: bool = False,
        listener: Listener | None = None,
        log: Logger | None = None,
        fit_info: FitInfo | None = None,
        run_id: str | None = None,
        arguments: Any = None,
        n_threads: int = 1,
        is_timed: bool = True,
    ) -> None:
        if fit_info is None:
            fit_info = FitInfo(name="", fit_id="")
        self.group = group
        self.set_seed(seed, group.rank)
        self.n_threads = n_threads
        self._is_timed = is_timed
        self.history: list[Record] = []
        self.notes: list[str] = []
        self._states = StateStore(self, fit_info, run_id, arguments)
        self._n_restarts = fit_info.attempt
        self._listening = listening
        self._listener = listener
        self._log = log
        self._start = perf_counter()

    @property
    def is_followed(self) -> bool:
        """Whether somebody follows the run; the same on all ranks."""
        return self._listening

    def elapsed(self) -> float:
        """Seconds since this rank started."""
        return perf_counter() - self._start

    def set_elapsed(self, seconds: float) -> None:
        """Let the clock of this rank show `seconds` now."""
        self._start = perf_counter() - seconds

    def set_seed(self, seed: int, rank: int) -> None:
        """Draw the random numbers of a shard from a seed."""
        self.seed: np.random.SeedSequence
        self.seed = np.random.SeedSequence(seed, spawn_key=(rank,))

    def span(self, kind: str) -> AbstractContextManager[None]:
        """Context manager that notes its body in the timeline.

        Parameters
        ----------
        kind : {"compute", "evaluate", "aggregate"}
            What goes on in it; sending and waiting note themselves, and are taken out.
        """
        return self.group.trace.span(kind)

    def timeline(self) -> np.ndarray | None:
        """What all ranks have done when, in the time of :meth:`elapsed`; collective.

        Returns
        -------
        timeline : ndarray or None
            As :func:`~dask_ma.comm.gather_timeline` gives it, without a span where it
            is not asked for; None but on rank 0.
        """
        if not self._is_timed:
            return None if self.group.rank else np.empty(0, TIMELINE_DTYPE)
        origin = self.group.trace.to_time_of_day(self._start)
        return gather_timeline(self.group, origin=origin)

    @property
    def series(self) -> str | None:
        """Where the fit is saved; None if it is not."""
        return self._states.place

    @property
    def keeps_states(self) -> bool:
        """Whether a state that is saved may be asked for; the same on all ranks."""
        return self._states.is_of_use

    @property
    def is_checkpointed(self) -> bool:
        """Whether states are saved in files; the same on all ranks."""
        return self._states.is_saved

    def blaming_checkpoint(self) -> AbstractContextManager[None]:
        """Context manager for the agent: errors that a checkpoint leads to say so."""
        return self._states.blaming()

    def note(self, message: str) -> None:
        """Queue a warning for the user, given on the client after the run."""
        self.notes.append(message)

    def restore_state(
        self, replica_of: ReplicaOf | None = None, *, whole: bool = False
    ) -> State | None:
        """State that this fit goes on from; a collective call before the first round.

        A fit goes on after the loss of a worker, on more workers, or from a checkpoint.

        Parameters
        ----------
        replica_of : callable, default=None
            ``replica_of(rank, shared)`` names the rank that gives its own state to a
            rank that has lost its own. None: such a rank gets none.
        whole : bool, default=False
            Whether the parts of all ranks make up one model, so that a state is of use
            only with all of them; as it was saved. `replica_of` is not asked then: a
            part that was lost comes from the neighbour that has a copy.

        Returns
        -------
        state : State or None
            None at a fresh start. The history and the clock have been set.
        """
        return self._states.restore_state(replica_of, whole=whole)

    def save_state(
        self,
        n_rounds: int,
        shared: dict[str, Any],
        own: dict[str, Any] | None = None,
        *,
        whole: bool = False,
        settled: bool = True,
        in_memory: bool = True,
        rest: Callable[[], dict[str, Any]] | None = None,
        done: bool = False,
        leave: Callable[[], None] | None = None,
    ) -> None:
        """Keep the state after a round for :meth:`restore`; a collective call.

        Parameters
        ----------
        n_rounds : int
            Rounds made.
        shared : dict
            Arrays, and values that JSON knows, which are the same on all ranks. They
            must not be changed afterwards.
        own : dict, default=None
            The same for what only this rank has.
        whole : bool, default=False
            Whether the parts of all ranks make up one model. Then each rank gives its
            right neighbour a copy of `own`, but after the last round, and a checkpoint
            has a file for each rank, which is written while the fit goes on.
        settled : bool, default=True
            Whether a checkpoint may be written after this round.
        in_memory : bool, default=True
            Whether ranks keep the state, too. Otherwise a fit that loses a worker goes
            on from what was kept before, from its last checkpoint, or begins anew.
        rest : callable, default=None
            Without `in_memory`: called on all ranks if they end here to start again on
            other workers, and gives what `shared` lacks, so that the state is kept
            after all. None keeps nothing even then.
        done : bool, default=False
            Whether this was the last round.
        leave : callable, default=None
            Called on all ranks, none of which has left by then, if they end here to
            start again on other workers: comes to an end with what a second thread of
            the rank still does for others.
        """
        self._states.save_state(
            n_rounds,
            shared,
            own or {},
            whole=whole,
            settled=settled,
            in_memory=in_memory,
            rest=rest,
            done=done,
            leave=leave,
        )

    def add_record(self, record: Record) -> None:
        """Add a record to the history; nobody is told of it.

        Parameters
        ----------
        record : dict
            Names and plain numbers.
        """
        record["restarts"] = self._n_restarts
        self.history.append(record)

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
        self.add_record(record)
        if self._log is not None:
            self._log(record)
        if self._listener is not None:
            stop = self._listener(record, lambda: model)
        if self._listening:
            stop = broadcast(self.group, stop)
        return stop


def tell(notes: Sequence[str]) -> None:
    """Warn the user of what rank 0 has noted."""
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=2)
