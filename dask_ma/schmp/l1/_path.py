"""Regularisation paths, and cross-validation, as each rank carries them out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import allgather, broadcast
from dask_ma.data import Shard
from dask_ma.engine import RankContext, RoundLog
from dask_ma.exceptions import CheckpointError
from dask_ma.kernels import SquaredError
from dask_ma.layouts._column_design import ColumnDesign
from dask_ma.layouts._design import Design
from dask_ma.schmp.l1._agent import describe, lay_out, make_penalty, make_record
from dask_ma.schmp.l1._losses import WeightedLoss
from dask_ma.schmp.l1._params import SchMPParams
from dask_ma.schmp.l1._problem import Objective, Sparse
from dask_ma.schmp.l1._solver import DualityGap
from dask_ma.schmp.l1._working_set import WorkingSets
from dask_ma.supervised import FitResult, Problem, agree_on_problem

Split = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class PathParams(SchMPParams):
    """Parameters of paths; `alpha` and `l1_ratio` of the base stand for none.

    Parameters
    ----------
    l1_ratios : tuple of float
        One path is made for each.
    alphas : ndarray or int
        Weights of the penalty, or how many there are to be.
    eps : float
        The smallest weight over the largest one, where `alphas` is a number.
    splits : int or list of (train, test), or None
        Numbers of the rows that each fold trains on and is tested with; an int stands
        for so many runs of consecutive rows to test with. None makes paths alone.
    """

    l1_ratios: tuple[float, ...]
    alphas: np.ndarray | int
    eps: float
    splits: int | list[Split] | None

    @property
    def n_rounds(self) -> int:
        """Gradients over all features to expect: two for each model."""
        n_alphas = self.alphas if isinstance(self.alphas, int) else len(self.alphas)
        n_folds = 0 if self.splits is None else _n_folds(self.splits)
        return 2 * n_alphas * (1 + n_folds * len(self.l1_ratios))


class PathPoint(NamedTuple):
    """The model for one weight of the penalty."""

    coordinates: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray
    gap: float
    n_iter: int


def trace_path(context: RankContext, arguments: Any, params: PathParams) -> FitResult:
    """Fit the models for all weights of the penalty, each starting from the last.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : PathParams
        Parameters of the path; its first `l1_ratio` counts.

    Returns
    -------
    result : FitResult
        `fitted` holds `alphas`, `points`, a list of PathPoint, and `slow`, the gaps of
        those that have not converged, over the objective without coefficients.
    """
    context.restore_state()
    data = _prepare(context, arguments, params)
    params = replace(params, l1_ratio=params.l1_ratios[0])
    alphas = _alphas(data, params)
    walk = _Walk(data, params, data.weight)
    points = walk.run(alphas)
    fitted = {
        "alphas": alphas,
        "points": points,
        "slow": walk.slow,
        "n_features": data.design.n_features,
        "dtype": data.problem.dtype,
    }
    return FitResult(fitted, not walk.slow, context.history, context.timeline())


def cross_validate(
    context: RankContext, arguments: Any, params: PathParams
) -> FitResult:
    """Find the best weight of the penalty by paths over folds, and fit with it.

    Rows of a fold that are not trained on have the weight 0, so no row moves.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : PathParams
        Parameters of the paths.

    Returns
    -------
    result : FitResult
        `fitted` describes the final model, and holds `alpha`, `l1_ratio`, `alphas` of
        shape (n_l1_ratios, n_alphas), `mse_path` of shape (n_l1_ratios, n_alphas,
        n_folds), and `slow` as :func:`trace_path` has it, of all folds.
    """
    kept = context.restore_state()
    data = _prepare(context, arguments, params)
    n_rows = int(data.n_rows)
    splits = params.splits
    n_folds = _n_folds(splits)
    ratios = params.l1_ratios
    alphas = np.stack([_alphas(data, replace(params, l1_ratio=r)) for r in ratios])
    errors = np.full((len(ratios), alphas.shape[1], n_folds), np.nan)
    slow: list[float] = []
    n_done = 0
    if kept is not None:
        errors = _restored(kept.shared["errors"], errors)
        slow = [float(gap) for gap in kept.shared["slow"]]
        n_done = kept.round
    total = len(ratios) * n_folds
    for number in range(n_done, total):
        index, fold = divmod(number, n_folds)
        train, test = _fold(data, splits, fold, n_rows)
        walk = _Walk(data, replace(params, l1_ratio=ratios[index]), train, test)
        walk.run(alphas[index])
        errors[index, :, fold] = walk.errors
        slow += walk.slow
        record = make_record(data.log, number + 1, walk.solver, walk.certificate)
        record["l1_ratio"], record["fold"] = float(ratios[index]), fold
        record["mean_squared_error"] = float(np.min(walk.errors))
        fitted = describe(walk.solver, data.problem, walk.certificate, number + 1)
        context.record(record, fitted)
        shared = {"errors": errors.copy(), "slow": np.array(slow)}
        context.save_state(number + 1, shared, done=number + 1 == total)
    best = _best(context, errors)
    index, place = int(best[0]), int(best[1])
    final = replace(params, l1_ratio=ratios[index])
    walk = _Walk(data, final, data.weight)
    walk.run(alphas[index, place : place + 1])
    fitted = describe(walk.solver, data.problem, walk.certificate, walk.n_iter)
    fitted.update(
        alpha=float(alphas[index, place]),
        l1_ratio=float(ratios[index]),
        alphas=alphas,
        mse_path=errors,
        slow=slow,
        gap_asked=params.tol * walk.solver.objective.null,
    )
    return FitResult(fitted, not walk.slow, context.history, context.timeline())


def _restored(found: Any, expected: np.ndarray) -> np.ndarray:
    """A copy of what was kept of the folds."""
    if np.shape(found) != expected.shape or found.dtype != expected.dtype:
        raise CheckpointError(
            f"the errors of the folds have the shape {np.shape(found)} and the type "
            f"{found.dtype}, expected {expected.shape} and {expected.dtype}"
        )
    return np.array(found)


class _Data(NamedTuple):
    """Data of a rank, laid out for any number of paths."""

    context: RankContext
    problem: Problem
    design: Design
    y: np.ndarray
    weight: np.ndarray
    numbers: np.ndarray  # of the rows of this rank in the input
    n_rows: int  # of all ranks
    log: RoundLog


def _prepare(context: RankContext, arguments: Any, params: PathParams) -> _Data:
    """Lay the data out; a collective call."""
    group = context.group
    problem = agree_on_problem(
        group, arguments, params, drop_weightless=params.splits is None
    )
    log = RoundLog(context)
    with log.computing():
        laid_out = lay_out(group, problem, params)
    numbers = _row_numbers(problem.shard)
    if isinstance(laid_out.design, ColumnDesign):  # all rows, in the order of the ranks
        numbers = np.concatenate(allgather(group, numbers))
    return _Data(
        context,
        problem,
        laid_out.design,
        laid_out.y,
        laid_out.weight,
        numbers,
        problem.total_rows,
        log,
    )


def _row_numbers(shard: Shard) -> np.ndarray:
    """Numbers of the rows of a shard in the whole input."""
    parts = [np.zeros(0, dtype=np.int64)]
    for block in shard.blocks:
        if block.start is None:
            raise ValueError(
                f"block {block.index} does not say which rows it has; expected blocks "
                "whose lengths are known"
            )
        parts.append(np.arange(block.start, block.start + len(block.y)))
    return np.concatenate(parts)


def _alphas(data: _Data, params: PathParams) -> np.ndarray:
    """Weights of the penalty, the largest first; a collective call."""
    if not isinstance(params.alphas, int | np.integer):
        return np.sort(np.asarray(params.alphas, dtype=np.float64))[::-1]
    if params.l1_ratio == 0:
        raise ValueError(
            "alphas cannot be chosen for l1_ratio=0, where no weight of the penalty "
            "is large enough for zeros; give alphas"
        )
    walk = _Walk(data, replace(params, alpha=1.0), data.weight)
    largest = walk.solver.reach
    if largest <= 0:  # the targets do not depend on any feature
        largest = float(np.finfo(np.float64).resolution)
    n = int(params.alphas)
    grid = np.geomspace(largest, largest * params.eps, n) if n > 1 else [largest]
    return np.asarray(grid, dtype=np.float64)


def _fold(
    data: _Data, splits: int | list[Split] | None, fold: int, n_rows: int
) -> Split:
    """Weights of the rows of this rank for training and for testing a fold."""
    if isinstance(splits, int):
        sizes = np.full(splits, n_rows // splits)
        sizes[: n_rows % splits] += 1
        stop = int(sizes[: fold + 1].sum())
        start = stop - int(sizes[fold])
        is_test = (data.numbers >= start) & (data.numbers < stop)
        is_train = ~is_test
    else:
        train, test = (splits or [])[fold]
        is_train = np.isin(data.numbers, train)
        is_test = np.isin(data.numbers, test)
    return is_train * data.weight, is_test * data.weight


def _n_folds(splits: int | list[Split] | None) -> int:
    """Number of folds."""
    return splits if isinstance(splits, int) else len(splits or [])


def _best(context: RankContext, errors: np.ndarray) -> list[int]:
    """Where the mean error over folds, all alike, is least; a collective call."""
    mean = errors.mean(axis=-1)
    place = np.unravel_index(int(np.argmin(mean)), mean.shape)
    best: list[int] = broadcast(context.group, [int(i) for i in place])
    return best


class _Walk:
    """One path over given weights of the rows; making one is a collective call."""

    def __init__(
        self,
        data: _Data,
        params: PathParams,
        weight: np.ndarray,
        test: np.ndarray | None = None,
    ) -> None:
        self._data, self._params, self._test = data, params, test
        total = float(data.design.sum(np.array(weight.sum())))
        if not total > 0:
            raise ValueError("a fold has no row with a positive weight to train on")
        data.design.restore()
        loss = WeightedLoss(SquaredError(), data.y, weight / total)
        penalty = make_penalty(data.design.n_features, params)
        self._objective = Objective(data.design, loss, penalty, params.fit_intercept)
        model = Sparse.empty(1)
        self.solver = WorkingSets(self._objective, model, data.log)
        self.certificate: DualityGap = self.solver.check()
        self.test_weight = 0.0
        if test is not None:
            self.test_weight = float(data.design.sum(np.array(test.sum())))
            if not self.test_weight > 0:
                raise ValueError(
                    "a fold of cv has no row with a positive weight to test with; "
                    "choose fewer folds than rows"
                )
        self.errors: list[float] = []
        self.slow: list[float] = []  # relative gaps of models that have not converged
        self.n_iter = 0

    def run(self, alphas: np.ndarray) -> list[PathPoint]:
        """Models for falling weights of the penalty."""
        points = []
        for alpha in alphas:
            params = replace(self._params, alpha=float(alpha))
            penalty = make_penalty(self._data.design.n_features, params)
            self.solver.change_penalty(penalty)
            self._solve()
            points.append(self._point())
            if self._test is not None:
                self.errors.append(self._error())
        return points

    def _solve(self) -> None:
        """Solve for the present penalty, to the gap asked if the rounds are enough."""
        target = self._params.tol * self._objective.null
        self.certificate = self.solver.check()
        self.n_iter = 0
        while self.certificate.gap > target and self.n_iter < self._params.max_iter:
            self.solver.improve()
            self.certificate = self.solver.check()
            self.n_iter += 1
        self.n_iter = max(1, self.n_iter)
        if self.certificate.gap > target:
            self.slow.append(self.certificate.gap / self._objective.null)

    def _point(self) -> PathPoint:
        model = self.solver.model
        nonzero = np.flatnonzero(model.coef)
        return PathPoint(
            model.coordinates[nonzero],
            model.coef[nonzero],
            self._objective.shown_intercept(model),
            self.certificate.gap,
            self.n_iter,
        )

    def _error(self) -> float:
        """Mean squared error of the rows to test with; a collective call."""
        assert self._test is not None
        loss, margins = self._objective.loss, self._objective.margins[:, 0]
        error = np.array(self._test @ (loss.y - margins) ** 2)
        return float(self._data.design.sum(error)) / self.test_weight
