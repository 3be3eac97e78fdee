"""Refinements that find the optimum at once, from products of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import broadcast
from dask_ma.engine import Record, Work
from dask_ma.linear._model import LinearModel
from dask_ma.linear.refine._best import Best
from dask_ma.linear.refine._choice import may_have_near_rows
from dask_ma.linear.refine._coordinates import Coordinates
from dask_ma.linear.refine._evaluation import Request
from dask_ma.linear.refine._few_rows import Optimum, few_rows_round, find_optimum
from dask_ma.linear.refine._near_rows import Plan, find_by_near_rows, plan_near_rows
from dask_ma.linear.refine._refinement import Refinable, Refinement, start_of
from dask_ma.linear.refine._search import ZERO, Verdict

# What rounding of the values of few rows may leave of the objective: kinks lie at some
# of them, and no step could bring the objective nearer.
_ROUNDING = 1e-8


def plan_of(rounds: Refinable) -> Plan | None:
    """What is known of rows near their margins; a collective call.

    Parameters
    ----------
    rounds : Refinable
        Rounds that have ended.

    Returns
    -------
    plan : Plan or None
        None where others take less, or have begun.
    """
    problem, params = rounds.problem, rounds.params
    if rounds.n_refined or not may_have_near_rows(params, problem):
        return None
    with rounds.log.computing():
        return plan_near_rows(rounds.context.group, problem, params, start_of(rounds))


class FewRowsRefinement(Refinement):
    """A round in which rank 0 finds the optimum of few rows, before steps or after.

    The first one may be that of few rows near their margins.
    """

    def __init__(self, *args: Any, plan: Plan | None = None) -> None:
        super().__init__(*args)
        self._plan = plan

    @property
    def _is_due(self) -> bool:
        before = self._before
        if self._plan is not None and not before.n_refined:
            return True
        return before.n_refined == few_rows_round(before.params, before.problem)

    def round(self) -> Work:
        if not self._is_due:
            return super().round()
        start = start_of(self._before)
        coordinates = self._coordinates(start)
        with self.log.computing():
            self._optimum = self._find_optimum(start, coordinates)
        points, objectives, _ = self._optimum
        self._best = Best(start, coordinates)
        self._best.objectives[:] = objectives
        # Of kinked losses no derivative is asked for, and any width will do.
        widths, none = np.full(len(points), coordinates.spread), np.zeros(len(points))
        columns = np.zeros((len(points), 0), dtype=np.intp)
        problems = np.arange(len(points))
        self._request = Request(problems, points, widths, none, columns)
        # Rounding may have made it another one than the products tell.
        self._parts = self._prepare(self._evaluate())
        return self._rows.work()

    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        if not self._is_due:
            super().record(record, sums)
            return
        best, before, optimum = self._best, self._before, self._optimum
        assert best is not None
        best.update(self._request, self._find(sums))
        penalties = best.coordinates.penalties(self._request.points)
        mean = float(best.objectives.mean())
        verdict = self._judge(mean, optimum.bound(penalties))
        record["objective"], record["excess"] = mean, verdict.excess
        self._is_done = before.has_converged = verdict.is_converged
        before.current = best.model
        before.n_refined += 1
        before.n_rounds = self.n_rounds
        if not verdict.is_converged:  # steps begin anew from the better one
            self._best = self._next = None

    def _find_optimum(self, start: LinearModel, coordinates: Coordinates) -> Optimum:
        """Have rank 0 find it; a collective call."""
        group, before = self.context.group, self._before
        problem, params, plan = before.problem, before.params, self._plan
        if plan is not None and not before.n_refined:
            return find_by_near_rows(group, problem, params, coordinates, start, plan)
        return find_optimum(group, problem, params, coordinates, start, self._add_up)

    def _judge(self, mean: float, bound: float) -> Verdict:
        """What rank 0 makes of the objective, and of what no model is below."""
        start = float(self._optimum.before.mean())
        least = ZERO * start if np.isfinite(start) else 0.0
        gap = max(0.0, mean - bound) if np.isfinite(mean - bound) else np.inf
        tol = max(self._before.params.refine_tol, _ROUNDING)
        is_near = gap <= tol * max(abs(mean), least)
        is_converged = bool(is_near and np.isfinite(gap))
        excess = gap / abs(mean) if mean else 0.0
        told = (excess, is_converged, is_converged)
        return Verdict(*broadcast(self.context.group, told))
