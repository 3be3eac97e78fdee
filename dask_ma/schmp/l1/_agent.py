"""An L1-regularised fit as each rank carries it out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group, allreduce, broadcast
from dask_ma.engine import RankContext, RoundLog, State
from dask_ma.kernels import Loss, SquaredError, log_loss_of
from dask_ma.layouts._column_design import ColumnDesign
from dask_ma.layouts._columns import choose_layout, to_columns
from dask_ma.layouts._design import Design
from dask_ma.layouts._row_design import RowDesign
from dask_ma.schmp.l1._descent import Descent
from dask_ma.schmp.l1._losses import WeightedLoss
from dask_ma.schmp.l1._params import SchMPParams
from dask_ma.schmp.l1._problem import Objective, Penalty, Sparse
from dask_ma.schmp.l1._solver import DualityGap, Solver
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
    kept = context.restore_state()
    problem = agree_on_problem(context.group, arguments, params)
    log = RoundLog(context)
    with log.computing():
        data = lay_out(context.group, problem, params)
    objective = make_objective(data, problem, params)
    check_start(objective, params)
    solver = make_solver(context, objective, params, log, kept)
    n_iter, stop = 0, False
    if kept is not None:
        n_iter, stop = kept.round, kept.shared["stop"]
        solver.best_dual = kept.shared["best_dual"]
    certificate = solver.check()
    target = params.tol * objective.null
    # The model to start from may be the answer; that is a round, too.
    stop = stop or (n_iter > 0 and certificate.gap <= target)
    while not stop and n_iter < params.max_iter:
        if certificate.gap > target:
            solver.improve()
            certificate = solver.check()
        n_iter += 1
        record = make_record(log, n_iter, solver, certificate)
        fitted = describe(solver, problem, certificate, n_iter)
        wanted = context.record(record, fitted)
        converged = broadcast(context.group, certificate.gap <= target)
        stop = converged or wanted
        shared = {**solver.state_dict(), "best_dual": solver.best_dual, "stop": stop}
        context.save_state(n_iter, shared, done=stop or n_iter == params.max_iter)
    fitted = describe(solver, problem, certificate, n_iter)
    fitted["gap_asked"] = target
    return FitResult(fitted, stop, context.history, context.timeline())


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
        layout = choose_layout(
            problem.total_rows,
            shard.n_features,
            problem.total_stored,
            group.size,
            params.n_rounds,
        )
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
    # They may have come as float32, and did not add up then.
    weight /= allreduce(group, weight.sum())
    return Data(RowDesign(group, shard), y, weight)


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
    return Objective(data.design, weighted, penalty, params.fit_intercept)


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
    if kept is not None:
        names = ("coordinates", "coef", "intercept")
        # What was kept must not be changed.
        model = Sparse(**{name: kept.shared[name].copy() for name in names})
    elif params.start is not None:
        model = Sparse(**params.start)
        if objective.centers:
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


def make_record(
    log: RoundLog, n_iter: int, solver: Solver, certificate: DualityGap
) -> dict[str, Any]:
    """What the history holds of a round; a collective call."""
    model = solver.model
    before = solver.n_recorded
    marks = {} if solver.polished is None else {"polished": solver.polished}
    log.note(
        n_iter,
        solver.objective.design.n_rows,
        objective=certificate.objective,
        dual_gap=certificate.gap,
        n_nonzero=int(np.count_nonzero(model.coef)),
        working_set=len(model.coef),
        **marks,
    )
    touched, solver.n_recorded = solver.n_touched, solver.n_touched
    own = np.concatenate([*log.counters, [float(touched - before)]])
    sums = allreduce(solver.objective.design.group, own)
    record = log.finish([sums[:-1]])[0]
    record["n_touched"] = int(sums[-1])
    return record


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
