"""The penalty that cross-validation chooses next to scikit-learn's, and the model."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LassoCV

from dask_ma import SchMPLassoCV

from .cells import Cell, arrange, every_cell
from .exact import solve
from .objectives import make_objective
from .rule import Result, classify
from .sets import load

_EXACT = {"tol": 1e-8, "max_iter": 100_000}
_SAME = 1e-6  # relative, of two penalties of a grid


@dataclass(frozen=True)
class Paths:
    """SchMPLassoCV, with its defaults."""

    name: str = "SchMPLassoCV"
    penalty: str = "l1"

    def __str__(self) -> str:
        return self.name


def every_path_cell() -> list[Cell]:
    """All cells: those of a regression."""
    return every_cell("regression")


def judge_paths(paths: Paths, cell: Cell) -> Result:
    """Fit a cell; its penalty must be as good as the best, and its model at that."""
    is_sorted, is_weighted = cell.layout.startswith("sorted"), cell.layout == "weighted"
    X, y, weight = arrange(load("regression", cell.rows), cell.layout)
    model = SchMPLassoCV(n_ranks=cell.n_ranks)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y, sample_weight=weight)
    seconds = time.perf_counter() - start
    grid = _grid(cell.rows, is_sorted, is_weighted)
    excess = grid.excess(model, cell.rows, is_weighted)
    peer = _peer_excess(cell.rows, is_sorted, is_weighted)
    said = [
        str(one.message)
        for one in caught
        if issubclass(one.category, ConvergenceWarning)
    ]
    verdict = classify(excess, peer, said, model.get_params())
    text = f"alpha {model.alpha_:.4g}, best {grid.best:.4g}. " + " ".join(said)
    return Result(paths, cell, verdict, excess, peer, seconds, text)


@dataclass(frozen=True, eq=False)
class Grid:
    """Penalties, and the mean error over the folds of exact models of each.

    Attributes
    ----------
    alphas, errors : ndarray of shape (n_alphas,)
    """

    alphas: np.ndarray
    errors: np.ndarray

    @property
    def best(self) -> float:
        """The penalty of the least error."""
        return float(self.alphas[self.errors.argmin()])

    def excess(self, model: Any, name: str, weighted: bool) -> float:
        """Of its penalty's error over the least, or of its objective at that penalty.

        A penalty that is not of the grid is as bad as can be.
        """
        at = int(np.abs(np.log(self.alphas / model.alpha_)).argmin())
        if abs(self.alphas[at] / model.alpha_ - 1) > _SAME:
            return np.inf
        rows = load("regression", name)
        weight = rows.sample_weight if weighted else None
        alpha = float(self.alphas[at])
        objective = make_objective(rows.X, rows.y, weight, "squared_error", alpha, 1.0)
        least = _least(name, weighted, alpha)
        value = objective.value(model.coef_, model.intercept_)
        return max(float(self.errors[at] / self.errors.min()), value / least) - 1


def _fit_peer(name: str, is_sorted: bool, weighted: bool, **params: Any) -> LassoCV:
    """scikit-learn's estimator, of rows in the order in which folds are cut."""
    rows = load("regression", name)
    X, y, _ = arrange(rows, "sorted" if is_sorted else "one block")
    weight = rows.sample_weight if weighted else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LassoCV(**params).fit(X, y, sample_weight=weight)


@cache
def _grid(name: str, is_sorted: bool, weighted: bool) -> Grid:
    """That of exact models."""
    peer = _fit_peer(name, is_sorted, weighted, **_EXACT)
    return Grid(peer.alphas_, peer.mse_path_.mean(axis=1))


@cache
def _peer_excess(name: str, is_sorted: bool, weighted: bool) -> float:
    """Excess of the peer's defaults."""
    grid = _grid(name, is_sorted, weighted)
    return grid.excess(_fit_peer(name, is_sorted, weighted), name, weighted)


@cache
def _least(name: str, weighted: bool, alpha: float) -> float:
    """The least value of the objective."""
    rows = load("regression", name)
    weight = rows.sample_weight if weighted else None
    return solve(make_objective(rows.X, rows.y, weight, "squared_error", alpha, 1.0))
