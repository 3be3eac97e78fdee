"""The optimum of one problem with a hinge, by ascent in its dual.

Problem, dual and variables are those of :mod:`~dask_ma.linear.refine._hinge_dual`.
At the optimum `u_i` is 0 for rows beyond their margin and `w_i` for those within. So
the `u` of rows alone are moved that a model has near their margins, or where it says
that they are wrong: by some steps of L-BFGS between bounds (R. Byrd, P. Lu, J. Nocedal,
C. Zhu, "A limited memory algorithm for bound constrained optimization", 1995), with the
constraint as an augmented Lagrangian. They make the next model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from dask_ma.linear.refine._centred import CentredRows
from dask_ma.linear.refine._hinge_dual import HingeDual
from dask_ma.linear.refine._row_sets import NEAR, RowSetOptimum

#: Distance from the margin of rows that are moved at first.
FIRST = 0.15
#: Steps between two looks at all rows, at least.
STEPS = 20
# Change of a set, in parts, up to which its rows are known and more steps are made.
_SAME, _MOST_STEPS = 0.005, 320
# Sets at most, those in a row that bring nothing, and those before a bound is known.
_MOST_SETS, _PATIENCE, _HOPE = 100, 8, 5
_SHORTEST = 1e-4  # of the mean squared length of rows, that one is taken to have
_MEMORY = 20  # steps that L-BFGS remembers
# Weight of the squared sum of the constraint, against that of a row's own product.
_WEIGHT = 0.1
# Relative change of the dual, and slope against a row's loss, that are rounding.
_ROUNDING, _FLAT = 1e-14, 1e-10
_AT_MARGIN = 1e-9  # beyond it, where rows are taken to be there


class DualAscent:
    """Sets of rows near their margins, whose variables of the dual are moved.

    Parameters
    ----------
    rows, targets, weights, alpha, intercept, tol
        As :class:`~dask_ma.linear.refine._row_sets.RowSets` takes them; with a free
        intercept, rows that count have both targets.
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
        """The best model of those that the variables made."""
        return self._dual.best

    def solve(self, values: np.ndarray) -> Iterator[int]:
        """Go from set to set; each is worked on when the next one is asked for.

        Parameters
        ----------
        values : ndarray of shape (n_rows,)
            Products of the rows with the coefficients of a model, from which the first
            set is chosen.

        Yields
        ------
        size : int
            Number of rows in the next set, as many times as there are
            :data:`STEPS` steps to come.
        """
        dual, weights = self._dual, self._dual.weights
        level = dual.level(values)
        margins = dual.targets * (values + level)
        counts = weights > 0
        near = (np.abs(1 - margins) <= FIRST) & counts
        if not near.any():
            near = counts
        u = weights * np.clip(0.5 + (1 - margins) / (2 * FIRST), 0.0, 1.0)
        n_before, n_steps, gap, n_in_vain = 0, STEPS, np.inf, 0
        for number in range(_MOST_SETS):
            chosen = np.flatnonzero(near)
            if not len(chosen):
                return
            is_same = abs(len(chosen) - n_before) <= _SAME * n_before
            n_steps = min(2 * n_steps, _MOST_STEPS) if is_same else STEPS
            n_before = len(chosen)
            yield len(chosen) * n_steps // STEPS
            self._ascend(u, chosen, level, n_steps)
            margins, level = dual.look(u, chosen)
            best = self.best
            if best is None or best.gap <= NEAR * self._tol * best.objective:
                return
            n_in_vain = 0 if best.gap < gap else n_in_vain + 1
            is_hopeless = number >= _HOPE and best.bound <= 0  # as none is below 0
            if n_in_vain == _PATIENCE or is_hopeless:
                return
            gap = best.gap
            near = (u > 0) & (u < weights)
            # A model of zeros has all rows of one sign right at their margins.
            near |= (u == 0) & counts & (margins <= 1 + _AT_MARGIN)
            near |= (u == weights) & (u > 0) & (margins > 1)

    def _ascend(
        self, u: np.ndarray, chosen: np.ndarray, level: float, n_steps: int
    ) -> None:
        """Move the variables of some rows by some steps, in place."""
        from scipy import optimize  # few fits need it, and it takes a while to load

        rows, weights = self._dual.rows.part(chosen), self._dual.weights[chosen]
        squares = rows.squares()
        # Second derivatives are alike then, however long the rows are.
        mean = float(squares.mean()) or 1.0
        units = np.sqrt(mean / np.maximum(squares, _SHORTEST * mean))
        units *= weights.mean()
        most = weights / units
        found = optimize.minimize(
            self._dual_of(u, chosen, rows, level, units, mean),
            np.minimum(u[chosen] / units, most),
            jac=True,
            method="L-BFGS-B",
            bounds=optimize.Bounds(0.0, most),
            options={
                "maxiter": n_steps,
                "maxcor": _MEMORY,
                "ftol": _ROUNDING,
                "gtol": _FLAT,
            },
        )
        # Rounding in units is not to leave a variable beside its bound.
        is_most = found.x >= most
        u[chosen] = np.where(is_most, weights, found.x * units)

    def _dual_of(
        self,
        u: np.ndarray,
        chosen: np.ndarray,
        rows: CentredRows,
        level: float,
        units: np.ndarray,
        square: float,
    ) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        """Minus the dual and its slopes, as a function of some variables in units."""
        dual = self._dual
        alpha, y = dual.alpha, dual.targets[chosen]
        others = np.flatnonzero(u)
        others = np.setdiff1d(others, chosen, assume_unique=True)
        signed = u[others] * dual.targets[others]
        fixed, excess = dual.rows.sum(signed, others) / alpha, float(signed.sum())
        weight = 0.0
        if dual.intercept is None:
            weight = _WEIGHT * square / alpha
        unit = float(units.mean())
        parts = units / unit

        def negative(v: np.ndarray) -> tuple[float, np.ndarray]:
            moved = units * v
            shares = moved * y
            coef = fixed + rows.sum(shares) / alpha
            total = excess + float(shares.sum())
            value = 0.5 * alpha * float(coef @ coef) - float(moved.sum())
            value += (level + 0.5 * weight * total) * total
            margins = y * (rows.values(coef) + (level + weight * total))
            return value / unit, parts * (margins - 1)

        return negative
