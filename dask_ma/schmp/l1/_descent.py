"""Rounds of scheduled coordinate descent by the dynamic engine."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from dask_ma import _config
from dask_ma.engine import RankContext, RoundLog
from dask_ma.layouts._column_design import ColumnDesign
from dask_ma.schmp.coordinate._column_descent import ColumnDescent
from dask_ma.schmp.coordinate._coordinate import CoordinateDescent
from dask_ma.schmp.coordinate._rows import as_column
from dask_ma.schmp.l1._params import SchMPParams
from dask_ma.schmp.l1._problem import Objective, Sparse
from dask_ma.schmp.l1._solver import DualityGap, Solver
from dask_ma.schmp.l1._working_set import WorkingSets
from dask_ma.schmp.runtime._dynamic import DynamicEngine
from dask_ma.schmp.runtime._program import Change

_FEWEST_ITERATIONS = 16  # of a round
_MOST_ITERATIONS = 1000
_MOST_AT_ONCE = 128  # iterations, after which it is seen whether they diverge
_DIVERGED = 1e30  # largest coefficient; its square is far from overflow
_MOST_GROWTH = 1e100  # of coefficients in iterations at once; squares do not overflow
_SLOW = 0.5  # of the gap: more than that left of it after a round is slow
_FEWEST_NEW = 100  # coefficients that may come into the model after a rise
_MAX_NEWTON = 10
_SHARE = 0.1  # of the gap asked, which coefficients are solved for to


class Descent(Solver):
    """Coordinate descent, some iterations to a round; making one is a collective call.

    Where columns are correlated, coordinate descent soon finds which coefficients are
    not zero, but takes very long to find their values. With ``polish=True``, after a
    round that leaves more than half of the gap, these coefficients are solved for
    together, and the next round goes on from there, first with those that would change
    most. If the objective has
    risen, the model before the round, with some of the coefficients that were updated,
    stands in for the one after it. So the objective is no higher after a slow round
    than before, and only what the schedule has chosen comes into the model. A model of
    more coefficients than working sets may have (dask-ma.schmp.max-working-set) is left
    as it is. With ``polish=False``, a round after which the objective is higher is
    undone and made anew with fewer updates at once, if the schedule knows how to.

    Parameters
    ----------
    context : RankContext
        This rank.
    objective : Objective
        What to minimise.
    params : SchMPParams
        Parameters of the fit.
    log : RoundLog
        Where computing is timed.
    state : dict, default=None
        What :meth:`state_dict` has given, to go on from.
    """

    _advice = (
        "coefficients that were updated at the same time have made steps too long "
        "together; choose the schedule 'working_set' or 'dynamic', or lower "
        "n_candidates, pipeline_depth or dependency_threshold; or scale the features"
    )

    def __init__(
        self,
        context: RankContext,
        objective: Objective,
        params: SchMPParams,
        log: RoundLog,
        state: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(objective, Sparse.empty(objective.n_outputs), log)
        self._tol = params.tol
        self._polishes = params.polish
        self.polished = False
        self._limit = _config.get_count("schmp.max-working-set")
        self._is_checked = False
        assert params.schedule is not None
        n_candidates = params.schedule.n_candidates
        self._engine = DynamicEngine(
            context,
            make_program(objective, params),
            objective.design,
            pipeline_depth=params.schedule.pipeline_depth,
            n_schedulers=params.schedule.n_schedulers,
            log=log,
            state=state,
        )
        self._n_restraints = 0
        for _ in range(0 if state is None else int(state["n_restraints"])):
            self._restrain()
        wanted = -(-objective.design.n_features // n_candidates)
        self._n_iterations = min(max(wanted, _FEWEST_ITERATIONS), _MOST_ITERATIONS)
        if objective.loss.is_quadratic:
            # Worked out by and by, they would have other bits where a fit goes on.
            objective.take_means(self._program.column_means)
        self._n_at_once = _iterations_at_once(n_candidates, self._engine.pipeline_depth)
        self._take_over()

    def improve(self) -> None:
        """Make a round, and solve for its coefficients if it was slow; collective."""
        self.polished = False
        if not self._polishes:
            self._descend_safely()
            return
        before, certificate = Sparse(**self.model.state_dict()), self._certificate
        changes = self._next_changes()
        self._descend()
        self._take_over()
        found = self.check()
        if found.gap <= _SLOW * certificate.gap:
            return
        start = self.model
        if found.objective >= certificate.objective:
            values = changes.values.reshape(len(changes.values), -1)
            start = _extended(before, start.coordinates, values)
        if len(start.coordinates) <= self._limit:
            self._finish(start)
            self.polished = True

    def check(self) -> DualityGap:
        """Objective and duality gap, worked out once for each model; collective."""
        if not self._is_checked:
            super().check()
            self._is_checked = True
        return self._certificate

    @property
    def _target(self) -> float:
        """Gap that coefficients are solved to, from the last certificate."""
        value = self._certificate.objective
        return _SHARE * self.objective.gap_asked(self._tol, value)

    @property
    def _program(self) -> CoordinateDescent:
        """The engine's own copy of the program."""
        return cast(CoordinateDescent, self._engine.program)

    @property
    def n_touched(self) -> int:
        return self._design.n_touched + self._engine.n_touched

    def state_dict(self) -> dict[str, Any]:
        return {**self._engine.state_dict(), "n_restraints": self._n_restraints}

    def shown_intercept(self) -> np.ndarray:
        objective = self.objective
        if objective.loss.is_quadratic and objective.penalty.l1.all():
            return np.array([self._program.intercept(self._engine.model)])
        return super().shown_intercept()

    def _descend_safely(self) -> None:
        """Make a round, anew with fewer updates at once if it leads up; collective."""
        highest = self._certificate.objective + self._target
        state = self._engine.state_dict()
        self._descend()
        self._take_over()
        while self.check().objective > highest and self._restrain():
            self._engine.load_state_dict(state)
            self._descend()
            self._take_over()

    def _restrain(self) -> bool:
        """Have the schedule choose less at once; whether that changes anything."""
        is_restrained = self._program.restrain()
        self._n_restraints += is_restrained
        return is_restrained

    def _descend(self) -> None:
        """Make the iterations of a round, or fewer if they diverge; collective."""
        n_left = self._n_iterations
        while n_left > 0:
            n_next = min(n_left, self._n_at_once)
            self._engine.run(n_next)
            n_left -= n_next
            # The model is the same on all ranks.
            if np.abs(self._engine.model).max() > _DIVERGED:
                break

    def _finish(self, start: Sparse) -> None:
        """Solve for all coefficients of a model, and go on there; a collective call."""
        finish = _Finish(self.objective, start, self.log)
        finish.improve_to(self._target)
        engine = self._engine
        array = self._program.centred(_as_array(finish.model, self.objective))
        state = {
            "model": array.reshape(engine.model.shape),
            "last_change": engine.last_change,
            "iteration": engine.iteration,
        }
        engine.load_state_dict(state)
        self._take_over()
        self.check()
        # The last changes do not say any more which coefficients to change next.
        engine.load_state_dict({**state, "last_change": self._next_changes().size})

    def _next_changes(self) -> Change:
        """Changes of all parameters at the last check, each alone; collective."""
        program, model = self._program, self._engine.model
        slopes = np.zeros((len(model), self.objective.n_outputs))
        gradient = self.gradient()
        slopes[: len(gradient)] = -gradient
        with self.log.computing():
            sums = program.total_weight * slopes.reshape(model.shape)
            # The program takes the slope of the ridge penalty into account by itself.
            ridge = program.total_weight * as_column(program.l2, model.ndim)
            sums[: len(ridge)] -= ridge * model[: len(ridge)]
            return program.outcome(np.arange(len(model)), sums, model)

    def _take_over(self) -> None:
        """Take the model, and the margins of the rows, from the engine."""
        self._is_checked = False
        self._read_engine()
        if not self.objective.penalty.l1.all():
            # The gap is a bound only where coefficients without L1 are at their best.
            settled = WorkingSets(self.objective, self.model, self.log)
            settled.settle()

    def _read_engine(self) -> None:
        objective, program, engine = self.objective, self._program, self._engine
        coef = engine.model[: objective.design.n_features]
        flat = coef.ravel()
        self.model.coordinates = np.flatnonzero(flat)
        self.model.coef = flat[self.model.coordinates].astype(np.float64)
        margins = program.predictions(engine.local, objective.offset)
        objective.margins = margins.reshape(len(margins), objective.n_outputs)
        if not objective.loss.is_quadratic:
            self.model.intercept = np.array(program.intercept(engine.model), ndmin=1)
            # The certificate needs the best intercept for the coefficients.
            objective.settle_intercept(self.model)


