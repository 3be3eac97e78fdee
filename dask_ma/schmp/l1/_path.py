"""Regularisation paths, and cross-validation, as each rank carries them out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import allgather, broadcast
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
from dask_ma.exceptions import CheckpointError
from dask_ma.kernels import SquaredError
from dask_ma.layouts._column_design import ColumnDesign
from dask_ma.layouts._design import Design
from dask_ma.schmp.l1._agent import (
    describe,
    lay_out,
    make_penalty,
    newly_touched,
    work_of,
)
from dask_ma.schmp.l1._few_columns import are_few_columns, fit_path, squared_errors
from dask_ma.schmp.l1._grid import above_rounding, note_on_units
from dask_ma.schmp.l1._losses import WeightedLoss
from dask_ma.schmp.l1._params import SchMPParams
from dask_ma.schmp.l1._problem import Objective, Penalty, Sparse
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
        return 2 * n_alphas * (1 + self.n_paths)

    @property
    def n_paths(self) -> int:
        """Paths over folds."""
        return _n_folds(self.splits) * len(self.l1_ratios)


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
    state = context.restore_state()
    data = _prepare(context, arguments, params)
    folds = Folds(context, data, params)
    fit_rounds(context, folds, state)
    index, place = _best(context, folds.errors)
    final = replace(params, l1_ratio=params.l1_ratios[index])
    walk = _Walk(data, final, data.weight)
    walk.run(folds.alphas[index, place : place + 1])
    fitted = describe(walk.solver, data.problem, walk.certificate, walk.n_iter)
    fitted.update(
        alpha=float(folds.alphas[index, place]),
        l1_ratio=float(params.l1_ratios[index]),
        alphas=folds.alphas,
        mse_path=folds.errors,
        slow=folds.slow,
        gap_asked=walk.gap_asked,
    )
    return FitResult(fitted, not walk.slow, context.history, context.timeline())


class Folds(Method):
    """A path for each `l1_ratio` and fold; making one is a collective call."""

    may_be_ended = False  # the best penalty is that of all folds
    _walk: _Walk

    def __init__(self, context: RankContext, data: _Data, params: PathParams) -> None:
        super().__init__(context, data.log)
        self._data = data
        self._params = params
        self._n_folds = _n_folds(params.splits)
        ratios = params.l1_ratios
        self.alphas = np.stack(
            [_alphas(data, replace(params, l1_ratio=ratio)) for ratio in ratios]
        )
        self.errors = np.full((*self.alphas.shape, self._n_folds), np.nan)
        self.slow: list[float] = []

    @property
    def is_complete(self) -> bool:
        return self.n_rounds >= self._params.n_paths

    @property
    def _place(self) -> tuple[int, int]:
        """Numbers of the `l1_ratio` and of the fold of a round."""
        return divmod(self.n_rounds - 1, self._n_folds)

    def load_state_dict(self, state: State) -> None:
        self.errors = _restored(state.shared["errors"], self.errors)
        # Of fewer rows, where some were lost, they would not be those of the errors.
        self.alphas = _restored(state.shared["alphas"], self.alphas)
        self.slow = [float(gap) for gap in state.shared["slow"]]

    def state_dict(self) -> Snapshot:
        errors, slow = self.errors.copy(), np.array(self.slow)
        return Snapshot({"errors": errors, "alphas": self.alphas, "slow": slow})

    def round(self) -> Work:
        data, params = self._data, self._params
        index, fold = self._place
        train, test = _fold(data, params.splits, fold, int(data.n_rows))
        params = replace(params, l1_ratio=params.l1_ratios[index])
        self._walk = walk = _Walk(data, params, train, test)
        walk.run(self.alphas[index])
        self.errors[index, :, fold] = walk.errors
        self.slow += walk.slow
        return work_of(walk.solver, walk.certificate)

    def measure(self) -> list[np.ndarray]:
        return [newly_touched(self._walk.solver)]

    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        index, fold = self._place
        record["n_touched"] = int(sums[0][0])
        record["l1_ratio"], record["fold"] = float(self._params.l1_ratios[index]), fold
        record["mean_squared_error"] = float(np.min(self._walk.errors))

    def model(self) -> Model:
        walk, (index, _) = self._walk, self._place
        found = describe(
            walk.solver, self._data.problem, walk.certificate, self.n_rounds
        )
        # It is the last one of the path.
        chosen = {"alpha": float(self.alphas[index, -1])}
        return {**found, **chosen, "l1_ratio": self._params.l1_ratios[index]}


def _restored(found: Any, expected: np.ndarray) -> np.ndarray:
    """A copy of what was kept of the folds."""
    if np.shape(found) != expected.shape or found.dtype != expected.dtype:
        raise CheckpointError(
            f"what is kept of the folds has the shape {np.shape(found)} and the type "
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
    largest = above_rounding(walk.solver, data.n_rows, params.eps)
    if largest is None:  # the targets depend on some feature
        largest = walk.solver.reach
    n = int(params.alphas)
    grid = np.geomspace(largest, largest * params.eps, n) if n > 1 else [largest]
    note = note_on_units(walk.solver, data.n_rows, float(grid[-1]))
    if note is not None and note not in data.context.notes:  # of another l1_ratio
        data.context.note(note)
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
        n_features = self._data.design.n_features
        penalties = [
            make_penalty(n_features, replace(self._params, alpha=float(alpha)))
            for alpha in alphas
        ]
        if are_few_columns(self._objective, penalties):
            return self._run_by_products(penalties)
        points = []
        for penalty in penalties:
            self.solver.change_penalty(penalty)
            self._solve()
            points.append(self._point())
            if self._test is not None:
                self.errors.append(self._error())
        return points

    def _run_by_products(self, penalties: list[Penalty]) -> list[PathPoint]:
        """The same, from products of all columns; a collective call."""
        objective, solver, tol = self._objective, self.solver, self._params.tol
        linear = solver.gradient()[:, 0]
        models = fit_path(objective, linear, penalties, tol)
        points = []
        for coef, gap, asked in zip(*models, strict=True):
            nonzero = np.flatnonzero(coef)
            model = Sparse(nonzero, coef[nonzero], np.zeros(1))
            intercept = objective.shown_intercept(model)
            points.append(PathPoint(nonzero, model.coef, intercept, float(gap), 1))
            if gap > asked:
                self.slow.append(float(gap) / objective.null)
        if self._test is not None:
            errors = squared_errors(objective, models.coef, self._test)
            self.errors += (errors / self.test_weight).tolist()
        solver.change_penalty(penalties[-1])
        solver.go_on_from(model)
        self.certificate, self.n_iter = solver.check(), 1
        return points

    def _solve(self) -> None:
        """Solve for the present penalty, to the gap asked if the rounds are enough."""
        self.certificate = self.solver.check()
        self.n_iter = 0
        while not self._is_met and self.n_iter < self._params.max_iter:
            self.solver.improve()
            self.certificate = self.solver.check()
            self.n_iter += 1
        self.n_iter = max(1, self.n_iter)
        if not self._is_met:
            self.slow.append(self.certificate.gap / self._objective.null)

    @property
    def gap_asked(self) -> float:
        """Gap at which a model is done."""
        return self._objective.gap_asked(self._params.tol, self.certificate.objective)

    @property
    def _is_met(self) -> bool:
        """Whether the model is done."""
        return self.certificate.gap <= self.gap_asked

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
