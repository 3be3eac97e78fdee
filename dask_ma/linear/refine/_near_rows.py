"""The optimum of a hinge that few rows of each class decide, which one rank finds.

First derivatives alone tell after hundreds of passes which rows those are that lie
within their margins at the optimum. Where they are few, the optima of some rows tell it
soon, class by class. Rank 0 has all rows for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dask_ma.comm import Group, allreduce, broadcast
from dask_ma.kernels import chunked_predictions
from dask_ma.linear._model import LinearModel, RefineParams
from dask_ma.linear.refine._centred import CentredRows
from dask_ma.linear.refine._choice import choose_method
from dask_ma.linear.refine._coordinates import Coordinates, Penalty
from dask_ma.linear.refine._few_rows import Optimum, class_tasks, few_rows_round
from dask_ma.linear.refine._row_sets import FEWEST, RowSets
from dask_ma.supervised import Problem, gathered

# Stored elements of all rows, which are sent to one rank: 96 MiB.
_MOST_ELEMENTS = 2**23
# What things take, in ns, measured on one processor: a set, the cube of its rows, a
# pair of its rows for each dense column, and a stored element of all rows.
_SET, _CUBE, _PAIR, _VALUE = 1.5e6, 0.13, 0.07, 2.0
# And what a round of steps takes: to read a stored element, a problem, a stored element
# of it, sparse and dense, its rows and its columns; by Newton's method, pairs of
# columns of each row.
_READ, _PROBLEM, _SPARSE, _DENSE, _ROW, _COLUMN = 0.6, 6e4, 3.0, 0.4, 15.0, 20.0
_SECOND = 0.05
# So many rounds at most may take less. Where there are more problems the first one
# tells what others take, so it may be so many more for each of these, up to a limit: by
# Newton's method, by L-BFGS on sparse rows, and on dense ones, where it hardly ever
# gets over the kinks. Sets are taken to be so much larger than the rows within the
# margin before, of sparse and dense rows, as each text has words of its own; and so
# many.
_ROUNDS, _FURTHER, _MOST_ROUNDS = 30, (0, 5, 40), (30, 100, 400)
_GROWN, _GROWN_DENSE, _SETS = 2.5, 1.25, 3
_SLACK = 0.05  # of all problems, by which the first ones may exceed their part


class Plan(NamedTuple):
    """What is known of a model before its problems are solved.

    Attributes
    ----------
    objectives : ndarray of shape (n_problems,)
        Of the model.
    n_within : ndarray of float64, shape (n_problems,)
        Rows within their margin, which pay a loss.
    budget : float
        What all problems may take, in ns.
    """

    objectives: np.ndarray
    n_within: np.ndarray
    budget: float


def may_have_near_rows(params: RefineParams, problem: Problem) -> bool:
    """Whether rows of a fit may be looked at for those near their margins."""
    penalty = Penalty.of(params.penalty, params.alpha, params.l1_ratio)
    is_known = params.refine == "auto" and params.loss == "hinge"
    if not is_known or penalty.l1 or not penalty.l2:
        return False
    is_small = problem.total_stored <= _MOST_ELEMENTS
    return is_small and few_rows_round(params, problem) != 0


def plan_near_rows(
    group: Group, problem: Problem, params: RefineParams, model: LinearModel
) -> Plan | None:
    """Look at a model; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        The rows to train on.
    params : RefineParams
        Parameters of the fit.
    model : LinearModel
        Where rounds have ended.

    Returns
    -------
    plan : Plan or None
        The same on all ranks; None where other methods take less.
    """
    coef, intercept = (array.astype(np.float64) for array in model)
    sums = np.zeros((2, problem.n_problems))
    for block in problem.shard.read():
        block_weights = block.weights()
        for some, values in chunked_predictions(block.X, coef, intercept):
            targets, weights = class_tasks(problem, block.y[some], block_weights[some])
            losses = np.maximum(1 - targets * values.reshape(targets.shape), 0.0)
            losses *= weights
            sums += losses.sum(axis=0), np.count_nonzero(losses, axis=0)
    (sums,) = allreduce(group, [sums])
    objectives = sums[0] / problem.total_weight
    objectives += 0.5 * params.alpha * (coef**2).sum(axis=1)
    most = _most_rounds(problem, params) * _round_cost(problem, params)
    grown = _GROWN if _is_sparse(problem) else _GROWN_DENSE
    sizes = np.maximum(FEWEST, grown * sums[1])
    cost = _SETS * sum(_set_cost(problem, size) for size in sizes.tolist())
    is_number = bool(np.isfinite(objectives).all())
    if not is_number or cost > most:
        return None
    return Plan(objectives, sums[1], most)


def _most_rounds(problem: Problem, params: RefineParams) -> int:
    """After how many rounds of steps they would have taken less."""
    kind = 0 if choose_method(params, problem) == "newton" else 2
    kind = 1 if kind and _is_sparse(problem) else kind
    n_rounds = _ROUNDS + _FURTHER[kind] * (problem.n_problems - 1)
    return min(n_rounds, _MOST_ROUNDS[kind])


def _round_cost(problem: Problem, params: RefineParams) -> float:
    """What a round of steps takes."""
    n_rows, n_features = problem.total_rows, problem.shard.n_features
    stored = (_SPARSE if _is_sparse(problem) else _DENSE) * problem.total_stored
    cost = _PROBLEM + stored + _ROW * n_rows + _COLUMN * n_features
    if choose_method(params, problem) == "newton":
        cost += _SECOND * n_rows * n_features**2
    return _READ * problem.total_stored + problem.n_problems * cost


def _set_cost(problem: Problem, n_rows: float) -> float:
    """What a set of rows takes."""
    width = 0 if _is_sparse(problem) else problem.shard.n_features
    values = _VALUE * problem.total_stored
    return _SET + values + (_CUBE * n_rows + _PAIR * width) * n_rows**2


def _is_sparse(problem: Problem) -> bool:
    """Whether rows store fewer elements than they have."""
    return problem.total_stored < problem.total_rows * problem.shard.n_features


def find_by_near_rows(
    group: Group,
    problem: Problem,
    params: RefineParams,
    coordinates: Coordinates,
    model: LinearModel,
    plan: Plan,
) -> Optimum:
    """Have rank 0 find the optimum; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        The rows to train on.
    params : RefineParams
        Parameters of the fit.
    coordinates : Coordinates
        Centre of the columns.
    model : LinearModel
        Where rounds have ended.
    plan : Plan
        What :func:`plan_near_rows` has found there.

    Returns
    -------
    optimum : Optimum
        The same on all ranks; of problems that took more than there is the model, and
        a bound of minus infinity.
    """
    whole, told = gathered(problem.shard, group), None
    if group.rank == 0:
        (block,) = whole.blocks
        X = block.X.astype(np.float64, copy=False)
        rows = CentredRows(X, coordinates.standardization.centre)
        told = _solve_all(
            rows,
            block.y,
            block.weights(),
            problem=problem,
            params=params,
            coordinates=coordinates,
            model=model,
            plan=plan,
            check=group.raise_if_closed,
        )
    points, bases = broadcast(group, told)
    return Optimum(points, plan.objectives, bases)


def _solve_all(
    rows: CentredRows,
    y: np.ndarray,
    weights: np.ndarray,
    *,
    problem: Problem,
    params: RefineParams,
    coordinates: Coordinates,
    model: LinearModel,
    plan: Plan,
    check: Callable[[], None],
) -> tuple[np.ndarray, np.ndarray]:
    """Points of all problems, and what no model is below, penalties apart."""
    points = coordinates.to_points(model)
    bases = np.full(len(points), -np.inf)
    spent = 0.0
    # One that takes far more than its part is not to keep others from theirs.
    order = np.argsort(plan.n_within, kind="stable").tolist()
    for n_before, k in enumerate(order):
        point = points[k]
        targets, own = class_tasks(problem, y, weights, [k])
        coef, intercept = model.coef[k].astype(np.float64), float(model.intercept[k])
        centre = coordinates.standardization.centre
        sets = RowSets(
            rows,
            targets[:, 0],
            own[:, 0] / problem.total_weight,
            params.alpha,
            intercept=None if params.fit_intercept else intercept,
            tol=params.refine_tol,
        )
        part = min(1.0, (n_before + 1) / len(points) + _SLACK) * plan.budget
        for size in sets.solve(rows.values(coef) + (intercept + centre @ coef)):
            check()
            spent += _set_cost(problem, size)
            if spent > part:
                return points, bases
        if (best := sets.best) is not None:
            point[: coordinates.n_features] = best.coef * coordinates.units
            point[coordinates.n_features :] = best.intercept
            bases[k] = best.base
    return points, bases
