"""An L1-regularised fit as each rank carries it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group, allreduce, broadcast
from dask_ma.data import Shard
from dask_ma.engine import (
    Method,
    Model,
    RankContext,
    Record,
    RoundLog,
    Snapshot,
    State,
    Work,
    fit_rounds,
)
from dask_ma.kernels import Loss, SquaredError, log_loss_of
from dask_ma.layouts._column_design import ColumnDesign
from dask_ma.layouts._columns import Extent, choose_layout, to_columns
from dask_ma.layouts._design import Design
from dask_ma.layouts._read_columns import is_read
from dask_ma.layouts._row_design import RowDesign
from dask_ma.schmp.l1._descent import Descent
from dask_ma.schmp.l1._losses import WeightedLoss
from dask_ma.schmp.l1._params import SchMPParams
from dask_ma.schmp.l1._problem import Objective, Penalty, Sparse
from dask_ma.schmp.l1._solver import DualityGap, Solver
from dask_ma.schmp.l1._standstill import Standstill
from dask_ma.schmp.l1._working_set import WorkingSets
from dask_ma.supervised import FitResult, Problem, agree_on_problem


def train(context: RankContext, arguments: Any, params: SchMPParams) -> FitResult:
    """Fit a linear model with an L1 or elastic-net penalty to the rows of all ranks.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : SchMPParams
        Parameters of the fit.

    Returns
    -------
    result : FitResult
        The same on every rank, but for the history, which rank 0 keeps.
    """
    state = context.restore_state()
    measure = None if params.is_classifier else _target_sums
    problem = agree_on_problem(context.group, arguments, params, measure=measure)
    if params.is_alpha_of_sum:
        alpha = params.alpha / problem.given_weight
        params = replace(params, alpha=alpha, is_alpha_of_sum=False)
    rounds = Rounds(context, problem, params)
    ended = fit_rounds(context, rounds, state, add_up=rounds.add_up)
    fitted = {**rounds.model(), "gap_asked": rounds.target}
    if params.is_classifier:
        fitted["reach"] = rounds.reach_of_none()
    is_done = rounds.is_met or (ended.stop and not rounds.stands_still)
    return FitResult(fitted, is_done, context.history, context.timeline())


class Rounds(Method):
    """Rounds of a solver, until the duality gap is small; making one is collective."""

    _solver: Solver
    _gap: DualityGap

    def __init__(
        self, context: RankContext, problem: Problem, params: SchMPParams
    ) -> None:
        super().__init__(context)
        self._problem = problem
        with self.log.computing():
            data = lay_out(context.group, problem, params)
        self._objective = make_objective(data, problem, params)
        check_start(self._objective, params)
        self._params = without_poor_start(self._objective, params)
        self.is_met = False  # before the first round that this run makes
        self._standstill = Standstill(may_idle=self._objective.loss.is_quadratic)

    @property
    def target(self) -> float:
        """Gap at which the fit ends."""
        return self._objective.gap_asked(self._params.tol, self._gap.objective)

    @property
    def is_complete(self) -> bool:
        is_over = self.n_rounds >= self._params.max_iter
        return self.is_met or self.stands_still or is_over

    @property
    def stands_still(self) -> bool:
        """Whether rounding alone keeps the gap from closing; the same on all ranks."""
        # Random coordinates may by chance be some that need no change.
        is_fixed = self._params.schedule is None  # working sets
        is_open = self._standstill.is_reached and self._gap.gap > self.target
        return is_fixed and is_open

    def begin(self) -> None:
        self._make_solver(None)
        self._gap = self._solver.check()

    def load_state_dict(self, state: State) -> None:
        self._make_solver(state)
        # Of more rows, before some were lost, it would be no bound, and end the fit.
        if state.shared["n_rows"] == self._problem.total_rows:
            self._solver.best_dual = state.shared["best_dual"]
            self._standstill.load_state_dict(state.shared["standstill"])
        self._gap = self._solver.check()
        self.is_met = self._gap.gap <= self.target

    def state_dict(self) -> Snapshot:
        solver = self._solver
        own = {
            "best_dual": solver.best_dual,
            "n_rows": self._problem.total_rows,
            "standstill": np.array(self._standstill.state_dict()),
        }
        return Snapshot({**solver.state_dict(), **own})

    def round(self) -> Work:
        # The model to start from may be the answer; that is a round, too.
        if self._gap.gap > self.target:
            before = self._gap
            self._solver.improve()
            self._gap = self._solver.check()
            self._standstill.update(before, self._gap, self.target)
        return work_of(self._solver, self._gap)

    def measure(self) -> list[np.ndarray]:
        return [newly_touched(self._solver)]

    def add_up(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Sums over ranks of what they have measured and counted in a round."""
        # They have come with the gap, which is the last message of a round.
        sizes = [array.size for array in arrays]
        return np.split(self._solver.told, np.cumsum(sizes)[:-1])

    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        record["n_touched"] = int(sums[0][0])

    def is_done(self, record: Record) -> bool:
        # The same bits on all ranks.
        return self._gap.gap <= self.target or self.stands_still

    def model(self) -> Model:
        found = describe(self._solver, self._problem, self._gap, self.n_rounds)
        return {**found, "alpha": self._params.alpha, "objective": self._gap.objective}

    def reach_of_none(self) -> float | None:
        """Gradient over its bound of a model without coefficients; a collective call.

        None where there are some; 0 where nothing is left but rounding.
        """
        return None if self._solver.model.coef.any() else self._solver.clear_reach()

    def _make_solver(self, state: State | None) -> None:
        """What improves the model; a collective call."""
        self._solver = make_solver(
            self.context, self._objective, self._params, self.log, state
        )
        self._solver.tells = self._tells

    def _tells(self) -> np.ndarray:
        """What :meth:`measure` and the counters of the round have at a check."""
        own = [float(self._solver.n_touched - self._solver.n_recorded)]
        return np.append(own, self.log.count(self._solver.objective.design.n_rows))


