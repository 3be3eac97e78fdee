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
from dask_ma.linear.refine._coordinates import Coordinates, Penalty
from dask_ma.supervised._problem import Problem

# Cubes of the rows, for each problem, and elements of all rows: of some twenty systems
# of equations one takes 0.1 s with the first number, and 0.4 s with the second, with
# which others go first; and the elements are sent to one rank, 256 MiB.
_FEW_CUBES, _MOST_CUBES, _MOST_ELEMENTS = 2**31, 2**33, 2**25
# Rows, for each feature, up to which others often need hundreds of rounds; and rounds
# after which they are known to.
_WIDE, _PATIENCE = 2, 100
_CHUNK = 2**20  # elements of columns that are sent at a time
_NEARER = 0.1  # part of the tolerance that each problem is brought to


class Optimum(NamedTuple):
    """What was found.

    Attributes
    ----------
    model : LinearModel
        In the dtype of the problem.
    objective, gap : float
        The mean over the problems, and how far it is above its optimum at most.
    tolerance : float
        How far it may be.
    """

    model: LinearModel
    objective: float
    gap: float
    tolerance: float

    @property
    def is_converged(self) -> bool:
        """Whether it is as near as asked for."""
        return self.gap <= self.tolerance


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
    is_wide = n_rows <= _WIDE * n_features
    return 0 if is_wide and n_cubes <= _FEW_CUBES else _PATIENCE


def find_optimum(
    group: Group,
    problem: Problem,
    params: RefineParams,
    coordinates: Coordinates,
    model: LinearModel,
    add_up: Adder | None,
    zero: float,
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
        The best one before, which is kept where it is better.
    add_up : callable or None
        Sums arrays over ranks.
    zero : float
        Part of the objective of `model` that is as good as zero.

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
        told = found.solve(coordinates, model, zero)
    shares, intercepts, kept, objective, gap, tolerance = broadcast(group, told)
    first = sum(allgather(group, shard.n_rows)[: group.rank])
    coef = np.zeros(model.coef.shape)
    for block in shard.read():
        own = shares[:, first : first + len(block.y)]
        coef += np.asarray((block.X.T @ own.T).T)
        first += len(block.y)
    (coef,) = allreduce(group, [coef]) if add_up is None else add_up([coef])
    intercepts = intercepts - coef @ centre
    coef, intercepts = coef.astype(problem.dtype), intercepts.astype(problem.dtype)
    coef[kept], intercepts[kept] = model.coef[kept], model.intercept[kept]
    return Optimum(LinearModel(coef, intercepts), objective, gap, tolerance)


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

    def solve(
        self, coordinates: Coordinates, model: LinearModel, zero: float
    ) -> tuple[Any, ...]:
        """What all ranks make the model of, and how sure that is."""
        # Shares of rows, intercepts at the centre, which problems keep the model
        # before, the mean objective, its gap, and the largest gap that there may be.
        n_problems, params = self._problem.n_problems, self._params
        shares = np.zeros((n_problems, len(self._y)))
        intercepts, kept = np.zeros(n_problems), np.zeros(n_problems, dtype=bool)
        before = np.array([self._before(k, model) for k in range(n_problems)])
        least = zero * float(before.mean())
        objectives, gaps = np.zeros((2, n_problems))
        level = coordinates.level
        for k, (targets, weights) in enumerate(self._tasks()):
            filled = np.flatnonzero(weights)
            found = few_rows_optimum(
                self._products[filled[:, np.newaxis], filled],
                targets[filled] - (0.0 if params.is_classifier else level),
                weights[filled],
                self._loss,
                params.alpha,
                intercept=None if params.fit_intercept else float(model.intercept[k]),
                unit=coordinates.spread,
                tol=_NEARER * params.refine_tol,
            )
            kept[k] = not found.objective <= before[k]
            objectives[k] = min(found.objective, before[k])
            gaps[k] = found.gap
            if np.isfinite(found.gap):
                gaps[k] -= found.objective - objectives[k]
                shares[k, filled] = found.shares
                intercepts[k] = found.intercept + level
        mean, gap = float(objectives.mean()), float(gaps.mean())
        gap = max(0.0, gap) if np.isfinite(gap) else np.inf
        tolerance = params.refine_tol * max(abs(mean), least)
        return shares, intercepts, kept, mean, gap, tolerance

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
        targets = one_vs_rest_targets(self._y, problem.n_problems)
        factors = np.ones(targets.shape)
        if problem.positive_weight is not None:
            factors = positive_factors(targets, problem.positive_weight)
        for own, factor in zip(targets.T, factors.T, strict=True):
            yield np.ascontiguousarray(own), weights * factor


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
    along = X @ centre
    products = np.asarray((X @ X.T).toarray())
    products -= along + along[:, np.newaxis]
    products += centre @ centre
    return products
