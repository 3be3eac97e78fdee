"""Coordinate descent for penalised linear models (section 4.1 of the paper)."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import Group
from dask_ma.kernels import Loss
from dask_ma.layouts._design import Design
from dask_ma.layouts._row_design import RowDesign
from dask_ma.schmp.coordinate._rows import (
    LocalRows,
    Margins,
    Residuals,
    RowValues,
    as_column,
)
from dask_ma.schmp.runtime._program import Change, Program, Request, Schedule
from dask_ma.schmp.runtime._schedulers import Jobs, Schedulers


class CoordinateDescent(Program):
    """Coordinate descent for a penalised linear model, with rows shared out.

    Each update minimises an upper bound of the objective along one coordinate, with the
    others where they are::

        sum_i s_i loss_i / sum_i s_i + sum_j l1_j |b_j| + sum_j l2_j b_j^2 / 2

    For the squared error that is the objective itself. The model has the shape
    (n_features,) then, and the intercept is what makes the mean residual zero. For
    other losses the model has the intercept in a last row, (n_features + 1,), or
    (n_features + 1, n_outputs) for several outputs; with an intercept, that row is the
    one for columns whose means are taken out, and :meth:`intercept` gives the one for
    columns as they are.

    Parameters
    ----------
    loss : Loss
        Loss of a row, with bounded curvature; see :mod:`dask_ma.losses`. Where
        its targets are classes, `y` holds their codes from 0 on; coefficients of the
        second class come out for two classes.
    schedule : Schedule
        Which coordinates to update next.
    l1, l2 : ndarray of float64 of shape (n_features,)
        Weights of the penalties, not negative.
    positive : bool, default=False
        Whether coefficients must not be negative.
    fit_intercept : bool, default=True
        Whether there is an intercept; it is never penalised.
    start : ndarray of shape of the model, default=None
        Model to begin with, for columns as they are; zeros if None.

    Attributes
    ----------
    total_weight : float
        Sum of the weights of the rows of all ranks; set by :meth:`prepare`.
    n_rows : int
        Number of these rows; set by :meth:`prepare`.

    Raises
    ------
    ValueError
        If there is no bound for the curvature of the loss.

    See Also
    --------
    ColumnDescent : The same with columns shared out.
    """

    def __init__(
        self,
        loss: Loss,
        schedule: Schedule,
        l1: np.ndarray,
        l2: np.ndarray,
        *,
        positive: bool = False,
        fit_intercept: bool = True,
        start: np.ndarray | None = None,
    ) -> None:
        if not np.isfinite(loss.smoothness):
            raise ValueError(
                f"loss must have a bounded second derivative, but the smoothness of "
                f"{type(loss).__name__} is {loss.smoothness}; set it, or choose a "
                "smooth loss"
            )
        self.loss = loss
        self._schedule = schedule
        self.l1 = np.asarray(l1, dtype=np.float64)
        self.l2 = np.asarray(l2, dtype=np.float64)
        self.positive = positive
        self.fit_intercept = fit_intercept
        self.start = start
        self.n_rows = 0
        kind = Residuals if loss.is_quadratic else Margins
        self._rows: RowValues = kind(loss, fit_intercept)
        self._curvatures = np.zeros(0)
        self._data: Any = None  # what the schedule looks at

    @property
    def total_weight(self) -> float:
        """Sum of the weights of the rows of all ranks."""
        return self._rows.total_weight

    @property
    def column_means(self) -> np.ndarray:
        """Weighted means of the columns; zeros without an intercept."""
        return self._rows.column_means

    def _make_design(self, data: Any, group: Group) -> Design:
        """The features of this rank; a collective call."""
        return RowDesign(group, data)

    def prepare(self, shard: Any, group: Group) -> LocalRows:
        """Lay the data out by columns, and work out the curvatures.

        Parameters
        ----------
        shard : Shard, ColumnShard or Design
            Rows of this rank; or what the layout of the program makes of them, which is
            not copied.
        group : Group
            This rank among the others.

        Returns
        -------
        local : LocalRows

        Raises
        ------
        ValueError
            If the penalties do not fit the columns, or there are no targets.
        """
        for name in ("l1", "l2"):
            shape = getattr(self, name).shape
            if shape != (shard.n_features,):
                raise ValueError(
                    f"{name} has the shape {shape}, expected ({shard.n_features},), "
                    "one weight for each column of X"
                )
        is_laid_out = isinstance(shard, Design)
        design = shard if is_laid_out else self._make_design(shard, group)
        local = LocalRows.of(design, self.loss)
        self.n_rows = int(local.total(float(len(local.targets))))
        self._curvatures = self._rows.prepare(local)
        self._data = design.shard
        return local

    def prepare_schedule(
        self, shard: Any, group: Group, schedulers: Schedulers
    ) -> None:
        """Have the schedule look at the columns as the loss does."""
        self._schedule.prepare(
            self._data, group, schedulers, centered=self.fit_intercept
        )

    def restrain(self) -> bool:
        """Have the schedule choose less at once; whether that changes anything."""
        return self._schedule.restrain()

    def initial_model(self, local: LocalRows, group: Group) -> np.ndarray:
        """Model to begin with."""
        shape = self._rows.model_shape(local.design.n_features)
        if self.start is None:
            return np.zeros(shape)
        start = np.array(self.start, dtype=np.float64)
        if start.shape != shape:
            raise ValueError(f"start has the shape {start.shape}, expected {shape}")
        return self._rows.centred(start)

    def schedule(self, model: np.ndarray, request: Request) -> Jobs:
        """Coordinates to update."""
        job = self._schedule(model, request.restricted(len(self.l1)))
        intercept = len(self.l1)
        if intercept in request.parameters and self.fit_intercept:
            if intercept not in request.pending:
                return np.append(job, intercept)
        return job

    def update(
        self, job: np.ndarray, local: LocalRows, model: np.ndarray
    ) -> np.ndarray:
        """This rank's part of the gradient."""
        return self._rows.gradient_sums(local, job)

    def aggregate(
        self, results: list[np.ndarray], jobs: Jobs, model: np.ndarray
    ) -> Change:
        """Change that minimises the bound of the objective along each coordinate."""
        return self.outcome(np.asarray(jobs), np.sum(results, axis=0), model)

    def outcome(self, job: np.ndarray, sums: np.ndarray, model: np.ndarray) -> Change:
        """The change of :meth:`step`, its size, and how soon to look again.

        A size is that of the effect on the predictions. The changes of the others have
        to lead a coordinate that stays zero to the threshold. They do not all point
        along its column: of `n` rows, ``1 / sqrt(n)`` is the cosine to be expected by
        chance.

        Parameters
        ----------
        job, sums, model
            As in :meth:`step`.

        Returns
        -------
        change : Change
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
        local: LocalRows,
        index: np.ndarray,
        change: np.ndarray,
        model: np.ndarray,
        extra: Any = None,
    ) -> None:
        """Bring the values of the rows up to date."""
        moved = has_nonzero(change)
        if moved.any():
            local.offset += self._rows.add_effect(
                local.values, local, index[moved], change[moved]
            )

    def refresh(self, local: LocalRows, model: np.ndarray) -> None:
        """Work the values of the rows out anew."""
        index = np.flatnonzero(has_nonzero(model))
        local.values = self._rows.at_zero(local, model)
        local.offset = self._rows.add_effect(local.values, local, index, model[index])

    def measure(self, local: LocalRows, model: np.ndarray) -> np.ndarray:
        """Sum of the losses of this rank's rows; of one rank if all have all rows."""
        is_counted = local.design.is_counted()
        return np.array([self._rows.loss_sum(local) if is_counted else 0.0])

    def report(self, sums: np.ndarray, model: np.ndarray) -> dict[str, float]:
        """Objective, and the number of coordinates that are not zero."""
        coef = model[: len(self.l1)]
        l1, l2 = (as_column(p, coef.ndim) for p in (self.l1, self.l2))
        penalty = (l1 * np.abs(coef)).sum() + (l2 * coef**2).sum() / 2
        return {
            "objective": float(sums[0] / self.total_weight + penalty),
            "n_nonzero": int(np.count_nonzero(coef)),
        }

    def n_touched(self, local: LocalRows) -> int:
        """Stored elements read so far, in gradients and in values of the rows."""
        return local.store.n_touched

    def intercept(self, model: np.ndarray) -> np.ndarray:
        """Intercept of a model for columns as they are.

        Parameters
        ----------
        model : ndarray
            The model.

        Returns
        -------
        intercept : ndarray of float64 of shape () or (n_outputs,)
            0 without an intercept.
        """
        return self._rows.intercept(model)

    def centred(self, model: np.ndarray) -> np.ndarray:
        """The model for columns whose means are taken out, from one for plain columns.

        Parameters
        ----------
        model : ndarray
            A model.

        Returns
        -------
        model : ndarray
        """
        return self._rows.centred(model)

    def predictions(self, local: LocalRows, origin: float = 0.0) -> np.ndarray:
        """What the model predicts for this rank's rows.

        Parameters
        ----------
        local : LocalRows
            Rows of this rank.
        origin : float, default=0.0
            Number that is taken from the predictions, without rounding them first.

        Returns
        -------
        predictions : ndarray of float64 of shape (n_rows,) or (n_rows, n_outputs)
        """
        return self._rows.predictions(local, origin)

    def _target(
        self, job: np.ndarray, sums: np.ndarray, model: np.ndarray
    ) -> np.ndarray:
        """What the threshold is held against, of shape (k, ...)."""
        curvature = as_column(self._curvatures[job], model.ndim)
        return np.asarray(curvature * model[job] - sums / self.total_weight)

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
