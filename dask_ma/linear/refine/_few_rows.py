"""The optimum of an objective of few long rows, which one rank finds from products.

With an L2 penalty the optimum is a sum of rows. Where there are fewer of them than
features, the products of all pairs say all that there is to know, whatever the loss;
and first derivatives alone, as L-BFGS has them, need hundreds of passes there, since
such rows can nearly all be fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather, allreduce, broadcast, gather
from dask_ma.data import Shard
from dask_ma.engine import Adder
from dask_ma.kernels import (
    FEW_ROWS_LOSSES,
    chunked_predictions,
    few_rows_optimum,
    make_loss,
    one_vs_rest_targets,
    positive_factors,
)
from dask_ma.linear._model import LinearModel, RefineParams
from dask_ma.linear.refine._centred import CentredRows
from dask_ma.linear.refine._coordinates import Coordinates, Penalty
from dask_ma.supervised._problem import Problem

# Cubes of the rows, for each problem, and elements of all rows: of some twenty systems
# of equations one takes 0.1 s with the first number, and 0.4 s with the second, with
# which others go first; and the elements are sent to one rank, 256 MiB.
_FEW_CUBES, _MOST_CUBES, _MOST_ELEMENTS = 2**31, 2**33, 2**25
# Losses whose slope jumps leave other methods far from the optimum; smooth ones often
# take them few rounds.
_KINKED, _FEW_SMOOTH_CUBES = frozenset({"epsilon_insensitive", "hinge"}), 2**28
# Pairs of elements of a column that are multiplied first of all, dense and sparse: half
# a second.
_FEW_PAIRS, _FEW_SPARSE_PAIRS = 2**33, 2**29
# Rows, for each feature, up to which others often need hundreds of rounds; and rounds
# after which they are known to.
_WIDE, _PATIENCE = 2, 100
# The same of so few rows that their products take less than any search among kinks: of
# 30 rows and 6 columns that made up to 81 rounds.
_TINY_CUBES = 2**15
_CHUNK = 2**20  # elements of columns that are sent at a time
_NEARER = 0.1  # part of the tolerance that each problem is brought to


class Optimum(NamedTuple):
    """What was found; with which objective the rows are still to be asked.

    Attributes
    ----------
    points : ndarray of shape (n_problems, n_weights)
        Of each problem.
    before : ndarray of shape (n_problems,)
        Objective of the model before.
    bases : ndarray of shape (n_problems,)
        No model is below that without the penalty at the point.
    """

    points: np.ndarray
    before: np.ndarray
    bases: np.ndarray

    def bound(self, penalties: np.ndarray) -> float:
        """What no model's mean objective is below, from the penalty at each point."""
        return float((self.bases - penalties).mean())


def few_rows_round(params: RefineParams, problem: Problem) -> int | None:
    """After how many rounds the products of pairs of rows are looked at, if ever."""
    penalty = Penalty.of(params.penalty, params.alpha, params.l1_ratio)
    is_known = isinstance(params.loss, str) and params.loss in FEW_ROWS_LOSSES
    if params.refine != "auto" or not is_known or penalty.l1 or not penalty.l2:
        return None
    n_rows, n_features = problem.total_rows, problem.shard.n_features
    n_cubes = problem.n_problems * n_rows**3
    if n_cubes > _MOST_CUBES or problem.total_stored > _MOST_ELEMENTS:
        return None
    is_kinked = params.loss in _KINKED
    is_wide = n_rows <= _WIDE * n_features or (is_kinked and n_cubes <= _TINY_CUBES)
    n_stored = problem.total_stored
    few = _FEW_PAIRS if n_stored == n_rows * n_features else _FEW_SPARSE_PAIRS
    n_easy = _FEW_CUBES if is_kinked else _FEW_SMOOTH_CUBES
    is_quick = n_cubes <= n_easy and n_stored**2 <= few * n_features
    return 0 if is_wide and is_quick else _PATIENCE


def find_optimum(
    group: Group,
    problem: Problem,
    params: RefineParams,
    coordinates: Coordinates,
    model: LinearModel,
    add_up: Adder | None,
) -> Optimum:
    """Have rank 0 find the optimum; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        The rows to train on, few of them.
    params : RefineParams
        Parameters of the fit.
    coordinates : Coordinates
        Centre of the columns, and level of the targets.
    model : LinearModel
        The best one before.
    add_up : callable or None
        Sums arrays over ranks.

    Returns
    -------
    optimum : Optimum
        The same on all ranks.
    """
    shard = problem.shard
    centre = coordinates.standardization.centre
    rows = _gather_rows(group, shard, model)
    products = _gather_products(group, shard, centre, problem.total_rows)
    told = None
    if rows is not None and products is not None:
        found = _Rows(products, *rows, problem=problem, params=params)
        told = found.solve(coordinates, model)
    shares, intercepts, before, bases = broadcast(group, told)
    first = sum(allgather(group, shard.n_rows)[: group.rank])
    coef = np.zeros(model.coef.shape)
    for block in shard.read():
        own = shares[:, first : first + len(block.y)]
        coef += np.asarray((block.X.T @ own.T).T)
        first += len(block.y)
    (coef,) = allreduce(group, [coef]) if add_up is None else add_up([coef])
    # As of centred rows, whose products the shares are from.
    coef -= shares.sum(axis=1)[:, np.newaxis] * centre
    points = coef * coordinates.units
    if params.fit_intercept:
        points = np.column_stack([points, intercepts])
    return Optimum(points, before, bases)


