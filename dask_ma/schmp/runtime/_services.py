"""The three services of a rank: scheduler, job executor, parameter manager."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.data import Shard
from dask_ma.layouts._columns import ColumnShard
from dask_ma.layouts._design import Design
from dask_ma.schmp.runtime._program import Change, Program, Request
from dask_ma.schmp.runtime._schedulers import Jobs, Schedulers

_SCHEDULE_KEY = 1  # keeps the random numbers of schedules apart from others


class Commit(NamedTuple):
    """A change of the model.

    Attributes
    ----------
    index : ndarray of int64 of shape (k,)
        Parameters that change.
    change : ndarray of shape (k, ...)
        What is added to them.
    extra : object
        What the program's `commit` gets besides; None for nothing.
    size, delay : ndarray of float64 of shape (k,) or None
        As in :class:`Change`.
    """

    index: np.ndarray  # type: ignore[assignment]
    change: np.ndarray
    extra: Any = None
    size: np.ndarray | None = None
    delay: np.ndarray | None = None


class Scheduler:
    """Chooses the parameters of those iterations that fall to this rank.

    Parameters
    ----------
    program : Program
        Whose `schedule` is called.
    manager : ParameterManager
        Gives the model.
    schedulers : Schedulers
        Who schedules what; this rank must be one of them.
    rank, size : int
        This rank and the number of ranks.
    """

    def __init__(
        self,
        program: Program,
        manager: ParameterManager,
        schedulers: Schedulers,
        rank: int,
        size: int,
    ) -> None:
        self._program = program
        self._manager = manager
        self._parameters = schedulers.partition_of(rank) or range(0)
        self._n_schedulers = len(schedulers.ranks)
        self._seed = schedulers.seed
        self._rank = rank
        self._n_jobs = 1 if schedulers.alone else size
        self._pending: dict[int, np.ndarray] = {}

    def schedule(self, iteration: int, elsewhere: tuple[Any, ...] = ()) -> Jobs:
        """Jobs of an iteration; their parameters are pending from now on.

        Parameters
        ----------
        iteration : int
            Its number.
        elsewhere : tuple of object
            What other ranks have announced of what is under way.

        Returns
        -------
        jobs : ndarray of int64 or list of ndarray of int64
        """
        key = np.random.SeedSequence(self._seed, spawn_key=(_SCHEDULE_KEY, iteration))
        request = Request(
            iteration=iteration,
            turn=iteration // self._n_schedulers,
            rng=np.random.default_rng(key),
            n_jobs=self._n_jobs,
            parameters=self._parameters,
            pending=_joined(list(self._pending.values())),
            last_change=self._manager.last_change,
            changed=self._manager.take_changed(),
            due=self._manager.due,
            moved=self._manager.moved,
            elsewhere=elsewhere,
        )
        jobs = self._program.schedule(self._manager.model, request)
        where = (
            f"schedule of {type(self._program).__name__} at iteration {iteration} on "
            f"rank {self._rank}"
        )
        jobs = checked_jobs(jobs, self._parameters, self._n_jobs, where)
        self._pending[iteration] = scheduled(jobs)
        return jobs

    def committed(self, iteration: int) -> None:
        """Take note that the changes of an iteration are in the model."""
        self._pending.pop(iteration, None)


class JobExecutor:
    """Works out this rank's part of the updates.

    Parameters
    ----------
    program : Program
        Whose `update` is called.
    local : object
        What the program keeps on this rank.
    data : Shard, ColumnShard or Design
        The rank's data.

    Attributes
    ----------
    n_touched : int
        Elements of the columns of the jobs so far: those in this rank's rows.
    n_rows_read : int
        Rows gone over so far.
    """

    def __init__(self, program: Program, local: Any, data: Any) -> None:
        shard = data.shard if isinstance(data, Design) else data
        self._program = program
        self._local = local
        self._n_rows = shard.n_rows
        self._per_column = _elements_per_column(shard)
        self.n_touched = 0
        self.n_rows_read = 0

    def update(self, job: np.ndarray, model: np.ndarray) -> Any:
        """Result of a job that is not empty."""
        self.n_touched += round(self._per_column * len(job))
        self.n_rows_read += self._n_rows
        return self._program.update(job, self._local, model)

    def commit(self, commit: Commit, model: np.ndarray) -> None:
        """Tell the program of a change that has been made to the model."""
        index, change, extra, *_ = commit
        # Programs that return no extra need not take any.
        extras = () if extra is None else (extra,)
        self._program.commit(self._local, index, change, model, *extras)


class ParameterManager:
    """This rank's copy of the model, and the way that changes take into it.

    Parameters
    ----------
    program : Program
        Whose `aggregate` is called.
    model : ndarray of shape (n_parameters,) or (n_parameters, K)
        The model to begin with; copied.
    rank : int
        This rank, for messages.

    Attributes
    ----------
    model : ndarray, read-only
        The model, a view that follows the changes.
    last_change : ndarray of float64 of shape (n_parameters,), read-only
        Size of the last change of each parameter, a view as well.
    due : ndarray of float64 of shape (n_parameters,) or None, read-only
        As in :class:`Request`.
    moved : float
        Sum of the squared sizes of all changes since the last :meth:`rebase`.
    n_updates : int
        Changes of single parameters so far.
    """

    def __init__(self, program: Program, model: np.ndarray, rank: int) -> None:
        self._program = program
        self._rank = rank
        self.n_updates = 0
        self.load_state_dict(
            {"model": model, "last_change": np.full(len(model), np.inf)}
        )

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the model and of what is known of its last changes."""
        state = {"model": self._model.copy(), "last_change": self._last_change.copy()}
        return state if self._due is None else {**state, "due": self._due.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` has given."""
        last_change, due = state["last_change"], state.get("due")
        self._model = np.array(state["model"])
        self._last_change = np.array(last_change, dtype=np.float64)
        self.model = _read_only(self._model)
        self.last_change = _read_only(self._last_change)
        self._due = None if due is None else np.array(due, dtype=np.float64)
        self.due = None if self._due is None else _read_only(self._due)
        self.moved = 0.0
        self._changed: list[np.ndarray] | None = None

    def rebase(self) -> None:
        """Count from here what moves, so that :meth:`state_dict` needs no `moved`."""
        if self._due is not None:
            self._due -= self.moved
            self._changed = None
        self.moved = 0.0

    def aggregate(self, results: list[Any], jobs: Jobs, iteration: int) -> Commit:
        """Turn the results of an iteration into a change, which is not yet made."""
        index = scheduled(jobs)
        shape = (len(index), *self.model.shape[1:])
        if not len(index):
            return Commit(index, np.zeros(shape, dtype=self.model.dtype))
        result = self._program.aggregate(results, jobs, self.model)
        if not isinstance(result, Change):
            result = Change(result)
        values, *others = result
        change = np.array(values, dtype=self.model.dtype)
        where = (
            f"aggregate of {type(self._program).__name__} at iteration {iteration} on "
            f"rank {self._rank}"
        )
        if change.shape != shape:
            raise ValueError(
                f"{where} returned changes of shape {change.shape}, expected {shape}, "
                "one for each scheduled parameter"
            )
        is_finite = np.isfinite(change)
        if not is_finite.all():
            first = np.argwhere(~is_finite)[0]
            raise ValueError(
                f"{where} returned the change {change[tuple(first)]} for parameter "
                f"{index[first[0]]}, expected a finite number; fewer parameters in an "
                "iteration, or a smaller pipeline_depth, keep a program from diverging"
            )
        return Commit(index, change, *others)

    def apply(self, commit: Commit) -> None:
        """Make a change."""
        index, change, _, size, delay = commit
        self._model[index] += change
        if size is None:
            size = np.linalg.norm(change.reshape(len(index), -1), axis=1)
        self._last_change[index] = size
        if delay is not None:
            if self._due is None:
                self._due = np.where(np.isinf(self._last_change), np.inf, self.moved)
                self.due = _read_only(self._due)
                self._changed = None
            self._due[index] = self.moved + delay
        elif self._due is not None:
            self._due[index] = self.moved
        self.moved += float(size @ size)
        self.n_updates += len(index)
        if self._changed is not None:
            self._changed.append(index)

    def take_changed(self) -> np.ndarray | None:
        """Parameters that have changed since the last call; None stands for all."""
        changed, self._changed = self._changed, []
        return None if changed is None else _joined(changed)


def scheduled(jobs: Jobs) -> np.ndarray:
    """All parameters of the jobs of an iteration."""
    return _joined(jobs) if isinstance(jobs, list) else jobs


def job_of(jobs: Jobs, rank: int) -> np.ndarray:
    """Job of one executor."""
    return jobs[rank] if isinstance(jobs, list) else jobs


def checked_jobs(jobs: Any, parameters: range, n_jobs: int, where: str) -> Jobs:
    """Jobs as arrays that nobody else writes to.

    Raises
    ------
    ValueError
        If a schedule has returned what cannot be carried out; `where` begins the
        message.
    """
    if not isinstance(jobs, list | tuple):
        job = _checked_job(jobs, parameters, where)
        _check_distinct(job, where)
        return job
    if len(jobs) != n_jobs:
        raise ValueError(
            f"{where} returned {len(jobs)} jobs, expected one array for all executors "
            f"or one for each of the {n_jobs} ranks"
        )
    arrays = [
        _checked_job(job, parameters, f"{where}, job {number}")
        for number, job in enumerate(jobs)
    ]
    _check_distinct(_joined(arrays), where)
    return arrays


def _checked_job(job: Any, parameters: range, where: str) -> np.ndarray:
    """One job as an array of int64, a copy."""
    array = np.asarray(job)
    if array.ndim != 1:
        raise ValueError(
            f"{where} returned an array of shape {array.shape}, expected one dimension"
        )
    if not array.size:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"{where} returned an array of {array.dtype}, expected integers"
        )
    outside = (array < parameters.start) | (array >= parameters.stop)
    if outside.any():
        raise ValueError(
            f"{where} returned the parameter {array[outside][0]}, expected one of this "
            f"scheduler's, from {parameters.start} to {parameters.stop - 1}"
        )
    return np.array(array, dtype=np.int64)


def _check_distinct(index: np.ndarray, where: str) -> None:
    """Refuse a parameter that is scheduled twice."""
    ordered = np.sort(index)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise ValueError(
            f"{where} returned the parameter {twice[0]} twice, expected each parameter "
            "in one job only, and once"
        )


def _elements_per_column(shard: Shard | ColumnShard) -> float:
    """Mean number of stored elements of a column on this rank."""
    parts = [shard.X] if isinstance(shard, ColumnShard) else [b.X for b in shard.blocks]
    stored = sum(X.nnz if sparse.issparse(X) else X.size for X in parts)
    width = parts[0].shape[1] if parts else 0
    return stored / max(1, width)


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    """Arrays of parameters laid end to end."""
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)


def _read_only(array: np.ndarray) -> np.ndarray:
    """A view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view
