"""The interface of a scheduled model-parallel program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group
from dask_ma.data import Shard
from dask_ma.schmp.runtime._schedulers import Jobs, Schedulers


class Change(NamedTuple):
    """What :meth:`Program.aggregate` may return instead of the values alone.

    Attributes
    ----------
    values : array-like of shape (n_scheduled, ...)
        What is added to each scheduled parameter.
    extra : object
        An array, or a list, tuple or dict of arrays, that :meth:`Program.commit` gets
        on every rank, e.g. what the change does to predictions. Arrays must not be
        written to afterwards.
    size : ndarray of float64 of shape (n_scheduled,) or None
        What counts as the size of each change, in units in which parameters can be
        compared; None stands for the Euclidean norm.
    delay : ndarray of float64 of shape (n_scheduled,) or None
        Sum of the squared sizes of changes of all parameters before which another
        update is not worth while, from 0 on; None if that is not known.
    """

    values: Any
    extra: Any = None
    size: np.ndarray | None = None
    delay: np.ndarray | None = None


@dataclass(frozen=True)
class Request:
    """What a schedule is asked for.

    Attributes
    ----------
    iteration : int
        Number of the iteration, from 0.
    turn : int
        How many iterations this scheduler has scheduled before.
    rng : numpy.random.Generator
        Random numbers of this iteration. They depend on the seed of the run and on the
        iteration alone, not on the cluster.
    n_jobs : int
        Number of executors: the number of ranks, or 1 where each rank works alone.
    parameters : range
        Parameters of this scheduler, from which the schedule chooses.
    pending : ndarray of int64
        Those of them that are scheduled and whose change is not committed yet.
    last_change : ndarray of float64 of shape (n_parameters,), read-only
        Size of the last committed change of each parameter of the whole model, the
        Euclidean norm unless a :class:`Change` has said otherwise; infinity before the
        first.
    changed : ndarray of int64 or None
        Parameters whose `last_change` or `due` may differ from that in the previous
        request; None stands for all.
    due : ndarray of float64 of shape (n_parameters,) or None, read-only
        What `moved` was at the last update of each parameter, with the delay that its
        :class:`Change` had; infinity before the first. None as long as no change has
        had delays.
    moved : float
        Sum of the squared sizes of all changes since the round began.
    elsewhere : tuple of object
        Where each rank works alone on parameters of its own: what the others have
        announced, with :meth:`Program.announce`, of their iterations under way.
    """

    iteration: int
    turn: int
    rng: np.random.Generator
    n_jobs: int
    parameters: range
    pending: np.ndarray
    last_change: np.ndarray
    changed: np.ndarray | None
    due: np.ndarray | None = None
    moved: float = 0.0
    elsewhere: tuple[Any, ...] = ()

    def restricted(self, stop: int) -> Request:
        """The same request without the parameters from `stop` on."""
        start = self.parameters.start
        parameters = range(start, max(start, min(self.parameters.stop, stop)))
        return replace(self, parameters=parameters)


class Schedule(ABC):
    """A way to choose parameters; what a program's `schedule` can be left to.

    One that is kept as an attribute of a program is made ready by the engine.

    Attributes
    ----------
    pipeline_depth : int or "auto"
        Iterations under way at a time where :func:`run` is not told.
    n_schedulers : int
        Ranks that schedule where :func:`run` is not told.
    """

    pipeline_depth: int | str = "auto"
    n_schedulers: int = 1

    def prepare(
        self,
        shard: Any,
        group: Group,
        schedulers: Schedulers,
        *,
        centered: bool = False,
    ) -> None:
        """Take from the data what is needed; a collective call before the first use.

        Parameters
        ----------
        shard : Shard
            Rows of this rank. A program that shares the columns out gives its columns.
        group : Group
            This rank among the others.
        schedulers : Schedulers
            Who schedules what.
        centered : bool, default=False
            Whether the program takes the means from the columns.
        """
        return None  # most need nothing

    def restrain(self) -> bool:
        """Choose fewer parameters at once, since they have gone too far together.

        Called on all ranks between two runs of the engine.

        Returns
        -------
        is_restrained : bool
            Whether that changes anything; the same on all ranks.
        """
        return False

    def announces(self) -> bool:
        """Whether other ranks have to know of a job while it is under way.

        Asked after :meth:`prepare`.

        Returns
        -------
        announces : bool
            The same on all ranks.
        """
        return False

    def announce(self, job: np.ndarray) -> Any:
        """What the schedules of other ranks are told of a job that was just chosen.

        Parameters
        ----------
        job : ndarray of int64
            What the call for the iteration has returned.

        Returns
        -------
        announcement : ndarray, or list, tuple or dict of arrays
            They find it in ``request.elsewhere``; not to be written to afterwards.
        """
        return None  # of those that choose whatever the others do

    @abstractmethod
    def __call__(self, model: np.ndarray, request: Request) -> np.ndarray:
        """Parameters to update in an iteration, the most important first.

        Parameters
        ----------
        model : ndarray of shape (n_parameters, ...), read-only
            The model as far as the scheduler knows it.
        request : Request
            What is asked for.

        Returns
        -------
        job : ndarray of int64 of shape (k,)
            Each at most once, among ``request.parameters``; it may be empty.
        """


class Program(ABC):
    """A program of scheduled model parallelism.

    Subclasses say which parameters of the model to update next (`schedule`), what each
    rank works out for them from its rows (`update`), and how the results of all ranks
    change the model (`aggregate`). The engine does the rest. The model is one array of
    floats whose first axis counts the parameters; each rank has a copy.

    With the pipeline depth `s`, iteration `t` reads the model with the changes of the
    iterations up to ``t - s``: ``A(t) = A(t - 1) + D(A(t - s))``.

    Each rank has an object of its own, so attributes may be set in :meth:`prepare`.
    The models that the methods get are read-only views, which the engine changes later:
    copy what is to be kept.

    See Also
    --------
    run : Runs a program.
    dask_ma.schmp.schedules : Ways to schedule that fit many programs.
    """

    def prepare(self, shard: Shard, group: Group) -> Any:
        """Make what this rank keeps for its updates; a collective call.

        Parameters
        ----------
        shard : Shard
            Rows of this rank; there may be none.
        group : Group
            This rank among the others, for collective operations of
            :mod:`dask_ma.comm`.

        Returns
        -------
        local : object
            What the other methods get; the shard itself unless overridden.
        """
        return shard

    def prepare_schedule(
        self, shard: Shard, group: Group, schedulers: Schedulers
    ) -> None:
        """Make ready what `schedule` needs of the data; a collective call.

        Unless overridden, it prepares the attributes that are schedules.

        Parameters
        ----------
        shard : Shard
            Rows of this rank.
        group : Group
            This rank among the others.
        schedulers : Schedulers
            Who schedules what.
        """
        for value in vars(self).values():
            if isinstance(value, Schedule):
                value.prepare(shard, group, schedulers)

    @abstractmethod
    def initial_model(self, local: Any, group: Group) -> np.ndarray:
        """Model to begin with; a collective call.

        Not called where a run goes on from a model that was kept.

        Parameters
        ----------
        local : object
            What :meth:`prepare` has returned.
        group : Group
            This rank among the others.

        Returns
        -------
        model : ndarray of float of shape (n_parameters,) or (n_parameters, K)
            That of rank 0 counts.
        """

    def own_parameters(self, local: Any, n_parameters: int) -> range | None:
        """Parameters that this rank alone schedules and works on, if it has all data.

        With them, an iteration is scheduled, updated and added up by one rank after the
        other, without messages in between: other ranks get the change. So many ranks
        work at a time as the pipeline is deep.

        Parameters
        ----------
        local : object
            What :meth:`prepare` has returned.
        n_parameters : int
            Number of parameters of the model.

        Returns
        -------
        parameters : range or None
            None on every rank, unless overridden: all ranks work on all parameters.
            Ranges of all ranks together are all parameters, each once; one may be
            empty. None counts as empty if another rank has a range.
        """
        return None  # rows are shared out, and every rank has a part of all columns

    def announces(self) -> bool:
        """Whether ranks with parameters of their own have to know of others' jobs.

        Asked after :meth:`prepare_schedule`. Where it is true, a rank schedules when it
        has heard what is under way elsewhere: ranks schedule one after the other then,
        and update side by side.

        Returns
        -------
        announces : bool
            The same on all ranks.
        """
        return False  # most parameters of different ranks can be updated at once

    def announce(self, job: np.ndarray) -> Any:
        """What other ranks are told of a job of this one that is under way.

        Parameters
        ----------
        job : ndarray of int64
            What :meth:`schedule` has returned; it may be empty.

        Returns
        -------
        announcement : ndarray, or list, tuple or dict of arrays
            For ``request.elsewhere``; not to be written to afterwards.
        """
        return None  # where nothing is announced

    @abstractmethod
    def schedule(self, model: np.ndarray, request: Request) -> Jobs:
        """Choose the parameters of an iteration; called on the scheduler's rank.

        Parameters
        ----------
        model : ndarray of shape (n_parameters, ...), read-only
            The model as far as the scheduler knows it.
        request : Request
            What is asked for.

        Returns
        -------
        jobs : ndarray of int, or list of ndarray of int
            One array is a job for all executors, which work on it with their own rows.
            A list of ``request.n_jobs`` arrays without common elements is one job for
            each executor. No parameter may be named twice, all must be among
            ``request.parameters``, and those in ``request.pending`` should be left
            out. Jobs may be empty.
        """

    @abstractmethod
    def update(self, job: np.ndarray, local: Any, model: np.ndarray) -> Any:
        """Work out this rank's part of an update; called on every rank.

        Parameters
        ----------
        job : ndarray of int64 of shape (k,)
            Parameters to update, at least one.
        local : object
            What :meth:`prepare` has returned.
        model : ndarray of shape (n_parameters, ...), read-only
            The model.

        Returns
        -------
        result : ndarray, or list, tuple or dict of arrays
            What :meth:`aggregate` needs.
        """

    @abstractmethod
    def aggregate(self, results: list[Any], jobs: Jobs, model: np.ndarray) -> Any:
        """Turn the results of all ranks into a change of the model.

        Called on the rank that has scheduled the iteration.

        Parameters
        ----------
        results : list
            What :meth:`update` has returned on each rank, in rank order; None where
            the job was empty. Where a rank works alone, its result only.
        jobs : ndarray of int64, or list of ndarray of int64
            What was scheduled.
        model : ndarray of shape (n_parameters, ...), read-only
            The model. The scheduled parameters have in it the values that the update
            has seen, provided that pending ones are never scheduled.

        Returns
        -------
        change : array-like of shape (n_scheduled, ...)
            What is added to each scheduled parameter, in the order of the job; for a
            list of jobs, in the order of the jobs laid end to end. A :class:`Change`
            has something for :meth:`commit` besides.
        """

    def commit(
        self,
        local: Any,
        index: np.ndarray,
        change: np.ndarray,
        model: np.ndarray,
        extra: Any = None,
    ) -> None:
        """Take note of a change; called on every rank, in the order of iterations.

        For what is kept beside the model, such as a residual.

        Parameters
        ----------
        local : object
            What :meth:`prepare` has returned.
        index : ndarray of int64 of shape (k,)
            Parameters that have changed.
        change : ndarray of shape (k, ...)
            What was added to them.
        model : ndarray of shape (n_parameters, ...), read-only
            The model with the change.
        extra : object, default=None
            What a :class:`Change` had besides; not passed if there was nothing.
        """
        return None  # only programs that keep something need it

    def refresh(self, local: Any, model: np.ndarray) -> None:
        """Make anew what :meth:`commit` keeps up to date, from the model alone.

        A collective call at the start, after a restart, and at the end of each round,
        so that a fit that goes on from a kept state equals one that was never
        interrupted.

        Parameters
        ----------
        local : object
            What :meth:`prepare` has returned.
        model : ndarray of shape (n_parameters, ...), read-only
            The model.
        """
        return None  # as above

    def measure(self, local: Any, model: np.ndarray) -> np.ndarray:
        """Sums over this rank's rows that the report of a round needs.

        Parameters
        ----------
        local : object
            What :meth:`prepare` has returned.
        model : ndarray of shape (n_parameters, ...), read-only
            The model.

        Returns
        -------
        sums : ndarray of float64 of shape (m,)
            Of the same length on all ranks; added up over ranks.
        """
        return np.zeros(0)

    def report(self, sums: np.ndarray, model: np.ndarray) -> dict[str, float]:
        """What the history says of a round, e.g. ``{"objective": ...}``.

        Parameters
        ----------
        sums : ndarray of float64 of shape (m,)
            Sums of :meth:`measure` over all ranks.
        model : ndarray of shape (n_parameters, ...), read-only
            The model.

        Returns
        -------
        report : dict of str to float
        """
        return {}

    def has_converged(self, records: list[dict[str, Any]]) -> bool:
        """Whether the run can end after a round; asked on rank 0.

        Parameters
        ----------
        records : list of dict
            The history so far.

        Returns
        -------
        converged : bool
        """
        return False

    def n_touched(self, local: Any) -> int | None:
        """Elements of the data that this rank has read so far, for the history.

        Parameters
        ----------
        local : object
            What :meth:`prepare` has returned.

        Returns
        -------
        n_touched : int or None
            None has the engine count the columns of each job in this rank's rows; for
            sparse rows, with the mean number of stored elements.
        """
        return None