class _Finish(WorkingSets):
    """Working sets that take in no other coefficients than they begin with."""

    def improve_to(self, target: float) -> None:
        """Solve until no more than `target` is to be gained; a collective call."""
        self._inside = np.ones(len(self.model.coordinates), dtype=bool)
        for _ in range(1 if self.objective.loss.is_quadratic else _MAX_NEWTON):
            if self._solve(target) <= target:
                break


def _extended(model: Sparse, new: np.ndarray, changes: np.ndarray) -> Sparse:
    """A model with new coefficients, of value zero, for the largest changes."""
    new = np.setdiff1d(new, model.coordinates, assume_unique=True)
    order = np.argsort(-np.abs(changes.ravel()[new]), kind="stable")
    # Where updates made at the same time have moved too far together, nearly all that
    # were touched are not zero, and their values say nothing of what is needed.
    new = new[order[: max(_FEWEST_NEW, 2 * len(model.coordinates))]]
    coordinates = np.union1d(model.coordinates, new)
    coef = np.zeros(len(coordinates))
    coef[np.searchsorted(coordinates, model.coordinates)] = model.coef
    return Sparse(coordinates, coef, model.intercept)


def _iterations_at_once(n_candidates: int, depth: int) -> int:
    """Iterations after which no coefficient has grown beyond the most allowed."""
    # n columns that are alike move n times too far together: errors grow n-fold in
    # an iteration, and by its root where changes come `depth` iterations late.
    growth = np.log1p(n_candidates ** (1 / depth))
    return max(1, min(_MOST_AT_ONCE, int(np.log(_MOST_GROWTH) / growth)))


