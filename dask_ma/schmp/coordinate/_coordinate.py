"""Coordinate descent for penalised linear models (section 4.1 of the paper)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.schmp.coordinate._column_store import LocalColumns
from dask_ma.schmp.runtime._program import Change, Program, Request, Schedule
from dask_ma.schmp.runtime._schedulers import Jobs, Schedulers

NO_CURVATURE = 1e-12  # of the mean square of a column: rounding, not a variance


class CoordinateDescent(Program):
    """Coordinate descent for a penalised linear model; see its subclasses.

    Each update minimises an upper bound of the objective along one coordinate, with the
    others where they are::

        sum_i s_i loss_i / sum_i s_i + sum_j l1_j |b_j| + sum_j l2_j b_j^2 / 2

    Parameters
    ----------
    schedule : Schedule
        Which coordinates to update next.
    l1, l2 : ndarray of float64 of shape (n_features,)
        Weights of the penalties, not negative.
    positive : bool, default=False
        Whether coefficients must not be negative.
    fit_intercept : bool, default=True
        Whether there is an intercept; it is never penalised.
    start : ndarray of shape of the model, default=None
        Model to begin with; zeros if None.

    Attributes
    ----------
    total_weight : float
        Sum of the weights of the rows of all ranks; set by :meth:`prepare`.
    n_rows : int
        Number of these rows; set by :meth:`prepare`.
    """

    def __init__(
        self,
        schedule: Schedule,
        l1: np.ndarray,
        l2: np.ndarray,
        *,
        positive: bool = False,
        fit_intercept: bool = True,
        start: np.ndarray | None = None,
    ) -> None:
        self._schedule = schedule
        self.l1 = np.asarray(l1, dtype=np.float64)
        self.l2 = np.asarray(l2, dtype=np.float64)
        self.positive = positive
        self.fit_intercept = fit_intercept
        self.start = start
        self.total_weight = 0.0
        self.n_rows = 0
        self._curvatures = np.zeros(0)

    # What the losses differ in -----------------------------------------------------

    @abstractmethod
    def curvatures(self, local: LocalColumns, group: Group) -> np.ndarray:
        """Upper bound of the second derivative of the mean loss by each coordinate.

        A collective call.
        """

    @abstractmethod
    def gradient_sums(self, local: LocalColumns, index: np.ndarray) -> np.ndarray:
        """This rank's part of the gradient of the summed loss, for some coordinates."""

    @abstractmethod
    def values_at_zero(self, local: LocalColumns, model: np.ndarray) -> np.ndarray:
        """What is kept for each row if all coordinates are zero; a new array."""

    @abstractmethod
    def add_effect(
        self,
        out: np.ndarray,
        local: LocalColumns,
        index: np.ndarray,
        change: np.ndarray,
    ) -> float:
        """Add to values of the rows what a change of some coordinates does to them.

        Returns
        -------
        offset : float
            What it does to the offset of the values.
        """

    # What layouts differ in --------------------------------------------------------

    def lay_out(self, shard: Any, group: Group) -> LocalColumns:
        """The data of this rank by columns; a collective call."""
        return LocalColumns.of_rows(shard)

    def from_columns(self, group: Group, values: np.ndarray) -> np.ndarray:
        """A value for each column of all ranks, from those of this rank's store."""
        return allreduce(group, values)

    def from_rows(self, group: Group, value: float) -> float:
        """A sum over all rows, from that over the rows of this rank."""
        return float(allreduce(group, np.array(value)))

    # The program -------------------------------------------------------------------

    def prepare(self, shard: Any, group: Group) -> LocalColumns:
        """Lay the data out by columns, and work out the curvatures.

        Parameters
        ----------
        shard : Shard
            Rows of this rank.
        group : Group
            This rank among the others.

        Returns
        -------
        local : LocalColumns

        Raises
        ------
        ValueError
            If the penalties do not fit the columns.
        """
        for name in ("l1", "l2"):
            shape = getattr(self, name).shape
            if shape != (shard.n_features,):
                raise ValueError(
                    f"{name} has the shape {shape}, expected ({shard.n_features},), "
                    "one weight for each column of X"
                )
        local = self.lay_out(shard, group)
        self.total_weight = self.from_rows(group, local.weight_sum)
        self.n_rows = int(self.from_rows(group, float(len(local.y))))
        self._curvatures = self.curvatures(local, group)
        return local

    def prepare_schedule(
        self, shard: Any, group: Group, schedulers: Schedulers
    ) -> None:
        """Have the schedule look at the columns as the loss does.

        Parameters
        ----------
        shard, group, schedulers
            As in :meth:`Program.prepare_schedule`.
        """
        self._schedule.prepare(shard, group, schedulers, centered=self.fit_intercept)

    def schedule(self, model: np.ndarray, request: Request) -> Jobs:
        """Coordinates to update.

        Parameters
        ----------
        model : ndarray
            The model.
        request : Request
            What is asked for.

        Returns
        -------
        job : ndarray of int64
        """
        job = self._schedule(model, request.restricted(len(self.l1)))
        intercept = len(self.l1)
        if intercept in request.parameters and self.fit_intercept:
            if intercept not in request.pending:
                return np.append(job, intercept)
        return job

    def update(
        self, job: np.ndarray, local: LocalColumns, model: np.ndarray
    ) -> np.ndarray:
        """This rank's part of the gradient.

        Parameters
        ----------
        job : ndarray of int64 of shape (k,)
            Coordinates.
        local : LocalColumns
            Rows of this rank.
        model : ndarray
            The model.

        Returns
        -------
        sums : ndarray of float64 of shape (k, ...)
        """
        return self.gradient_sums(local, job)

    def aggregate(
        self, results: list[np.ndarray], jobs: Jobs, model: np.ndarray
    ) -> Change:
        """Change that minimises the bound of the objective along each coordinate.

        Parameters
        ----------
        results : list of ndarray of shape (k, ...)
            Parts of the gradient.
        jobs : ndarray of int64 of shape (k,)
            Coordinates.
        model : ndarray
            The model.

        Returns
        -------
        change : Change
            With sizes and delays.
        """
        return self.outcome(np.asarray(jobs), np.sum(results, axis=0), model)

    def outcome(self, job: np.ndarray, sums: np.ndarray, model: np.ndarray) -> Change:
        """The change of :meth:`step`, its size, and how soon to look again.

        A size is that of the effect on the predictions. The changes of the others have
        to lead a coordinate that stays zero to the threshold. They do not all point
        along its column: of `n` rows, ``1 / sqrt(n)`` is the cosine to be expected by
        chance.
        """
        change = self.step(job, sums, model)
        roots = np.sqrt(self._curvatures[job])
        size = np.linalg.norm(change.reshape(len(job), -1), axis=1) * roots
        l1, _ = self._penalties(job, 1)
        target = self._target(job, sums, model).reshape(len(job), -1)
        beyond = target if self.positive else np.abs(target)
        slack = np.maximum(l1 - beyond.max(axis=1), 0.0)
        slack[has_nonzero(model[job] + change)] = 0.0
        never = np.full(len(job), np.inf)  # a flat column feels nothing
        felt = roots / np.sqrt(max(1, self.n_rows))
        way = np.divide(slack, felt, out=never, where=felt > 0)
        return Change(change, size=size, delay=way**2)

    def step(self, job: np.ndarray, sums: np.ndarray, model: np.ndarray) -> np.ndarray:
        """Change that minimises the bound of the objective along each coordinate.

        Parameters
        ----------
        job : ndarray of int64 of shape (k,)
            Coordinates.
        sums : ndarray of float64 of shape (k, ...)
            Gradient of the summed loss of all rows.
        model : ndarray
            The model.

        Returns
        -------
        change : ndarray of float64 of shape (k, ...)
        """
        value = model[job]
        l1, l2 = self._penalties(job, value.ndim)
        curvature = as_column(self._curvatures[job], value.ndim)
        target = self._target(job, sums, model)
        shrunk = np.sign(target) * np.maximum(np.abs(target) - l1, 0.0)
        if self.positive:
            is_free = as_column(job >= len(self.l1), value.ndim)
            shrunk = np.where(is_free, shrunk, np.maximum(shrunk, 0.0))
        total = curvature + l2
        flat = curvature <= 0
        best = shrunk / np.where(flat, 1.0, total)
        # The loss does not depend on the coordinate: a penalty alone says what is best.
        best = np.where(flat, np.where(l1 + l2 > 0, 0.0, value), best)
        return np.asarray(best - value)

    def commit(
        self,
        local: LocalColumns,
        index: np.ndarray,
        change: np.ndarray,
        model: np.ndarray,
        extra: Any = None,
    ) -> None:
        """Bring the values of the rows up to date.

        Parameters
        ----------
        local : LocalColumns
            Rows of this rank.
        index : ndarray of int64 of shape (k,)
            Coordinates that have changed.
        change : ndarray of float64 of shape (k, ...)
            Their changes.
        model : ndarray
            The model.
        extra : None
            Without meaning here.
        """
        moved = has_nonzero(change)
        if moved.any():
            local.offset += self.add_effect(
                local.values, local, index[moved], change[moved]
            )

    def refresh(self, local: LocalColumns, model: np.ndarray) -> None:
        """Work the values of the rows out anew.

        Parameters
        ----------
        local : LocalColumns
            Rows of this rank.
        model : ndarray
            The model.
        """
        index = np.flatnonzero(has_nonzero(model))
        local.values = self.values_at_zero(local, model)
        local.offset = self.add_effect(local.values, local, index, model[index])

    def measure(self, local: LocalColumns, model: np.ndarray) -> np.ndarray:
        """Sum of the losses of this rank's rows.

        Parameters
        ----------
        local : LocalColumns
            Rows of this rank.
        model : ndarray
            The model.

        Returns
        -------
        sums : ndarray of float64 of shape (1,)
        """
        return np.array([self.loss_sum(local)])

    @abstractmethod
    def loss_sum(self, local: LocalColumns) -> float:
        """Weighted sum of the losses of this rank's rows."""

    def report(self, sums: np.ndarray, model: np.ndarray) -> dict[str, float]:
        """Objective, and the number of coordinates that are not zero.

        Parameters
        ----------
        sums : ndarray of float64 of shape (1,)
            Sum of the losses of all rows.
        model : ndarray
            The model.

        Returns
        -------
        report : dict
            "objective" and "n_nonzero".
        """
        coef = model[: len(self.l1)]
        l1, l2 = (as_column(p, coef.ndim) for p in (self.l1, self.l2))
        penalty = (l1 * np.abs(coef)).sum() + (l2 * coef**2).sum() / 2
        return {
            "objective": float(sums[0] / self.total_weight + penalty),
            "n_nonzero": int(np.count_nonzero(coef)),
        }

    def n_touched(self, local: LocalColumns) -> int:
        """Stored elements read so far, in gradients and in values of the rows.

        Parameters
        ----------
        local : LocalColumns
            Rows of this rank.

        Returns
        -------
        n_touched : int
        """
        return local.n_touched

    def _target(
        self, job: np.ndarray, sums: np.ndarray, model: np.ndarray
    ) -> np.ndarray:
        """What the threshold is held against, of shape (k, ...)."""
        curvature = as_column(self._curvatures[job], model.ndim)
        return np.asarray(curvature * model[job] - sums / self.total_weight)

    def _begin(self, shape: tuple[int, ...]) -> np.ndarray:
        """The model to begin with."""
        if self.start is None:
            return np.zeros(shape)
        start = np.array(self.start, dtype=np.float64)
        if start.shape != shape:
            raise ValueError(f"start has the shape {start.shape}, expected {shape}")
        return start

    def _penalties(self, job: np.ndarray, ndim: int) -> tuple[np.ndarray, np.ndarray]:
        """Weights of the penalties of some coordinates, 0 for the intercept."""
        is_feature = job < len(self.l1)
        features = np.where(is_feature, job, 0)
        l1, l2 = (
            np.where(is_feature, p[features], 0.0) if len(p) else np.zeros(len(job))
            for p in (self.l1, self.l2)
        )
        return as_column(l1, ndim), as_column(l2, ndim)


def has_nonzero(values: np.ndarray) -> np.ndarray:
    """Which rows of an array, or elements of a vector, are not zero."""
    return np.asarray(values != 0 if values.ndim == 1 else values.any(axis=1))


def as_column(values: np.ndarray, ndim: int) -> np.ndarray:
    """Values of parameters in a shape that goes with models of `ndim` dimensions."""
    return values if ndim == 1 else values[:, np.newaxis]
