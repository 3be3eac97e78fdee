"""The optimum of a hinge that few rows of each class decide, class by class.

First derivatives alone tell after hundreds of passes which rows those are that lie
within their margins at the optimum. Where they are few, the optima of some rows tell it
soon; where they are more, and sparse, ascent in the dual does, along derivatives, or
else by coordinates. Ranks have all rows for that, and classes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group, allgather, allreduce, broadcast
from dask_ma.data import Block, pack_block, unpack_block
from dask_ma.kernels import chunked_predictions
from dask_ma.linear._model import LinearModel, RefineParams
from dask_ma.linear.refine._centred import CentredRows
from dask_ma.linear.refine._choice import choose_method
from dask_ma.linear.refine._coordinate_ascent import CoordinateAscent
from dask_ma.linear.refine._coordinates import Coordinates
from dask_ma.linear.refine._dual_ascent import FIRST, STEPS, DualAscent
from dask_ma.linear.refine._few_rows import Optimum, class_tasks
from dask_ma.linear.refine._row_sets import (
    FEWEST,
    NEAR,
    RowSetOptimum,
    RowSets,
    optimum_of_one_sign,
)
from dask_ma.supervised import Problem, gathered

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
# Ascent takes so many sets, where steps make so many rounds at least; those that meet
# kinks often make as many as may follow. In ns, to look at a stored element of all
# rows, and for a step a stored element, a column and a row of a set.
_ASCENTS, _FEW_KINKS, _MANY_KINKS = 4, 100, 300
_PATIENCE = 12.0  # times what sets should take, after which ascent is tried
_LOOK, _STORED, _WIDTH, _MOVED = 8.0, 4.0, 6.0, 100.0
_SLACK = 0.05  # of all problems, by which the first ones may exceed their part
# In ns, a stored element in an epoch of coordinates; so many rounds at most may take
# less, which hardly end where ascent has not; and epochs.
_EPOCH, _LAST_ROUNDS, _MOST_EPOCHS = 0.6, 1000, 10_000
_IN_VAIN = 2  # problems more without than with an optimum, after which others are left


class Plan(NamedTuple):
    """What is known of a model before its problems are solved.

    Attributes
    ----------
    objectives : ndarray of shape (n_problems,)
        Of the model.
    n_within : ndarray of float64, shape (n_problems,)
        Rows within their margin, which pay a loss.
    n_near : ndarray of float64, shape (n_problems,)
        Rows at or near their margin.
    budget : float
        What all problems may take, in ns.
    begins_with_sets : bool
        Whether problems are solved by sets of rows, as long as these are few.
    may_ascend : bool
        Whether problems whose sets are not few are solved by ascent.
    """

    objectives: np.ndarray
    n_within: np.ndarray
    n_near: np.ndarray
    budget: float
    begins_with_sets: bool
    may_ascend: bool


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
    sums = np.zeros((3, problem.n_problems))
    for block in problem.shard.read():
        block_weights = block.weights()
        for some, values in chunked_predictions(block.X, coef, intercept):
            targets, weights = class_tasks(problem, block.y[some], block_weights[some])
            missing = 1 - targets * values.reshape(targets.shape)
            losses = weights * np.maximum(missing, 0.0)
            n_near = np.count_nonzero(np.abs(missing) <= FIRST, axis=0)
            sums += losses.sum(axis=0), np.count_nonzero(losses, axis=0), n_near
    (sums,) = allreduce(group, [sums])
    objectives = sums[0] / problem.total_weight
    objectives += 0.5 * params.alpha * (coef**2).sum(axis=1)
    if not np.isfinite(objectives).all():
        return None
    n_rounds, round_cost = _most_rounds(problem, params), _round_cost(problem, params)
    cost = sum(_sets_cost(problem, n) for n in sums[1].tolist())
    has_sets = cost <= n_rounds * round_cost
    may_ascend = _is_sparse(problem) and choose_method(params, problem) == "lbfgs"
    if may_ascend:
        cost = sum(_ascents_cost(problem, n) for n in sums[2].tolist())
        # All ranks make steps, but no more than there are classes solve one.
        n_solving = min(group.size, problem.n_problems)
        few = max(n_rounds, _FEW_KINKS) if n_solving == group.size else n_rounds
        may_ascend = cost * group.size <= few * round_cost * n_solving
    if may_ascend:
        n_rounds = max(n_rounds, _MANY_KINKS)
    if not (has_sets or may_ascend):
        return None
    budget = n_rounds * round_cost
    return Plan(objectives, sums[1], sums[2], budget, has_sets, may_ascend)


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


def _sets_cost(problem: Problem, n_rows: float) -> float:
    """What sets take to solve a problem with so many rows within their margin."""
    grown = _GROWN if _is_sparse(problem) else _GROWN_DENSE
    return _SETS * _set_cost(problem, max(FEWEST, grown * n_rows))


def _ascent_cost(problem: Problem, n_rows: float) -> float:
    """What ascent takes that moves some rows."""
    n_stored = problem.total_stored * n_rows / problem.total_rows
    step = _STORED * n_stored + _WIDTH * problem.shard.n_features + _MOVED * n_rows
    return _LOOK * problem.total_stored + STEPS * step


def _ascents_cost(problem: Problem, n_rows: float) -> float:
    """The same with so many rows near their margin, by ascent."""
    return _ASCENTS * _ascent_cost(problem, n_rows)


def _n_epochs(problem: Problem, params: RefineParams) -> int:
    """How often all rows of a problem may be gone over by coordinates."""
    cost = _LAST_ROUNDS * _round_cost(problem, params) / problem.n_problems
    return min(int(cost / (_EPOCH * max(1, problem.total_stored))), _MOST_EPOCHS)


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
    numbers = np.argsort(plan.n_within, kind="stable")[group.rank :: group.size]
    block = _all_rows(group, problem, to_all=problem.n_problems > 1)
    points, bases = coordinates.to_points(model)[:0], np.zeros(0)
    if len(numbers):
        assert block is not None
        points, bases = _solve_all(
            CentredRows(block.X, coordinates.standardization.centre),
            block,
            numbers.tolist(),
            problem=problem,
            params=params,
            coordinates=coordinates,
            model=model,
            plan=plan,
            check=group.raise_if_closed,
        )
    parts = zip(*allgather(group, (numbers, points, bases)), strict=True)
    numbers, points, bases = (np.concatenate(part) for part in parts)
    order = np.argsort(numbers)
    return Optimum(points[order], plan.objectives, bases[order])


def _all_rows(group: Group, problem: Problem, *, to_all: bool) -> Block | None:
    """The rows of all ranks in float64, for rank 0 or for all; a collective call."""
    whole, found = gathered(problem.shard, group), None
    if group.rank == 0:
        (block,) = whole.blocks
        found = block._replace(X=block.X.astype(np.float64, copy=False))
    if not to_all or group.size == 1:
        return found
    # Ranks of one process have the same arrays.
    told = None if found is None else pack_block(found)
    parts = broadcast(group, told, copy=False)
    return unpack_block(parts, problem.shard.n_features)


def _solve_all(
    rows: CentredRows,
    block: Block,
    numbers: list[int],
    *,
    problem: Problem,
    params: RefineParams,
    coordinates: Coordinates,
    model: LinearModel,
    plan: Plan,
    check: Callable[[], None],
) -> tuple[np.ndarray, np.ndarray]:
    """Points of some problems, and what no model is below, penalties apart."""
    points, coefs = coordinates.to_points(model)[numbers], model.coef[numbers]
    bases = np.full(len(points), -np.inf)
    weights = block.weights()
    solving = _Solving(rows, problem, params, plan, check)
    for place, k in enumerate(numbers):
        targets, own = class_tasks(problem, block.y, weights, [k])
        coef, level = coefs[place].astype(np.float64), float(model.intercept[k])
        one = targets[:, 0], own[:, 0] / problem.total_weight
        # One that takes far more than its part is not to keep others from theirs.
        solving.grant(min(len(numbers), place + 1 + _SLACK * len(numbers)))
        best = solving.solve(k, *one, coef, level)
        if best is not None and best.objective <= plan.objectives[k]:
            point, bases[place] = points[place], best.base
            point[: coordinates.n_features] = best.coef * coordinates.units
            point[coordinates.n_features :] = best.intercept
        elif best is not None:  # of the model that there is
            bases[place] = best.bound + 0.5 * params.alpha * float(coef @ coef)
        if solving.is_over:
            break
    return points, bases


class _Solving:
    """Problems that are solved one after the other, as far as their budget goes."""

    def __init__(
        self,
        rows: CentredRows,
        problem: Problem,
        params: RefineParams,
        plan: Plan,
        check: Callable[[], None],
    ) -> None:
        self._rows = rows
        self._problem = problem
        self._params = params
        self._plan = plan
        self._check = check
        self._n_good = int(plan.begins_with_sets)  # problems that sets were good for
        self._part = plan.budget / problem.n_problems
        self._spent = self._most = 0.0
        self._ascends = True  # whether derivatives have told anything
        self._n_found = 0  # problems that coordinates were good for
        self.is_over = False  # there is nothing left

    def grant(self, n_parts: float) -> None:
        """Let all problems so far take what so many of them may."""
        self._most = self._part * n_parts

    def solve(
        self,
        number: int,
        targets: np.ndarray,
        weights: np.ndarray,
        coef: np.ndarray,
        intercept: float,
    ) -> RowSetOptimum | None:
        """The optimum of a problem, or what is known of it; None if that is nothing."""
        plan = self._plan
        is_free = self._params.fit_intercept
        best = optimum_of_one_sign(self._rows, targets, weights) if is_free else None
        if best is not None:
            return best
        task: dict[str, Any] = {
            "intercept": None if is_free else intercept,
            "tol": self._params.refine_tol,
        }
        one = self._rows, targets, weights, self._params.alpha
        values = self._rows.values(coef)
        sets, ascent = RowSets(*one, **task), DualAscent(*one, **task)
        by_sets, by_ascent = sets.solve(values), ascent.solve(values)
        enough = float(plan.objectives[number]) * (1 - NEAR * self._params.refine_tol)
        if self._n_good > 0:
            most = self._most
            if plan.may_ascend:
                most = min(most, self._spent + self._most_for_sets(number))
            is_found = self._go(sets, by_sets, enough, _set_cost, most)
            # Where most problems have more rows at their margins, others will, too.
            self._n_good += 1 if is_found else -1
            if is_found or not plan.may_ascend:
                return sets.best
        self.is_over = False  # what sets would take is not what ascent does
        if self._ascends:
            if self._go(ascent, by_ascent, enough, _ascent_cost, self._most):
                return ascent.best
            self._ascends = ascent.best is None or ascent.best.bound > 0
        coordinates = CoordinateAscent(*one, **task)
        if not (self._ascends and self.is_over):
            is_found = self._go_by_coordinates(coordinates)
            self._n_found += 1 if is_found else -1
            if is_found:
                return coordinates.best
            # Others would not be better off.
            self.is_over = self._n_found <= -_IN_VAIN
        if not self.is_over and plan.begins_with_sets:
            # As where rounding is in the way of the last digits.
            self._go(sets, by_sets, enough, _set_cost, self._most)
        found = sets.best, ascent.best, coordinates.best
        return min(filter(None, found), key=_gap, default=None)

    def _most_for_sets(self, number: int) -> float:
        """What sets may take of a problem that there is another way for."""
        plan, problem = self._plan, self._problem
        own = _sets_cost(problem, float(plan.n_within[number]))
        other = _ascents_cost(problem, float(plan.n_near[number]))
        return max(_PATIENCE * own, other)

    def _go(
        self,
        solver: RowSets | DualAscent,
        sizes: Iterator[int],
        enough: float,
        cost: Callable[[Problem, float], float],
        most: float,
    ) -> bool:
        """Go from set to set; whether an optimum is known in the end."""
        for size in sizes:
            self._check()
            if solver.best is not None and solver.best.bound >= enough:
                return True  # what there is is near enough
            own = cost(self._problem, size)
            if self._spent + own > most:
                self.is_over = most == self._most
                return False
            self._spent += own
        return self._is_near(solver.best)

    def _go_by_coordinates(self, solver: CoordinateAscent) -> bool:
        """Let coordinates take what steps would at most, so none of the budget."""
        for _ in solver.solve(_n_epochs(self._problem, self._params)):
            self._check()
        return self._is_near(solver.best)

    def _is_near(self, best: RowSetOptimum | None) -> bool:
        """Whether a model is as near to the optimum as it is to be."""
        return best is not None and best.gap <= self._params.refine_tol * best.objective


def _gap(optimum: RowSetOptimum) -> float:
    """How far it may be from the best there is."""
    return optimum.gap