class Data(NamedTuple):
    """Data of a rank in the layout of the fit.

    Attributes
    ----------
    design : Design
        The features.
    y : ndarray of shape (n_rows,)
        Targets, or codes of classes.
    weight : ndarray of float64 of shape (n_rows,)
        Weights of the rows, which add up to 1 over all rows.
    """

    design: Design
    y: np.ndarray
    weight: np.ndarray


def lay_out(group: Group, problem: Problem, params: SchMPParams) -> Data:
    """Rows or columns of the data on this rank; a collective call."""
    shard = problem.shard
    layout = params.layout
    if layout == "auto":
        n_rows, n_stored = problem.total_rows, problem.total_stored
        # Ranks without rows do not know of themselves what the others have.
        is_sparse = n_stored < n_rows * shard.n_features
        itemsize = problem.dtype.itemsize
        extent = Extent(n_rows, shard.n_features, n_stored, itemsize, is_sparse)
        layout = choose_layout(
            extent, group.size, params.n_rounds, params.link_bandwidth
        )
        if layout == "columns":
            # Rows that some rank has to read from a disk stay there.
            read = np.array([is_read(group, shard)], dtype=np.int64)
            layout = "rows" if allreduce(group, read)[0] else layout
    if layout == "columns":
        columns = to_columns(group, shard)
        targets = np.asarray(columns.y)
        weight = _weight(columns.sample_weight, len(targets))
        design = ColumnDesign(group, columns)
        return Data(design, targets, weight / weight.sum())
    empty = np.zeros(0, dtype=np.int64 if params.is_classifier else np.float64)
    y = np.concatenate([empty, *(block.y for block in shard.blocks)])
    weights = [_weight(b.sample_weight, len(b.y)) for b in shard.blocks]
    weight = np.concatenate([np.zeros(0), *weights])
    total: Any = problem.total_rows
    if problem.is_weighted:  # they may have come as float32, and did not add up then
        total = allreduce(group, weight.sum())
    weight /= total
    return Data(RowDesign(group, shard), y, weight)


def _target_sums(shard: Shard) -> np.ndarray:
    """Weighted sum of the targets of a rank, and that of the weights."""
    y = np.concatenate([np.zeros(0), *(block.y for block in shard.blocks)])
    weight = np.concatenate([np.zeros(0), *(b.weights() for b in shard.blocks)])
    with np.errstate(over="ignore"):
        return np.array([weight @ y, weight.sum()])


def _weight(weight: np.ndarray | None, n_rows: int) -> np.ndarray:
    """Weights of some rows as float64."""
    return np.ones(n_rows) if weight is None else weight.astype(np.float64)