class _Rows:
    """All rows on one rank: products of pairs, targets, weights, values of a model."""

    def __init__(
        self,
        products: np.ndarray,
        y: np.ndarray,
        weights: np.ndarray,
        values: np.ndarray,
        *,
        problem: Problem,
        params: RefineParams,
    ) -> None:
        self._products = products
        self._y = y
        self._weights = weights / problem.total_weight
        self._values = values
        self._problem = problem
        self._params = params
        self._loss = make_loss(params.loss, params.epsilon)

    def solve(self, coordinates: Coordinates, model: LinearModel) -> tuple[Any, ...]:
        """What all ranks make the points of, and how sure these are."""
        # Shares of rows, intercepts at the centre, counted from the level, objectives
        # of the model before, and bounds without penalties.
        n_problems, params = self._problem.n_problems, self._params
        shares = np.zeros((n_problems, len(self._y)))
        intercepts, bases = np.zeros(n_problems), np.full(n_problems, -np.inf)
        before = np.array([self._before(k, model) for k in range(n_problems)])
        level = 0.0 if params.is_classifier else coordinates.level
        for k, (targets, weights) in enumerate(self._tasks()):
            filled = np.flatnonzero(weights)
            found = few_rows_optimum(
                self._products[filled[:, np.newaxis], filled],
                targets[filled] - level,
                weights[filled],
                self._loss,
                params.alpha,
                intercept=None if params.fit_intercept else float(model.intercept[k]),
                unit=coordinates.spread,
                tol=_NEARER * params.refine_tol,
            )
            if np.isfinite(found.gap):
                shares[k, filled] = found.shares
                intercepts[k], bases[k] = found.intercept, found.base
        return shares, intercepts, before, bases

    def _before(self, k: int, model: LinearModel) -> float:
        """Objective of the model before."""
        targets, weights = list(self._tasks())[k]
        losses = self._loss.value(targets, self._values[:, k])
        square = float(np.vdot(model.coef[k], model.coef[k].astype(np.float64)))
        objective = float(weights @ losses) + 0.5 * self._params.alpha * square
        return objective if np.isfinite(objective) else np.inf

    def _tasks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Targets and weights of the rows in each problem."""
        problem, weights = self._problem, self._weights
        if problem.classes is None:
            yield self._y.astype(np.float64), weights
            return
        for own in zip(
            *(a.T for a in class_tasks(problem, self._y, weights)), strict=True
        ):
            yield np.ascontiguousarray(own[0]), np.ascontiguousarray(own[1])


def class_tasks(
    problem: Problem, y: np.ndarray, weights: np.ndarray, numbers: Any = slice(None)
) -> tuple[np.ndarray, np.ndarray]:
    """What rows are in the problems of the classes.

    Parameters
    ----------
    problem : Problem
        With the weights of the classes.
    y : ndarray of int, shape (n_rows,)
        Numbers of the classes.
    weights : ndarray of shape (n_rows,)
        Weights of the rows.
    numbers : slice or list of int, default=slice(None)
        Which problems.

    Returns
    -------
    targets, weights : ndarray of float64, shape (n_rows, n_problems)
        -1 or 1, and weights with those of the classes.
    """
    targets = one_vs_rest_targets(y, problem.n_problems, problems=numbers)
    factors = np.ones(targets.shape)
    if problem.positive_weight is not None:
        factors = positive_factors(targets, problem.positive_weight[numbers])
    return targets, factors * weights[:, np.newaxis]


def _gather_rows(
    group: Group, shard: Shard, model: LinearModel
) -> tuple[np.ndarray, ...] | None:
    """Targets, weights, and values of a model of all rows, on rank 0."""
    coef, intercept = (array.astype(np.float64) for array in model)
    own = []
    for block in shard.read():
        parts = [part for _, part in chunked_predictions(block.X, coef, intercept)]
        own.append((block.y, block.weights(), np.concatenate(parts)))
    found = gather(group, own)
    if found is None:
        return None
    blocks = [block for part in found for block in part]
    y, weights, values = map(np.concatenate, zip(*blocks, strict=True))
    return y, weights, values.reshape(len(y), -1)


def _gather_products(
    group: Group, shard: Shard, centre: np.ndarray, n_rows: int
) -> np.ndarray | None:
    """Products of all pairs of centred rows, on rank 0."""
    is_sparse = np.array(float(shard.is_sparse))
    if allreduce(group, is_sparse, "max"):
        return _gather_sparse(group, shard, centre)
    blocks = [block.X for block in shard.read()]
    products, width = np.zeros((n_rows, n_rows)), max(1, _CHUNK // n_rows)
    for start in range(0, len(centre), width):
        some = slice(start, start + width)
        parts = gather(group, [X[:, some] for X in blocks])
        if parts is not None:
            rows = np.concatenate([X for part in parts for X in part])
            rows = rows - centre[some]
            products += rows @ rows.T
    return None if group.rank else products


def _gather_sparse(group: Group, shard: Shard, centre: np.ndarray) -> np.ndarray | None:
    """The same from sparse rows, of which centred ones would have no zeros."""
    own = [(X.data, X.indices, X.indptr) for X in (block.X for block in shard.read())]
    parts = gather(group, own)
    if parts is None:
        return None
    rows = [
        sparse.csr_array(tuple(arrays), shape=(len(arrays[2]) - 1, len(centre)))
        for part in parts
        for arrays in part
    ]
    X = sparse.vstack(rows, format="csr").astype(np.float64)
    return CentredRows(X, centre).products()
