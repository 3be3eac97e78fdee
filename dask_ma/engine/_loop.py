"""The loop of a fit: rounds, their records, states to go on from, and the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dask_ma.comm import allreduce
from dask_ma.engine._context import Model, RankContext, Record
from dask_ma.engine.recovery._states import State

#: Sums arrays over ranks; a collective call.
Adder = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
_COUNTERS = (
    "n_samples",
    "bytes_sent",
    "bytes_shared",
    "messages_sent",
    "seconds_computing",
    "seconds_waiting",
)


class RoundLog:
    """Records of rounds, kept until the counters of all ranks have been added up.

    Parameters
    ----------
    context : RankContext
        This rank.

    Attributes
    ----------
    counters : list of ndarray of float64
        For each record that is kept, what this rank has counted in its round; to be
        summed over ranks.
    """

    def __init__(self, context: RankContext) -> None:
        self.counters: list[np.ndarray] = []
        self._context = context
        self._computing = 0.0
        self._counted = np.zeros(len(_COUNTERS))
        self._count_of_round: np.ndarray | None = None
        self._records: list[Record] = []

    @contextmanager
    def computing(self, kind: str = "compute") -> Iterator[None]:
        """Count the time spent inside as time of computing, but for what is waited.

        Parameters
        ----------
        kind : {"compute", "evaluate"}, default="compute"
            What the timeline calls it.
        """
        start, waited = perf_counter(), self._waited
        try:
            with self._context.span(kind):
                yield
        finally:
            waited = self._waited - waited
            self._computing += perf_counter() - start - waited

    @property
    def _waited(self) -> float:
        """Seconds that this rank has waited for others."""
        return self._context.group.counters.seconds_waiting

    def count(self, n_rows: int) -> np.ndarray:
        """What this rank has counted in the round so far, for a message of a method.

        The record of the round has this; what comes after it is the next round's.

        Parameters
        ----------
        n_rows : int
            Rows that this rank goes over in the round.

        Returns
        -------
        counted : ndarray of float64
            What :attr:`counters` has of the round after :meth:`note`.
        """
        counters = self._context.group.counters
        now = np.array(
            [
                self._counted[0] + n_rows,
                counters.bytes_sent,
                counters.bytes_shared,
                counters.messages_sent,
                self._computing,
                counters.seconds_waiting,
            ]
        )
        self._count_of_round = now - self._counted
        return self._count_of_round

    def note(self, n_round: int, n_rows: int, **values: Any) -> None:
        """Keep what this rank has done since the last round.

        Parameters
        ----------
        n_round : int
            Number of the round, from 1.
        n_rows : int
            Rows that this rank has gone over in it.
        **values
            What else the record holds.
        """
        count, self._count_of_round = self._count_of_round, None
        if count is None:
            count, self._count_of_round = self.count(n_rows), None
        self.counters.append(count)
        self._counted = self._counted + count
        record = {"round": n_round, "time": self._context.elapsed(), **values}
        self._records.append(record)

    def finish(self, sums: Sequence[np.ndarray]) -> list[Record]:
        """Hand out the records kept so far.

        Parameters
        ----------
        sums : sequence of ndarray
            Sums of `counters` over all ranks.

        Returns
        -------
        records : list of dict
            In the order of the rounds.
        """
        records = self._records
        for record, values in zip(records, sums, strict=True):
            for name, value in zip(_COUNTERS, values, strict=True):
                # Times are means over ranks, which run side by side; the rest are sums.
                is_time = name.startswith("seconds")
                mean = float(value) / self._context.group.size
                record[name] = mean if is_time else int(value)
        self._records, self.counters = [], []
        return records


class Work(NamedTuple):
    """What a rank has done in a round.

    Attributes
    ----------
    n_rows : int
        Rows that it has gone over.
    values : dict
        What the record of the round holds besides, whether the round is evaluated or
        not; plain numbers.
    """

    n_rows: int
    values: dict[str, Any] = {}


class Snapshot(NamedTuple):
    """State of a rank after a round; none of its arrays is changed afterwards.

    Attributes
    ----------
    shared : dict
        Arrays, and values that JSON knows, which are the same on all ranks.
    own : dict or None
        The same for what only this rank has.
    settled : bool
        Whether a checkpoint may be written of it. Without one it is kept in memory.
    whole : bool
        Whether `own` of all ranks makes up one model, of which no part may get lost.
    in_memory : bool
        Whether ranks keep it, too, and not only checkpoints.
    rest : callable or None
        Where they do not: gives what `shared` lacks, so that they keep it after all if
        they end here to start again on other workers. It is called on all of them, or
        on none. None: nothing is kept even then.
    """

    shared: dict[str, Any]
    own: dict[str, Any] | None = None
    settled: bool = True
    whole: bool = False
    in_memory: bool = True
    rest: Callable[[], dict[str, Any]] | None = None


class Ended(NamedTuple):
    """How the rounds have come to their end; the same on all ranks.

    Attributes
    ----------
    stop : bool
        Whether the method, or somebody who follows the fit, has ended them; False where
        all have been made that there may be.
    wanted : bool
        Whether it was somebody who follows the fit.
    """

    stop: bool
    wanted: bool


class Method(ABC):
    """What a rank does in a round, and what is left of it: the part of a fit that
    :func:`fit_rounds` goes through.

    All ranks have one, and its methods are called on all of them in the same order, so
    each may be a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    log : RoundLog, default=None
        Records of rounds, to go on with those of another method; None begins some.

    Attributes
    ----------
    context : RankContext
        This rank.
    log : RoundLog
        Where computing is timed.
    n_rounds : int
        Rounds made; :func:`fit_rounds` counts them.
    """

    #: Whether somebody who follows the fit may end it before the last round.
    may_be_ended: ClassVar[bool] = True

    def __init__(self, context: RankContext, log: RoundLog | None = None) -> None:
        self.context = context
        self.log = RoundLog(context) if log is None else log
        self.n_rounds = 0

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether as many rounds have been made as there may be."""

    def begin(self) -> None:
        """Prepare for the first round, where there is no state to go on from."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Take over what :meth:`state_dict` has given, perhaps on other ranks.

        Parameters
        ----------
        state : State
            Its `own` is None where the rank has lost it, or has other rows now.
            Arrays that rounds change have to be copied.

        Raises
        ------
        CheckpointError
            If the state is that of another model.
        """

    @abstractmethod
    def state_dict(self) -> Snapshot | None:
        """State after the round; None, on all ranks, where no fit can go on from it.

        Then the fit does not end before another round either. After the last round
        there is a state.
        """

    @abstractmethod
    def round(self) -> Work:
        """Make round number `n_rounds`."""

    def measure(self) -> list[np.ndarray] | None:
        """This rank's parts of what is to be added up over ranks.

        Returns
        -------
        parts : list of ndarray, or None
            The same shapes and dtypes on all ranks. None on all ranks where this round
            is not evaluated: its record waits for that of a later one.
        """
        return []

    @abstractmethod
    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        """Complete the record of the round.

        Parameters
        ----------
        record : dict
            It has the number and the time of the round, the values of its `Work`, and
            what all ranks have counted.
        sums : list of ndarray
            Sums of what :meth:`measure` has given.
        """

    def is_done(self, record: Record) -> bool:
        """Whether the fit ends with the round of a record; the same on all ranks.

        Parameters
        ----------
        record : dict
            The last one, which the history has already.
        """
        return False

    @abstractmethod
    def model(self) -> Model:
        """The model as it is now, for those who follow the fit."""


