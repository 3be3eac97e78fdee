"""Sparse regression problems, the gap that judges all solvers, and the solvers."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

from ._solvers import require

GENES = ("riboflavin", "gordon", "nakayama")
NAMES = (*GENES, "imdb", "synthetic")
_MOST_REPEATS, _ENOUGH_SECONDS = 7, 3.0


class SparseProblem(NamedTuple):
    """A regression with an intercept and an L1 penalty.

    Attributes
    ----------
    name : str
    features : ndarray in C order or csr_matrix, of shape (n_rows, n_columns)
    targets : ndarray of shape (n_rows,)
    """

    name: str
    features: Any
    targets: np.ndarray

    @property
    def alpha_max(self) -> float:
        """Smallest weight of the penalty with which all coefficients are zero."""
        centred = self.targets - self.targets.mean()
        return float(np.abs(self.features.T @ centred).max() / len(centred))

    def by_columns(self) -> Any:
        """The features in the order that coordinate descent likes."""
        if sparse.issparse(self.features):
            return self.features.tocsc()
        return np.asfortranarray(self.features)

    def gap(self, coef: np.ndarray, alpha: float) -> float:
        """Duality gap over the objective without coefficients, with the best intercept.

        The residuals, shrunk until no column violates its bound, are the dual point.
        """
        n = len(self.targets)
        centred = self.targets - self.targets.mean()
        residuals = self.targets - self.features @ coef
        residuals -= residuals.mean()
        primal = residuals @ residuals / (2 * n) + alpha * np.abs(coef).sum()
        steepest = np.abs(self.features.T @ residuals).max() / n
        dual_point = residuals / max(1.0, steepest / alpha)
        rest = centred - dual_point
        dual = (centred @ centred - rest @ rest) / (2 * n)
        return float((primal - dual) / (centred @ centred / (2 * n)))


class Result(NamedTuple):
    """What a solver needed.

    Attributes
    ----------
    tol : float
        Its tolerance.
    seconds : float
        Processor time of the whole call of `fit`, the median of some runs.
    gap : float
        See :meth:`SparseProblem.gap`.
    n_nonzero : int
    """

    tol: float
    seconds: float
    gap: float
    n_nonzero: int


Solver = Callable[[SparseProblem, Any, float, float], Any]


def load_problem(name: str, folder: Path | None) -> SparseProblem:
    """Read or make one of the problems; all but "synthetic" need `folder`."""
    if name == "synthetic":
        return make_correlated()
    if folder is None:
        raise ValueError(f"{name} needs --data or DASK_MA_DATA")
    if name == "imdb":
        features = sparse.load_npz(folder / "imdb" / "X_train.npz").astype(np.float64)
        stars = np.load(folder / "imdb" / "rating_train.npy")
        return SparseProblem(name, features.tocsr(), stars.astype(np.float64))
    with np.load(folder / "gene_expression" / f"{name}.npz") as file:
        features, targets = file["X"], file["y"]
    if name == "nakayama":
        targets = targets == targets.min()  # the first class against the others
    return SparseProblem(
        name,
        np.ascontiguousarray(features, dtype=np.float64),
        targets.astype(np.float64),
    )


def make_correlated(
    n_rows: int = 463, n_columns: int = 100_000, block: int = 50, seed: int = 0
) -> SparseProblem:
    """Blocks of columns with correlations of 0.7, and 100 coefficients."""
    rng = np.random.default_rng(seed)
    features = np.empty((n_rows, n_columns))
    for start in range(0, n_columns, block):
        common = rng.standard_normal((n_rows, 1))
        own = rng.standard_normal((n_rows, block))
        features[:, start : start + block] = np.sqrt(0.7) * common + np.sqrt(0.3) * own
    coef = np.zeros(n_columns)
    coef[rng.choice(n_columns, 100, replace=False)] = rng.standard_normal(100)
    targets = features @ coef + 2 * rng.standard_normal(n_rows)
    return SparseProblem("synthetic", features, targets)


def fit_dask_ma(problem: SparseProblem, columns: Any, alpha: float, tol: float) -> Any:
    """SchMPLasso without a client, on the rows as they are."""
    from dask_ma import SchMPLasso

    return SchMPLasso(alpha, tol=tol).fit(problem.features, problem.targets)


def fit_celer(problem: SparseProblem, columns: Any, alpha: float, tol: float) -> Any:
    """celer's Lasso on the columns."""
    require("celer", "pip install celer")
    from celer import Lasso as CelerLasso

    model = CelerLasso(alpha, tol=tol, max_iter=200, max_epochs=100_000)
    return model.fit(columns, problem.targets)


def fit_sklearn(problem: SparseProblem, columns: Any, alpha: float, tol: float) -> Any:
    """scikit-learn's Lasso on the columns."""
    model = Lasso(alpha, tol=tol, max_iter=200_000)
    return model.fit(columns, problem.targets)


SOLVERS: dict[str, Solver] = {
    "dask_ma": fit_dask_ma,
    "celer": fit_celer,
    "sklearn": fit_sklearn,
}


def measure(
    solver: Solver,
    problem: SparseProblem,
    columns: Any,
    alpha: float,
    target: float,
    tolerances: list[float],
) -> Result:
    """Time a solver with the largest tolerance that gives a gap up to `target`.

    Raises
    ------
    RuntimeError
        If none does.
    """
    gap = np.inf
    for tol in tolerances:
        seconds, model = _timed(solver, problem, columns, alpha, tol)
        coef = np.asarray(model.coef_, dtype=np.float64)
        gap = problem.gap(coef, alpha)
        if gap <= target:
            break
    else:
        raise RuntimeError(f"{solver.__name__} has a gap of {gap:g} on {problem.name}")
    times = [seconds]
    while sum(times) < _ENOUGH_SECONDS and len(times) < _MOST_REPEATS:
        times.append(_timed(solver, problem, columns, alpha, tol)[0])
    return Result(tol, statistics.median(times), gap, int(np.count_nonzero(coef)))


def _timed(
    solver: Solver, problem: SparseProblem, columns: Any, alpha: float, tol: float
) -> tuple[float, Any]:
    """Processor time of a fit, and the fitted model."""
    with warnings.catch_warnings():
        # A tolerance out of reach shows in the gap.
        warnings.simplefilter("ignore", ConvergenceWarning)
        start = time.process_time()
        model = solver(problem, columns, alpha, tol)
        return time.process_time() - start, model
