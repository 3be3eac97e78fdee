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

from dask_ma.comm import Group, allreduce
from dask_ma.layouts._column_design import ColumnDesign
from dask_ma.layouts._columns import ColumnShard, to_columns
from dask_ma.layouts._design import Design
from dask_ma.schmp.coordinate._coordinate import CoordinateDescent, has_nonzero
from dask_ma.schmp.coordinate._rows import LocalRows
from dask_ma.schmp.runtime._schedulers import Jobs


class ColumnDescent(CoordinateDescent):
    """Coordinate descent for a penalised linear model, with columns shared out.

    Objective, parameters and model are those of :class:`CoordinateDescent`. The values
    of the rows are those of the rows of all ranks, rank by rank, and the same on every
    rank. Every rank schedules its own coordinates, the last one the intercept, too: as
    many as there are ranks, at most ``pipeline_depth``, work side by side. A schedule
    that looks at dependencies tells the other ranks which columns it has chosen, and
    leaves out what depends on theirs.

    Parameters
    ----------
    loss, schedule, l1, l2, positive, fit_intercept, start
        As in :class:`CoordinateDescent`.

    See Also
    --------
    CoordinateDescent : The same with rows shared out.
    """

    def _make_design(self, data: Any, group: Group) -> Design:
        if not isinstance(data, ColumnShard):
            data = to_columns(group, data)
        return ColumnDesign(group, data)

    def announces(self) -> bool:
        """Whether the schedule wants to know what other ranks work on."""
        return self._schedule.announces()

    def announce(self, job: np.ndarray) -> Any:
        """What the schedules of other ranks are told of a job of this one."""
        # The intercept depends on no centred column.
        return self._schedule.announce(job[job < len(self.l1)])

    def own_parameters(self, local: LocalRows, n_parameters: int) -> range:
        """Coordinates of the columns of this rank; the last has the intercept, too."""
        group, columns = local.design.group, local.design.shard
        is_last = group.rank == group.size - 1
        return range(columns.start, n_parameters if is_last else columns.stop)

    def update(self, job: np.ndarray, local: LocalRows, model: np.ndarray) -> Any:
        """Best change of this rank's coordinates, and what it does to the rows."""
        outcome = self.outcome(job, self._rows.gradient_sums(local, job), model)
        change = outcome.values
        moved = has_nonzero(change)
        if not moved.any():
            return outcome
        effect = np.zeros_like(local.values)
        offset = self._rows.add_effect(effect, local, job[moved], change[moved])
        return outcome._replace(extra=[_packed(effect), offset])

    def aggregate(self, results: list[Any], jobs: Jobs, model: np.ndarray) -> Any:
        """What the only rank that has worked on the job says."""
        [change] = results
        return change

    def commit(
        self,
        local: LocalRows,
        index: np.ndarray,
        change: np.ndarray,
        model: np.ndarray,
        extra: Any = None,
    ) -> None:
        """Bring the values of the rows up to date."""
        if extra is not None:
            (rows, effect), offset = extra
            if rows is None:
                local.values += effect
            else:
                local.values[rows] += effect
            local.offset += offset

    def refresh(self, local: LocalRows, model: np.ndarray) -> None:
        """Work the values of the rows out anew; a collective call."""
        own = self.own_parameters(local, len(model))
        index = own.start + np.flatnonzero(has_nonzero(model[own.start : own.stop]))
        local.values = self._rows.at_zero(local, model)
        effect = np.zeros_like(local.values)
        offset = self._rows.add_effect(effect, local, index, model[index])
        effect, total = allreduce(local.design.group, [effect, np.array(offset)])
        local.values += effect
        local.offset = float(total)


def _packed(effect: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """Rows and their values where few are not zero; otherwise None and all values."""
    rows = np.flatnonzero(has_nonzero(effect))
    if 2 * len(rows) > len(effect):
        return None, effect
    return rows, effect[rows]
