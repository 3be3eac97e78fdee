"""The dual of one problem with a hinge: models that its variables make, and bounds.

With centred rows `x_i`, targets `y_i` of -1 and 1, and weights `w_i` the problem is ::

    min_{coef, b}  sum_i w_i max(0, 1 - y_i (coef . x_i + b)) + alpha/2 ||coef||^2

and its dual ::

    max_u  sum_i u_i - alpha/2 ||coef(u)||^2,   coef(u) = 1/alpha sum_i u_i y_i x_i,
    0 <= u_i <= w_i,   sum_i u_i y_i = 0

Whatever the `u` are, as soon as the constraint holds no model is below the dual.
"""

from __future__ import annotations

import numpy as np

from dask_ma.linear.refine._centred import CentredRows
from dask_ma.linear.refine._row_sets import RowSetOptimum, best_level


class HingeDual:
    """What is known of a problem from variables of its dual.

    Parameters
    ----------
    rows, targets, weights, alpha, intercept
        As :class:`~dask_ma.linear.refine._row_sets.RowSets` takes them; with a free
        intercept, rows that count have both targets.

    Attributes
    ----------
    best : RowSetOptimum or None
        The best model so far.
    """

    def __init__(
        self,
        rows: CentredRows,
        targets: np.ndarray,
        weights: np.ndarray,
        alpha: float,
        *,
        intercept: float | None,
    ) -> None:
        self.rows = rows
        self.targets = targets
        self.weights = weights
        self.alpha = alpha
        self.intercept = intercept
        self._bound = -np.inf  # what no model is below
        self.best: RowSetOptimum | None = None

    def level(self, values: np.ndarray) -> float:
        """What goes best with products of rows and coefficients."""
        if self.intercept is not None:
            return self.intercept
        return best_level(self.targets, self.weights, values)

    def look(self, u: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, float]:
        """Take note of the model that variables make, and of their bound.

        Parameters
        ----------
        u : ndarray of shape (n_rows,)
            Between zero and the weights; those of chosen rows are moved until the
            constraint holds, if they can be.
        chosen : ndarray of int, shape (n_chosen,)

        Returns
        -------
        margins : ndarray of shape (n_rows,)
            Those of all rows by the model.
        level : float
            Its value at the centre of the columns.
        """
        given = self.intercept
        is_feasible = given is not None or self._balance(u, chosen)
        some = np.flatnonzero(u)
        shares = u[some] * self.targets[some]
        coef = self.rows.sum(shares, some) / self.alpha
        if is_feasible:
            paid = 0.0 if given is None else given * float(shares.sum())
            dual = float(u.sum()) - paid - 0.5 * self.alpha * float(coef @ coef)
            self._bound = max(self._bound, dual)
        return self.consider(coef)

    def consider(self, coef: np.ndarray) -> tuple[np.ndarray, float]:
        """Take note of a model, by its coefficients.

        Parameters
        ----------
        coef : ndarray of shape (n_features,)

        Returns
        -------
        margins : ndarray of shape (n_rows,)
        level : float
        """
        values = self.rows.values(coef)
        level = self.level(values)
        margins = self.targets * (values + level)
        objective = float(self.weights @ np.maximum(1 - margins, 0.0))
        objective += 0.5 * self.alpha * float(coef @ coef)
        self._note(coef, level, objective)
        return margins, level

    def _balance(self, u: np.ndarray, chosen: np.ndarray) -> bool:
        """Let the constraint hold, in place; whether the chosen rows could do it."""
        y = self.targets
        total = float(u @ y)
        room = np.where(
            y[chosen] * total < 0, self.weights[chosen] - u[chosen], u[chosen]
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
        best = self.best
        if best is not None and best.objective <= objective:
            coef, level, objective = best.coef, best.intercept, best.objective
        gap = max(objective - self._bound, 0.0)
        base = self._bound + 0.5 * self.alpha * float(coef @ coef)
        self.best = RowSetOptimum(coef, level, objective, base, gap)
