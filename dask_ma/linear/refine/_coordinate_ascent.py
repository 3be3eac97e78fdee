"""The optimum of one problem with a hinge, by its dual's coordinates, one by one.

Lengths of rows that differ by orders of magnitude, as counts of words have them, are in
the way of steps along derivatives, but not of those that move one variable at a time
(C.-J. Hsieh, K.-W. Chang, C.-J. Lin, S. Keerthi, S. Sundararajan, "A dual coordinate
descent method for large-scale linear SVM", 2008). LIBLINEAR makes them, which has a
penalty on the intercept, a small one here, and does not tell the variables. Those
of rows beyond or within their margins are known, and least squares tell the others: the
coefficients are a sum of rows. With the variables there is a bound.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator

import numpy as np
from scipy import sparse

from dask_ma.linear.refine._centred import CentredRows
from dask_ma.linear.refine._hinge_dual import HingeDual
from dask_ma.linear.refine._row_sets import RowSetOptimum

# Value of the column whose coefficient is the intercept, against the middle length of
# rows, and what rows may miss their margins by, against the tolerance: at first, and if
# that was not enough. Larger columns take more epochs.
_STAGES = ((0.3, 0.5), (1.0, 0.05))
_NEAR = 0.9  # parts of the tolerance that the gap may have
# Rows are taken to be at their margins that are so many times as near as they may be,
# if need be more of them: where epochs have run out, some are still on their way.
_AT_MARGIN = (10.0, 100.0)
# Least squares.
_MOST_STEPS, _RESIDUAL = 1000, 1e-9
# LIBLINEAR draws from one stream of random numbers, and filters of warnings are those
# of the process, too, of which ranks may be threads.
_ALONE = threading.Lock()


class CoordinateAscent:
    """Variables of the dual that are moved one after the other.

    Parameters
    ----------
    rows, targets, weights, alpha, intercept, tol
        As :class:`~dask_ma.linear.refine._row_sets.RowSets` takes them.
    """

    def __init__(
        self,
        rows: CentredRows,
        targets: np.ndarray,
        weights: np.ndarray,
        alpha: float,
        *,
        intercept: float | None,
        tol: float,
    ) -> None:
        self._dual = HingeDual(rows, targets, weights, alpha, intercept=intercept)
        self._tol = tol

    @property
    def best(self) -> RowSetOptimum | None:
        """The best model that was found."""
        return self._dual.best

    def solve(self, n_epochs: int) -> Iterator[None]:
        """Come nearer to the optimum each time that more is asked for.

        Parameters
        ----------
        n_epochs : int
            How often all variables are moved each time, at most.

        Yields
        ------
        nothing : None
            Before the work is done.
        """
        dual = self._dual
        counts = dual.weights > 0
        # Of others LIBLINEAR can find no level.
        has_both = len(np.unique(dual.targets[counts])) == 2
        if not has_both or dual.intercept not in (None, 0.0):
            return
        lengths = np.sqrt(dual.rows.squares()[counts])
        middle = float(np.median(lengths)) or 1.0
        for column, nearness in _STAGES:
            yield
            missed = self._tol * nearness
            coef, level, has_ended = self._descend(n_epochs, missed, column * middle)
            dual.consider(coef)
            for times in _AT_MARGIN:
                dual.look(*self._variables(coef, level, times * missed))
                best = self.best
                if best is None or best.gap <= _NEAR * self._tol * best.objective:
                    return
            if not has_ended:  # nor would it with a larger column
                return

    def _descend(
        self, n_epochs: int, missed: float, column: float
    ) -> tuple[np.ndarray, float, bool]:
        """The model that LIBLINEAR finds, its level, and whether it is near enough."""
        from sklearn import config_context
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.svm import LinearSVC

        dual = self._dual
        X, n_rows = dual.rows.shifted, len(dual.weights)
        if sparse.issparse(X):  # LIBLINEAR takes no other indices
            places = (
                part.astype(np.int32, copy=False) for part in (X.indices, X.indptr)
            )
            X = sparse.csr_array((X.data, *places), shape=X.shape)
        solver = LinearSVC(
            loss="hinge",
            C=1 / (dual.alpha * n_rows),
            tol=missed,
            max_iter=n_epochs,
            fit_intercept=dual.intercept is None,
            intercept_scaling=column,
            random_state=0,
        )
        is_checked = config_context(skip_parameter_validation=True)
        with _ALONE, is_checked, warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # what tells is the gap
            solver.fit(X, dual.targets, dual.weights * n_rows)
        level = float(np.sum(solver.intercept_))
        return solver.coef_[0], level, int(solver.n_iter_) < n_epochs

    def _variables(
        self, coef: np.ndarray, level: float, near: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Variables of the dual that make coefficients, and rows at their margins."""
        from scipy.sparse.linalg import LinearOperator, lsmr

        dual = self._dual
        margins = dual.targets * (dual.rows.shifted @ coef + level)
        u = np.where(margins < 1 - near, dual.weights, 0.0)
        free = np.flatnonzero((np.abs(margins - 1) <= near) & (dual.weights > 0))
        if not len(free):
            return u, free
        rows, y = dual.rows.part(free), dual.targets[free]
        squares = rows.squares()
        # The constraint is a column of the rows, about as large as they are.
        one = 0.0 if dual.intercept is not None else float(np.sqrt(np.median(squares)))
        units = y / np.sqrt(np.maximum(squares + one**2, np.finfo(float).tiny))

        def products(v: np.ndarray) -> np.ndarray:
            shares = units * v.ravel()
            return np.append(rows.sum(shares), one * shares.sum())

        def values(v: np.ndarray) -> np.ndarray:
            v = v.ravel()
            return units * (rows.values(v[:-1]) + one * v[-1])

        shape = rows.n_features + 1, len(free)
        system = LinearOperator(shape, products, values, dtype=np.float64)
        fixed = u * dual.targets
        wanted = dual.alpha * coef - dual.rows.sum(fixed)
        wanted = np.append(wanted, -one * fixed.sum())
        found, *_ = lsmr(
            system,
            wanted,
            atol=_RESIDUAL,
            btol=_RESIDUAL,
            conlim=0.0,
            maxiter=_MOST_STEPS,
        )
        u[free] = np.clip(np.abs(units) * found, 0.0, dual.weights[free])
        return u, free
