"""Coordinate descent where ranks have all rows of some columns each.

.. code-block:: text

   values of the rows    on every rank, the same on all
   columns 0 1 2         on rank 0, which schedules and updates coefficients 0 1 2
   columns 3 4 5         on rank 1, ...

A rank works its steps out without asking anybody, and then tells the others what they
do to the values of the rows: to the residuals, or to the margins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import Group, allgather, allreduce
from dask_ma.layouts._columns import ColumnShard, to_columns
from dask_ma.schmp.coordinate._column_store import LocalColumns
from dask_ma.schmp.coordinate._coordinate import CoordinateDescent, has_nonzero
from dask_ma.schmp.coordinate._least_squares import LeastSquares
from dask_ma.schmp.coordinate._logistic import Logistic
from dask_ma.schmp.runtime._schedulers import Jobs, Schedulers


class ColumnDescent(CoordinateDescent):
    """What makes a program of coordinate descent one for columns; see subclasses.

    Comes before that program among the bases. The values of the rows are those of the
    rows of all ranks, in the order of :class:`ColumnShard`, and the same on every rank.
    Every rank schedules its own coordinates: as many as there are ranks, at most
    ``pipeline_depth``, work side by side. A schedule that looks at dependencies tells
    the other ranks which columns it has chosen, and leaves out what depends on theirs.
    """

    _group: Group
    _columns: ColumnShard

    def lay_out(self, shard: Any, group: Group) -> LocalColumns:
        """The columns of this rank; a collective call.

        Parameters
        ----------
        shard : ColumnShard or Shard
            Columns of this rank, which are not copied; or its rows, to be exchanged for
            columns.
        group : Group
            This rank among the others.

        Returns
        -------
        local : LocalColumns

        Raises
        ------
        ValueError
            If there are no targets.
        """
        if not isinstance(shard, ColumnShard):
            shard = to_columns(group, shard)
        if shard.y is None and shard.n_rows:
            raise ValueError("coordinate descent needs targets y, but there are none")
        self._group, self._columns = group, shard
        return LocalColumns.of_columns(shard)

    def from_columns(self, group: Group, values: np.ndarray) -> np.ndarray:
        """Lay the values of the columns of all ranks end to end; a collective call.

        Parameters
        ----------
        group : Group
            This rank among the others.
        values : ndarray of shape (n_columns,)
            Those of the columns of this rank.

        Returns
        -------
        values : ndarray of shape (n_features,)
        """
        return np.concatenate(allgather(group, values))

    def from_rows(self, group: Group, value: float) -> float:
        """The sum itself, as all rows are here.

        Parameters
        ----------
        group : Group
            This rank among the others.
        value : float
            Sum over the rows.

        Returns
        -------
        value : float
        """
        return value

    def prepare_schedule(
        self, shard: Any, group: Group, schedulers: Schedulers
    ) -> None:
        """Have the schedule look at the columns of this rank.

        Parameters
        ----------
        shard : ColumnShard or Shard
            What :meth:`lay_out` was given.
        group : Group
            This rank among the others.
        schedulers : Schedulers
            Who schedules what.
        """
        super().prepare_schedule(self._columns, group, schedulers)

    def announces(self) -> bool:
        """Whether the schedule wants to know what other ranks work on.

        Returns
        -------
        announces : bool
            What the schedule says.
        """
        return self._schedule.announces()

    def announce(self, job: np.ndarray) -> Any:
        """What the schedules of other ranks are told of a job of this one.

        Parameters
        ----------
        job : ndarray of int64 of shape (k,)
            Coordinates; the intercept depends on no centred column.

        Returns
        -------
        announcement : object
            See :meth:`Schedule.announce`.
        """
        return self._schedule.announce(job[job < len(self.l1)])

    def own_parameters(self, local: LocalColumns, n_parameters: int) -> range:
        """Coordinates of the columns of this rank; the last has the intercept, too.

        Parameters
        ----------
        local : LocalColumns
            Columns of this rank.
        n_parameters : int
            Number of coordinates, with the intercept.

        Returns
        -------
        parameters : range
        """
        is_last = self._group.rank == self._group.size - 1
        stop = n_parameters if is_last else self._columns.stop
        return range(self._columns.start, stop)

    def update(self, job: np.ndarray, local: LocalColumns, model: np.ndarray) -> Any:
        """Best change of this rank's coordinates, and what it does to the rows.

        Parameters
        ----------
        job : ndarray of int64 of shape (k,)
            Coordinates.
        local : LocalColumns
            Columns of this rank.
        model : ndarray
            The model.

        Returns
        -------
        change : Change
        """
        outcome = self.outcome(job, self.gradient_sums(local, job), model)
        change = outcome.values
        moved = has_nonzero(change)
        if not moved.any():
            return outcome
        effect = np.zeros_like(local.values)
        offset = self.add_effect(effect, local, job[moved], change[moved])
        return outcome._replace(extra=[_packed(effect), offset])

    def aggregate(self, results: list[Any], jobs: Jobs, model: np.ndarray) -> Any:
        """What the only rank that has worked on the job says.

        Parameters
        ----------
        results : list of Change
            One.
        jobs : ndarray of int64 of shape (k,)
            Coordinates.
        model : ndarray
            The model.

        Returns
        -------
        change : Change
        """
        [change] = results
        return change

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
            Columns of this rank.
        index : ndarray of int64 of shape (k,)
            Coordinates that have changed.
        change : ndarray of float64 of shape (k, ...)
            Their changes.
        model : ndarray
            The model.
        extra : list, default=None
            What that does to the values and their offset; None if nothing.
        """
        if extra is not None:
            (rows, effect), offset = extra
            if rows is None:
                local.values += effect
            else:
                local.values[rows] += effect
            local.offset += offset

    def refresh(self, local: LocalColumns, model: np.ndarray) -> None:
        """Work the values of the rows out anew; a collective call.

        Parameters
        ----------
        local : LocalColumns
            Columns of this rank.
        model : ndarray
            The model.
        """
        own = self.own_parameters(local, len(model))
        index = own.start + np.flatnonzero(has_nonzero(model[own.start : own.stop]))
        local.values = self.values_at_zero(local, model)
        effect = np.zeros_like(local.values)
        offset = self.add_effect(effect, local, index, model[index])
        effect, total = allreduce(self._group, [effect, np.array(offset)])
        local.values += effect
        local.offset = float(total)

    def measure(self, local: LocalColumns, model: np.ndarray) -> np.ndarray:
        """Sum of the losses of all rows, on the first rank; 0 on the others.

        Parameters
        ----------
        local : LocalColumns
            Columns of this rank.
        model : ndarray
            The model.

        Returns
        -------
        sums : ndarray of float64 of shape (1,)
        """
        is_first = self._group.rank == 0
        return super().measure(local, model) if is_first else np.zeros(1)


class ColumnLeastSquares(ColumnDescent, LeastSquares):
    """Coordinate descent for the squared loss with columns shared out.

    Objective, parameters and model are those of :class:`LeastSquares`.

    See Also
    --------
    LeastSquares : The same with rows shared out.
    """


class ColumnLogistic(ColumnDescent, Logistic):
    """Coordinate descent for the logistic and multinomial loss with columns shared out.

    Objective, parameters and model are those of :class:`Logistic`. The intercept
    belongs to the last rank.

    See Also
    --------
    Logistic : The same with rows shared out.
    """


def _packed(effect: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """Rows and their values where few are not zero; otherwise None and all values."""
    rows = np.flatnonzero(has_nonzero(effect))
    if 2 * len(rows) > len(effect):
        return None, effect
    return rows, effect[rows]