def fit_rounds(
    context: RankContext,
    method: Method,
    state: State | None = None,
    *,
    goes_on: bool = False,
    add_up: Adder | None = None,
) -> Ended:
    """Make the rounds of a fit; a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    method : Method
        What a round is.
    state : State or None, default=None
        What to go on from, as :meth:`RankContext.restore_state` has found it.
    goes_on : bool, default=False
        Whether other rounds of the same fit follow, unless somebody ends it.
    add_up : callable, default=None
        Sums arrays over ranks; None is :func:`~dask_ma.comm.allreduce`.

    Returns
    -------
    ended : Ended

    Raises
    ------
    FitFailedError
        If another rank has failed, or the ranks are to start again elsewhere.
    """
    stop = wanted = False
    if state is None:
        method.begin()
    else:
        method.n_rounds = state.round
        method.load_state_dict(state)
        stop, wanted = state.shared["stop"], state.shared["wanted"]
    is_last = stop or method.is_complete
    while not is_last:
        method.n_rounds += 1
        work = method.round()
        method.log.note(method.n_rounds, work.n_rows, **work.values)
        records = _evaluate(context, method, add_up)
        wanted = _tell(context, method, records) or wanted
        is_done = bool(records) and method.is_done(records[-1])
        stop = stop or wanted or is_done
        snapshot = method.state_dict()
        is_last = method.is_complete or (stop and snapshot is not None)
        if snapshot is not None:
            context.save_state(
                method.n_rounds,
                {**snapshot.shared, "stop": stop, "wanted": wanted},
                snapshot.own,
                whole=snapshot.whole,
                settled=snapshot.settled,
                in_memory=snapshot.in_memory,
                rest=snapshot.rest,
                done=is_last and (wanted or not goes_on),
            )
    return Ended(stop, wanted)


def _evaluate(
    context: RankContext, method: Method, add_up: Adder | None
) -> list[Record]:
    """Records that are complete with this round; a collective call."""
    parts = method.measure()
    if parts is None:
        return []
    arrays = [*parts, *method.log.counters]
    sums = allreduce(context.group, arrays) if add_up is None else add_up(arrays)
    records = method.log.finish(sums[len(parts) :])
    method.record(records[-1], sums[: len(parts)])
    return records


def _tell(context: RankContext, method: Method, records: list[Record]) -> bool:
    """Add records to the history; return whether a listener wants the fit to end."""
    # Nobody else asks for it, and to describe a model may cost a copy.
    model = method.model() if records and context.is_followed else {}
    wants = [context.record(record, model) for record in records]
    return method.may_be_ended and any(map(bool, wants))
