"""Rounds of scheduled coordinate descent by the dynamic engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.engine import RankContext, RoundLog
from dask_ma.schmp import schedules
from dask_ma.schmp._certificate import Solver
from dask_ma.schmp._column_design import ColumnDesign
from dask_ma.schmp._column_programs import ColumnLeastSquares, ColumnLogistic
from dask_ma.schmp._coordinate import CoordinateDescent
from dask_ma.schmp._engine import DynamicEngine
from dask_ma.schmp._least_squares import LeastSquares
from dask_ma.schmp._logistic import Logistic
from dask_ma.schmp._params import SchMPParams
from dask_ma.schmp._problem import Objective, Sparse
from dask_ma.schmp._program import Schedule
from dask_ma.schmp._working_set import WorkingSets

_FEWEST_ITERATIONS = 16  # of a round
_MOST_ITERATIONS = 1000


class Descent(Solver):
    """Coordinate descent, some iterations to a round; making one is a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    objective : Objective
        What to minimise.
    data : Shard or ColumnShard
        Rows or columns of this rank, with the targets of the objective.
    params : SchMPParams
        Parameters of the fit.
    log : RoundLog
        Where computing is timed.
    state : dict, default=None
        What :meth:`state` has given, to go on from.
    """

    def __init__(
        self,
        context: RankContext,
        objective: Objective,
        data: Any,
        params: SchMPParams,
        log: RoundLog,
        state: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(objective, Sparse.empty(objective.n_outputs), log)
        self._engine = DynamicEngine(
            context,
            make_program(objective, params),
            data,
            pipeline_depth=params.pipeline_depth,
            n_schedulers=params.n_schedulers,
            log=log,
            state=state,
        )
        wanted = -(-objective.design.n_features // params.n_candidates)
        self._n_iterations = min(max(wanted, _FEWEST_ITERATIONS), _MOST_ITERATIONS)
        self._take_over()

    def improve(self) -> None:
        counts = self._engine.run(self._n_iterations)
        self.n_touched += counts.n_touched
        self._take_over()

    def state(self) -> dict[str, Any]:
        return self._engine.state()

    def shown_intercept(self) -> np.ndarray:
        program = self._engine.program
        if isinstance(program, LeastSquares) and self.objective.penalty.l1.all():
            return np.array([program.intercept(self._engine.model)])
        return super().shown_intercept()

    def _take_over(self) -> None:
        """Take the model, and the margins of the rows, from the engine."""
        self._read_engine()
        if not self.objective.penalty.l1.all():
            # The gap is a bound only where coefficients without L1 are at their best.
            settled = WorkingSets(self.objective, self.model, self.log)
            self.n_touched += settled.n_touched

    def _read_engine(self) -> None:
        objective, program, engine = self.objective, self._engine.program, self._engine
        coef = engine.model[: objective.design.n_features]
        flat = coef.ravel()
        self.model.coordinates = np.flatnonzero(flat)
        self.model.coef = flat[self.model.coordinates].astype(np.float64)
        if isinstance(program, LeastSquares):
            residuals = program.residuals(engine.local)
            objective.margins = (objective.loss.y - residuals)[:, np.newaxis]
            return
        margins = engine.local.values
        objective.margins = margins.reshape(len(margins), -1).copy()
        assert isinstance(program, Logistic)
        self.model.intercept = np.atleast_1d(program.intercept(engine.model)).copy()
        # The certificate needs the best intercept for the coefficients.
        objective.settle_intercept(self.model)


def make_program(objective: Objective, params: SchMPParams) -> CoordinateDescent:
    """The program of coordinate descent for an objective."""
    penalty = objective.penalty
    arguments: dict[str, Any] = {
        "positive": penalty.positive,
        "fit_intercept": params.fit_intercept,
        "start": _start(objective, params),
    }
    schedule = make_schedule(params)
    by_columns = isinstance(objective.design, ColumnDesign)
    if not params.is_classifier:
        squares = ColumnLeastSquares if by_columns else LeastSquares
        return squares(schedule, penalty.l1, penalty.l2, **arguments)
    arguments["n_classes"] = max(2, objective.n_outputs)
    logistic = ColumnLogistic if by_columns else Logistic
    return logistic(schedule, penalty.l1, penalty.l2, **arguments)


def make_schedule(params: SchMPParams) -> Schedule:
    """The schedule of a name."""
    n = params.n_candidates
    if params.schedule == "dynamic":
        return schedules.Dynamic(n, params.dependency_threshold)
    kinds = {
        "priority": schedules.Priority,
        "random": schedules.Random,
        "cyclic": schedules.Cyclic,
    }
    schedule: Schedule = kinds[params.schedule](n)
    return schedule


def _start(objective: Objective, params: SchMPParams) -> np.ndarray | None:
    """Model to start from, in the shape that the programs have."""
    if params.start is None:
        return None
    n, K = objective.design.n_features, objective.n_outputs
    coef = np.zeros((n, K))
    coef.ravel()[params.start["coordinates"]] = params.start["coef"]
    if not params.is_classifier:
        return coef[:, 0]
    model = np.vstack([coef, params.start["intercept"]])
    return model[:, 0] if K == 1 else model