def make_objective(data: Data, problem: Problem, params: SchMPParams) -> Objective:
    """What the fit minimises; a collective call."""
    loss: Loss = SquaredError()
    if params.is_classifier:
        loss = log_loss_of(problem.n_problems)
    penalty = make_penalty(data.design.n_features, params)
    weighted = WeightedLoss(loss, data.y, data.weight)
    level = None
    if problem.measured is not None and np.isfinite(problem.measured).all():
        level = float(problem.measured[0] / problem.measured[1])
    return Objective(data.design, weighted, penalty, params.fit_intercept, level)


def make_solver(
    context: RankContext,
    objective: Objective,
    params: SchMPParams,
    log: RoundLog,
    kept: State | None,
) -> Solver:
    """What improves the model, round by round; a collective call."""
    if params.schedule is not None:
        state = None if kept is None else kept.shared
        return Descent(context, objective, params, log, state)
    model = Sparse.empty(objective.n_outputs)
    begun = params.start if kept is None else kept.shared
    if begun is not None:
        model = _model_of(begun)
        if kept is None and objective.centers:
            model.intercept = np.zeros(1)
    return WorkingSets(objective, model, log)


def check_start(objective: Objective, params: SchMPParams) -> None:
    """Refuse a model to start from that has other features or classes."""
    if params.start is None:
        return
    size = objective.n_outputs
    last = params.start["coordinates"].max(initial=-1)
    fits = last < size * objective.design.n_features
    if len(params.start["intercept"]) != size or not fits:
        raise ValueError(
            "the model to start from has other features or classes than the data; "
            "set warm_start=False"
        )


def without_poor_start(objective: Objective, params: SchMPParams) -> SchMPParams:
    """Without a model to start from that is worse than none; a collective call.

    Where rows are wrong by far, as those of another scale are, losses have next to no
    second derivatives, and models of them end anywhere.
    """
    if params.start is None or objective.loss.is_quadratic:
        return params
    is_worse = not objective.value_of(_model_of(params.start)) <= objective.null
    # Other processors may round the penalty otherwise.
    is_worse = broadcast(objective.design.group, is_worse)
    return replace(params, start=None) if is_worse else params


def _model_of(kept: Mapping[str, Any]) -> Sparse:
    """A model of its own: ranks of one process have the same arrays."""
    names = ("coordinates", "coef", "intercept")
    return Sparse(**{name: kept[name].copy() for name in names})


def make_penalty(n_features: int, params: SchMPParams) -> Penalty:
    """Penalty of each feature."""
    weights = params.feature_weights
    if weights is None:
        weights = np.ones(n_features)
    elif weights.shape != (n_features,):
        raise ValueError(
            f"feature_weights must have shape ({n_features},), one weight for each "
            f"feature, got {weights.shape}"
        )
    l1 = params.alpha * params.l1_ratio * weights
    if params.positive and not l1.all():
        raise ValueError(
            "positive=True needs an L1 penalty on every coefficient: alpha, l1_ratio "
            f"and all feature_weights above 0, but {np.count_nonzero(l1 == 0)} of "
            f"{n_features} coefficients have none"
        )
    return Penalty(l1, params.alpha * (1 - params.l1_ratio) * weights, params.positive)


def work_of(solver: Solver, gap: DualityGap) -> Work:
    """What a rank has done in a round, and what its record holds of the model."""
    coef = solver.model.coef
    values: dict[str, Any] = {
        "objective": gap.objective,
        "dual_gap": gap.gap,
        "n_nonzero": int(np.count_nonzero(coef)),
        "working_set": len(coef),
    }
    if solver.polished is not None:
        values["polished"] = solver.polished
    return Work(solver.objective.design.n_rows, values)


def newly_touched(solver: Solver) -> np.ndarray:
    """Stored elements that this rank has read since the last record."""
    before, solver.n_recorded = solver.n_recorded, solver.n_touched
    return np.array([float(solver.n_recorded - before)])


def describe(
    solver: Solver, problem: Problem, certificate: DualityGap, n_iter: int
) -> dict[str, Any]:
    """The model after a round, with what else a fitted estimator has."""
    model = solver.model
    nonzero = np.flatnonzero(model.coef)
    return {
        "coordinates": model.coordinates[nonzero],
        "coef": model.coef[nonzero],
        "intercept": solver.shown_intercept(),
        "n_features": solver.objective.design.n_features,
        "dtype": problem.dtype,
        "classes": problem.classes,
        "dual_gap": certificate.gap,
        "n_iter": n_iter,
    }
