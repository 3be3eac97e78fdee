"""Dynamic schedules: priorities, and a look at dependencies."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from dask_ma._ranges import Interval, StrOptions
from dask_ma.comm import Group
from dask_ma.layouts._columns import ColumnShard
from dask_ma.schmp.runtime._program import Request
from dask_ma.schmp.runtime._schedulers import Schedulers
from dask_ma.schmp.schedules._dependencies import (
    ColumnSample,
    gather_sample,
    independent_set,
    safe_prefix,
    sample_columns,
    shrunk,
)
from dask_ma.schmp.schedules._sampling import DueQueue, distinct
from dask_ma.schmp.schedules._schedules import Priority, inside

_LEAST_THRESHOLD = 0.1
_CHANCE = 4.0  # standard deviations of a correlation by chance
# Largest eigenvalue of the correlations of what is updated at once: with 2 steps along
# all of them may undo each other. Beside steps that were worked out earlier, a little
# less, which also leaves room for what does not look at pending ones.
_MOST, _MOST_BESIDE = 1.95, 1.8
_MOST_RESTRAINT = 2
_LOOSE = 3  # that part of the candidates, where what is under way is not looked at


class Dynamic(Priority):
    """Parameters that should move most, without those that depend on each other.

    Two candidates depend on each other if the correlation of their columns on a sample
    of rows is above a threshold; one that depends on another of higher priority, or on
    a pending parameter, is left out (Algorithm 2 of [1]_). Parameter `j` of the model
    belongs to column `j` of X.

    Small correlations of many columns add up: on few rows, steps that are made at once
    may go too far together although no two of them depend on each other. Below 2, the
    largest eigenvalue of the correlations of all that is under way keeps steps at once
    from raising the objective [2]_; of ``n`` rows, independent columns come to
    ``(1 + sqrt(columns / n))**2``. That is seldom needed, since few coefficients move
    at a time. So :class:`~dask_ma.SchMPLasso` and
    :class:`~dask_ma.SchMPLogisticRegression` without ``polish`` call :meth:`restrain`
    after a round that has raised the objective, and make it anew.

    With ``priority="change"`` candidates are drawn as by :class:`Priority`: this is the
    rule of the paper. With "due" a program may say how much the others have to change
    before a parameter is worth another update, with the delays of a
    :class:`~dask_ma.schmp.Change`; then those due first are candidates.
    :class:`~dask_ma.schmp.CoordinateDescent` does that: coefficients that are not zero
    are due at once, and zeros sooner the nearer they are to the threshold of the
    penalty. Where fewer are due than are wanted, others are drawn with equal
    probabilities. Without delays both are the same.

    Parameters
    ----------
    n_candidates : int, default=64
        Candidates in an iteration, at least 1.
    dependency_threshold : float or "auto", default="auto"
        Correlation above which, in absolute value, two parameters are not updated at
        once; from 0 to 1. 1 allows everything. "auto" is 0.1, or four times the
        standard deviation that the correlation of independent columns has on the rows
        of the sample, ``4 / sqrt(rows)``, where that is more: below, chance decides.
    floor : float, default=0.3
        As in :class:`Priority`. In that fraction of the iterations, besides, candidates
        come in random order and pending parameters keep none of them out: otherwise
        parameters that move little could be kept out for ever by those they depend on.
        Of such iterations only one is under way at a time, and beside others it takes
        a third of the candidates at most: its steps and theirs may overshoot together.
    new : float, default=0.8
        Fraction of the candidates that were never updated, as long as there are such
        parameters, from 0 to 1; where delays count. 1 begins with a pass over
        all parameters, less improves those that matter meanwhile.
    n_rows : int, default=512
        Rows of the sample over all ranks, at least 2. A scheduler keeps that many
        elements per column, in single precision.
    centered : bool, default=None
        True compares columns by their correlation, which is right where the program
        takes the means from the columns; False by the cosine of the angle between them,
        which is right where it does not. None leaves it to the program, and means False
        where that does not say.
    priority : {"due", "change"}, default="due"
        Whether delays are looked at, where the program has them, or the sizes of the
        last changes alone.
    check_pending : bool, default=True
        Whether candidates that depend on a pending parameter are left out, too. False
        updates more parameters in a deep pipeline, of which some undo each other.
    pipeline_depth : int or "auto", default="auto"
        Iterations under way at a time, at least 1, of a fit or a run with this
        schedule. 1 makes each wait for the one before. "auto" is 1 where all ranks
        share a process, and 3 elsewhere; where ranks have parameters of their own it is
        their number, but at least 3. A number gives the same bits on any cluster.
    n_schedulers : int, default=1
        Ranks that schedule, at least 1, each a part of the parameters of its own.
        Correlations between parameters of different schedulers are not seen.

    References
    ----------
    .. [1] J. K. Kim, Q. Ho, S. Lee, X. Zheng, W. Dai, G. A. Gibson, E. P. Xing,
       "STRADS: A distributed framework for scheduled model parallel machine learning",
       EuroSys 2016.
    .. [2] J. K. Bradley, A. Kyrola, D. Bickson, C. Guestrin, "Parallel coordinate
       descent for L1-regularized loss minimization", ICML 2011.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **Priority._parameter_constraints,
        "dependency_threshold": [
            Interval(Real, 0, 1, closed="both"),
            StrOptions({"auto"}),
        ],
        "priority": [StrOptions({"due", "change"})],
        "new": [Interval(Real, 0, 1, closed="both")],
        "n_rows": [Interval(Integral, 2, None, closed="left")],
        "centered": ["boolean", None],
        "check_pending": ["boolean"],
    }

    def __init__(
        self,
        n_candidates: int = 64,
        dependency_threshold: float | str = "auto",
        floor: float = 0.3,
        *,
        priority: str = "due",
        new: float = 0.8,
        n_rows: int = 512,
        centered: bool | None = None,
        check_pending: bool = True,
        pipeline_depth: int | str = "auto",
        n_schedulers: int = 1,
    ) -> None:
        super().__init__(
            n_candidates,
            floor,
            pipeline_depth=pipeline_depth,
            n_schedulers=n_schedulers,
        )
        self.dependency_threshold = dependency_threshold
        self.priority = priority
        self.new = new
        self.n_rows = n_rows
        self.centered = centered
        self.check_pending = check_pending
        self._restraint = 0  # how often :meth:`restrain` was called
        self._is_centered = bool(centered)
        self._sample: ColumnSample | None = None
        self._queue: DueQueue | None = None
        self._queued = range(0)
        self._is_loose = False  # whether the last job has not looked at pending ones
        self._loose = np.empty(0, dtype=np.int64)  # the last of those jobs

    def prepare(
        self,
        shard: Any,
        group: Group,
        schedulers: Schedulers,
        *,
        centered: bool = False,
    ) -> None:
        """Draw the sample of rows; a collective call."""
        self.check()
        self._is_centered = centered if self.centered is None else self.centered
        if isinstance(shard, ColumnShard):
            self._sample = sample_columns(shard, schedulers.seed, self.n_rows)
        else:
            self._sample = gather_sample(shard, group, schedulers, self.n_rows)

    def __call__(self, model: np.ndarray, request: Request) -> np.ndarray:
        """Independent parameters to update, those of the highest priority first.

        Raises
        ------
        RuntimeError
            If :meth:`prepare` was not called.
        ValueError
            If a parameter has no column.
        """
        if self._sample is None:
            raise RuntimeError(
                "a Dynamic schedule needs a sample of rows; keep it as an attribute of "
                "the program, or call its prepare in prepare_schedule"
            )
        columns = self._sample.columns
        if request.parameters.stop > max(columns.stop, request.parameters.start):
            raise ValueError(
                f"a Dynamic schedule compares the columns up to {columns.stop - 1} of "
                f"X, but was asked for parameters up to {request.parameters.stop - 1}; "
                "use request.restricted(n_features) and schedule the others yourself"
            )
        candidates = self._candidates(request)
        pending = request.pending[request.pending < columns.stop]
        others = [a["directions"] for a in request.elsewhere]
        self._is_loose = request.rng.random() < self.floor
        self._is_loose &= not self._has_loose(request)
        if self._is_loose:
            candidates = request.rng.permutation(candidates)
            if len(pending) or others:
                candidates = candidates[: -(-len(candidates) // _LOOSE)]
        if not self.check_pending:
            pending, others = pending[:0], []
        job = self._independent(candidates, pending, others)
        if self._is_loose:
            self._loose = job
        return job

    def restrain(self) -> bool:
        """Update less at once: what is safe together, and after that one at a time.

        The first call keeps the largest eigenvalue of the correlations of all that is
        under way, as far as this scheduler knows of it, below 2, by taking only the
        first of the independent parameters. The second leaves a single parameter under
        way.

        Returns
        -------
        is_restrained : bool
            False from the third call on.
        """
        if self._restraint == _MOST_RESTRAINT:
            return False
        self._restraint += 1
        return True

    def announces(self) -> bool:
        """Whether other ranks have to know of a job while it is under way."""
        return self.check_pending

    def announce(self, job: np.ndarray) -> Any:
        """Columns of a job on the sample, for the schedules of other ranks."""
        assert self._sample is not None
        directions = self._sample.directions(job, centered=self._is_centered)
        # Half precision tells whether a correlation is above a threshold of 0.1 or so.
        return {
            "directions": directions.astype(np.float16),
            "is_loose": bool(self._is_loose),
        }

    def _has_loose(self, request: Request) -> bool:
        """Whether a job that has not looked at pending parameters is under way."""
        # One that is pending again later has been chosen by another job.
        self._loose = self._loose[np.isin(self._loose, request.pending)]
        elsewhere = any(announced["is_loose"] for announced in request.elsewhere)
        return elsewhere or bool(len(self._loose))

    def _candidates(self, request: Request) -> np.ndarray:
        """Candidates in the order of their priority."""
        is_due_known = self.priority == "due" and request.due is not None
        if not is_due_known or not len(request.parameters):
            return super()._candidates(request)
        queue, rng, n = self._updated_queue(request), request.rng, self.n_candidates
        start, pending = request.parameters.start, request.pending
        # One at least: otherwise what is new would never be updated.
        n_new = min(n, max(1, round(self.new * n)))
        new = distinct(start + queue.new(n_new + len(pending), rng), pending, n_new)
        wanted = n - len(new)
        if not len(new):
            wanted -= int(rng.binomial(n, self.floor))
        first = start + queue.first(wanted + len(pending), request.moved)
        first = distinct(first, pending, wanted)
        n_even = 0 if len(new) else 2 * (n - len(first))
        even = start + rng.integers(len(request.parameters), size=n_even)
        return distinct(np.concatenate([new, first, even]), pending, n)

    def _updated_queue(self, request: Request) -> DueQueue:
        """The queue, with what has changed since the last iteration."""
        parameters = request.parameters
        own = slice(parameters.start, parameters.stop)
        changed = request.changed
        if self._queue is None or parameters != self._queued:
            self._queue = DueQueue(len(parameters), self.n_candidates)
            self._queued, changed = parameters, None
        assert request.due is not None
        self._queue.update(
            request.due[own],
            request.last_change[own],
            inside(changed, parameters),
        )
        return self._queue

    def _independent(
        self, candidates: np.ndarray, pending: np.ndarray, others: list[np.ndarray]
    ) -> np.ndarray:
        """Those that may be updated at once, beside those under way."""
        assert self._sample is not None
        n = len(candidates)
        index = np.concatenate([candidates, pending])
        here = self._sample.directions(index, centered=self._is_centered)
        fixed = np.concatenate([here[n:], *(o.astype(np.float32) for o in others)])
        limit, free = self._limit(), np.arange(n)
        if not self._is_loose:
            free = free[~(np.abs(here[:n] @ fixed.T) > limit).any(axis=1)]
        edges = np.abs(here[free] @ here[free].T) > limit
        chosen = free[independent_set(edges)]
        return candidates[chosen[: self._n_safe(fixed, here[chosen])]]

    def _n_safe(self, fixed: np.ndarray, chosen: np.ndarray) -> int:
        """How many of the chosen directions are taken beside those under way."""
        assert self._sample is not None
        if self._restraint == 0:
            return len(chosen)
        if self._restraint == _MOST_RESTRAINT:
            return 0 if len(fixed) else 1
        directions = np.concatenate([fixed, chosen])
        alike = shrunk(directions @ directions.T, self._sample.chance)
        is_beside = len(fixed) and not self._is_loose
        return safe_prefix(alike, len(fixed), _MOST_BESIDE if is_beside else _MOST)

    def _limit(self) -> float:
        """Correlation above which two parameters depend on each other."""
        if not isinstance(self.dependency_threshold, str):
            return self.dependency_threshold
        n_rows = 1 if self._sample is None else max(1, self._sample.n_rows)
        return max(_LEAST_THRESHOLD, _CHANCE / float(np.sqrt(n_rows)))