def make_program(objective: Objective, params: SchMPParams) -> CoordinateDescent:
    """The program of coordinate descent for an objective."""
    from sklearn.base import clone  # not where there is no schedule

    penalty, loss = objective.penalty, objective.loss.of_row
    schedule = clone(params.schedule)  # without notes of another run
    by_columns = isinstance(objective.design, ColumnDesign)
    kind = ColumnDescent if by_columns else CoordinateDescent
    return kind(
        loss,
        schedule,
        penalty.l1,
        penalty.l2,
        positive=penalty.positive,
        fit_intercept=params.fit_intercept,
        start=_start(objective, params),
    )


def _start(objective: Objective, params: SchMPParams) -> np.ndarray | None:
    """Model to start from, in the shape that the programs have."""
    if params.start is None:
        return None
    model = _as_array(Sparse(**params.start), objective)
    return model[:, 0] if objective.n_outputs == 1 else model


def _as_array(model: Sparse, objective: Objective) -> np.ndarray:
    """All coefficients, of shape (n_features, n_outputs), and intercepts of classes."""
    n, K = objective.design.n_features, objective.n_outputs
    coef = np.zeros((n, K))
    coef.ravel()[model.coordinates] = model.coef
    if objective.loss.is_quadratic:
        return coef
    return np.vstack([coef, model.intercept])
