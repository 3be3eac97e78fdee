"""The optimum of one problem with a hinge, by ascent in its dual.

With centred rows `x_i`, targets `y_i` of -1 and 1, and weights `w_i` the problem is ::

    min_{coef, b}  sum_i w_i max(0, 1 - y_i (coef . x_i + b)) + alpha/2 ||coef||^2

and its dual ::

    max_u  sum_i u_i - alpha/2 ||coef(u)||^2,   coef(u) = 1/alpha sum_i u_i y_i x_i,
    0 <= u_i <= w_i,   sum_i u_i y_i = 0

At the optimum `u_i` is 0 for rows beyond their margin and `w_i` for those within. So
the `u` of rows alone are moved that a model has near their margins, or where it says
that they are wrong: by some steps of L-BFGS between bounds (R. Byrd, P. Lu, J. Nocedal,
C. Zhu, "A limited memory algorithm for bound constrained optimization", 1995), with the
constraint as an augmented Lagrangian. They make the next model. Whatever the `u` are,
as soon as the constraint holds no model is below the dual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dask_ma.linear.refine._centred import CentredRows
from dask_ma.linear.refine._row_sets import NEAR, RowSetOptimum, best_level

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

    Attributes
    ----------
    best : RowSetOptimum or None
        The best model of those that the variables made.
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
        self._rows = rows
        self._targets = targets
        self._weights = weights
        self._alpha = alpha
        self._intercept = intercept
        self._tol = tol
        self._bound = -np.inf  # what no model is below
        self.best: RowSetOptimum | None = None

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
        level = self._level(values)
        margins = self._targets * (values + level)
        counts = self._weights > 0
        near = (np.abs(1 - margins) <= FIRST) & counts
        if not near.any():
            near = counts
        u = self._weights * np.clip(0.5 + (1 - margins) / (2 * FIRST), 0.0, 1.0)
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
            margins, level = self._look(u, chosen)
            best = self.best
            if best is None or best.gap <= NEAR * self._tol * best.objective:
                return
            n_in_vain = 0 if best.gap < gap else n_in_vain + 1
            is_hopeless = number >= _HOPE and best.bound <= 0  # as none is below 0
            if n_in_vain == _PATIENCE or is_hopeless:
                return
            gap = best.gap
            near = (u > 0) & (u < self._weights)
            # A model of zeros has all rows of one sign right at their margins.
            near |= (u == 0) & counts & (margins <= 1 + _AT_MARGIN)
            near |= (u == self._weights) & (u > 0) & (margins > 1)

    def _level(self, values: np.ndarray) -> float:
        """What goes best with products of rows and coefficients."""
        if self._intercept is not None:
            return self._intercept
        return best_level(self._targets, self._weights, values)

    def _ascend(
        self, u: np.ndarray, chosen: np.ndarray, level: float, n_steps: int
    ) -> None:
        """Move the variables of some rows by some steps, in place."""
        from scipy import optimize  # few fits need it, and it takes a while to load

        rows = self._rows.part(chosen)
        squares = rows.squares()
        # Second derivatives are alike then, however long the rows are.
        mean = float(squares.mean()) or 1.0
        units = np.sqrt(mean / np.maximum(squares, _SHORTEST * mean))
        units *= self._weights[chosen].mean()
        most = self._weights[chosen] / units
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
        u[chosen] = np.where(is_most, self._weights[chosen], found.x * units)

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
        alpha, y = self._alpha, self._targets[chosen]
        others = np.flatnonzero(u)
        others = np.setdiff1d(others, chosen, assume_unique=True)
        signed = u[others] * self._targets[others]
        fixed, excess = self._rows.sum(signed, others) / alpha, float(signed.sum())
        weight = 0.0
        if self._intercept is None:
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

    def _look(self, u: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, float]:
        """Margins of all rows by the model that the variables make, and its level."""
        alpha, given = self._alpha, self._intercept
        is_feasible = given is not None or self._balance(u, chosen)
        some = np.flatnonzero(u)
        shares = u[some] * self._targets[some]
        coef = self._rows.sum(shares, some) / alpha
        values = self._rows.values(coef)
        penalty = 0.5 * alpha * float(coef @ coef)
        level = self._level(values)
        margins = self._targets * (values + level)
        objective = float(self._weights @ np.maximum(1 - margins, 0.0)) + penalty
        if is_feasible:
            paid = 0.0 if given is None else given * float(shares.sum())
            self._bound = max(self._bound, float(u.sum()) - paid - penalty)
        self._note(coef, level, objective)
        return margins, level

    def _balance(self, u: np.ndarray, chosen: np.ndarray) -> bool:
        """Let the constraint hold, in place; whether the chosen rows could do it."""
        y = self._targets
        total = float(u @ y)
        room = np.where(
            y[chosen] * total < 0, self._weights[chosen] - u[chosen], u[chosen]
        )
        there = float(room.sum())
        if there < abs(total):
            return False
        if total:
            u[chosen] -= y[chosen] * room * (total / there)
        return True

    def _note(self, coef: np.ndarray, level: float, objective: float) -> None:
        """Keep a model that is the best one so far, and the bound beside the best."""
        if not np.isfinite(objective):
            return
        best: Any = self.best
        if best is not None and best.objective <= objective:
            coef, level, objective = best.coef, best.intercept, best.objective
        gap = max(objective - self._bound, 0.0)
        base = self._bound + 0.5 * self._alpha * float(coef @ coef)
        self.best = RowSetOptimum(coef, level, objective, base, gap)
