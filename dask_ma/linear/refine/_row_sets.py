"""The optimum of one problem with a hinge, from ever better sets of its rows.

Rows beyond their margin have no part in the optimum. The optimum of some rows tells
which they are: those that it leaves on the wrong side of their margin are added, and
those without a part in it left out, until there are none to add (chunking: V. Vapnik,
"Estimation of dependences based on empirical data", 1982). What no model is below for
some rows holds for all of them, since no loss is negative.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dask_ma.kernels import FewRowsOptimum, few_rows_optimum
from dask_ma.linear.refine._centred import CentredRows

# Rows to begin with: at least so many, else this many times those within the margin,
# and of each sign this part of them.
FEWEST, _MORE, _OF_EACH_SIGN = 100, 1.5, 0.25
# Most rows that are added, against those there are, or so many.
_ADDED, _FEWEST_ADDED = 0.3, 50
# Shares, against the largest, of rows without a part, of which the method leaves some.
_NO_PART = 2e-3
_MOST_SETS = 40
# Rows of a set: four matrices of so many rows and columns are 128 MiB.
_MOST_ROWS = 2048
# Gap, against the objective, that a set may have which others follow; and against what
# rows that are not in the set cost.
_LOOSE, _OF_OTHERS = 0.003, 0.1
# Parts of the tolerance that the last set may have, and all rows together.
_NEARER, NEAR = 0.4, 0.5


class RowSetOptimum(NamedTuple):
    """Where the objective of a problem is lowest.

    Attributes
    ----------
    coef : ndarray of shape (n_features,)
        Coefficients.
    intercept : float
        Value at the centre of the columns.
    objective : float
        The objective of all rows.
    base : float
        No model is below ``base - alpha/2 ||coef||^2``.
    gap : float
        How far the objective is above its optimum at most.
    """

    coef: np.ndarray
    intercept: float
    objective: float
    base: float
    gap: float

    @property
    def bound(self) -> float:
        """What no model is below."""
        return self.objective - self.gap


def best_level(targets: np.ndarray, weights: np.ndarray, values: np.ndarray) -> float:
    """The intercept of the least loss: a quantile.

    Parameters
    ----------
    targets, weights
        As :class:`RowSets` takes them.
    values : ndarray of shape (n_rows,)
        Products of the rows with coefficients.

    Returns
    -------
    level : float
        Value at the centre of the columns.
    """
    kinks = targets - values
    order = np.argsort(kinks)
    passed = np.cumsum(weights[order])
    place = int(np.searchsorted(passed, float(weights[targets > 0].sum())))
    return float(kinks[order[min(place, len(order) - 1)]])


def optimum_of_one_sign(
    rows: CentredRows, targets: np.ndarray, weights: np.ndarray
) -> RowSetOptimum | None:
    """The optimum where all rows that count have one sign, which an intercept gives.

    Parameters
    ----------
    rows, targets, weights
        As :class:`RowSets` takes them.

    Returns
    -------
    optimum : RowSetOptimum or None
        None where there are both signs.
    """
    signs = np.unique(targets[weights > 0])
    if len(signs) > 1:
        return None
    none = np.zeros(rows.n_features)
    return RowSetOptimum(none, float(signs.sum()), 0.0, 0.0, 0.0)


class RowSets:
    """Sets of rows, the optimum of each of which leads to the next one.

    Parameters
    ----------
    rows : CentredRows
        All rows.
    targets : ndarray of shape (n_rows,)
        -1 or 1.
    weights : ndarray of shape (n_rows,)
        At least 0; their sum is that of all rows in the objective.
    alpha : float
        Weight of half the squared length of the coefficients, above 0.
    intercept : float or None
        One that stays; None finds the best one.
    tol : float
        Gap that is asked for, relative to the objective.

    Attributes
    ----------
    best : RowSetOptimum or None
        That of the set with the least gap.
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
        self._within = _LOOSE  # gap that the next set may have
        self._floor = -np.inf  # what no model is below
        self.best: RowSetOptimum | None = None

    def solve(self, values: np.ndarray) -> Iterator[int]:
        """Go from set to set; each is solved when the next one is asked for.

        Parameters
        ----------
        values : ndarray of shape (n_rows,)
            Products of the rows with the coefficients of a model, from which the first
            set is chosen.

        Yields
        ------
        size : int
            Number of rows in the next set.
        """
        level = self._intercept
        if level is None:
            level = best_level(self._targets, self._weights, values)
        chosen = self._first(self._targets * (values + level))
        self._within = max(_NEARER * self._tol, _LOOSE)
        for _ in range(_MOST_SETS):
            if len(chosen) > _MOST_ROWS:
                return
            yield len(chosen)
            found = few_rows_optimum(
                self._rows.products(chosen),
                self._targets[chosen],
                self._weights[chosen],
                "hinge",
                self._alpha,
                intercept=self._intercept,
                tol=self._within,
            )
            if not np.isfinite(found.gap):
                return
            margins, paid = self._look(chosen, found)
            assert self.best is not None
            is_last = self._within <= _NEARER * self._tol
            wrong = np.flatnonzero((margins < 1) & (self._weights > 0))
            wrong = np.setdiff1d(wrong, chosen, assume_unique=True)
            is_near = self.best.gap <= NEAR * self._tol * self.best.objective
            if is_near or (is_last and not len(wrong)):
                return
            chosen = self._next(chosen, found, margins, wrong)
            others = _OF_OTHERS * paid / found.objective
            self._within = max(_NEARER * self._tol, min(_LOOSE, others))

    def _first(self, margins: np.ndarray) -> np.ndarray:
        """Rows that are nearest to their margins, or within, of both signs."""
        margins = np.where(self._weights > 0, margins, np.inf)
        n_within = np.count_nonzero(margins < 1)
        size = max(FEWEST, round(_MORE * n_within))
        parts = [_lowest(margins, size)]
        for sign in (-1.0, 1.0):
            own = np.where(self._targets == sign, margins, np.inf)
            parts.append(_lowest(own, round(_OF_EACH_SIGN * size)))
        return np.unique(np.concatenate(parts))

    def _look(
        self, chosen: np.ndarray, found: FewRowsOptimum
    ) -> tuple[np.ndarray, float]:
        """Margins of all rows, and what those that are not in the set cost."""
        coef = self._rows.sum(found.shares, chosen)
        margins = self._targets * (self._rows.values(coef) + found.intercept)
        losses = self._weights * np.maximum(1 - margins, 0.0)
        losses[chosen] = 0.0
        paid = float(losses.sum())
        gap = found.gap + paid
        if self.best is None or gap < self.best.gap:
            objective = found.objective + paid
            self.best = RowSetOptimum(coef, found.intercept, objective, found.base, gap)
        return margins, paid

    def _next(
        self,
        chosen: np.ndarray,
        found: FewRowsOptimum,
        margins: np.ndarray,
        wrong: np.ndarray,
    ) -> np.ndarray:
        """Rows that have a part, and the worst of those that should have one."""
        floor = found.objective - found.gap
        if floor > self._floor:
            # Sets of rows that are left out and come back would follow otherwise.
            has_part = self._has_share(chosen, found) | (margins[chosen] < 1)
            kept = chosen[has_part]
        else:
            kept = chosen
        self._floor = max(floor, self._floor)
        most = max(_FEWEST_ADDED, round(_ADDED * len(chosen)))
        if len(wrong) > most:
            wrong = wrong[_lowest(margins[wrong], most)]
        return np.sort(np.concatenate([kept, wrong]))

    def _has_share(self, chosen: np.ndarray, found: FewRowsOptimum) -> np.ndarray:
        """Which rows have a share that counts beside the largest of their sign."""
        # Those of one sign add up to those of the other: few rows may face very many.
        shares = np.abs(found.shares)
        counts = np.zeros(len(shares), dtype=bool)
        for sign in (-1.0, 1.0):
            own = self._targets[chosen] == sign
            counts[own] = shares[own] > _NO_PART * shares[own].max(initial=0.0)
        return counts


def _lowest(values: np.ndarray, number: int) -> np.ndarray:
    """Places of so many of the lowest values that are finite."""
    n_finite = int(np.count_nonzero(np.isfinite(values)))
    number = min(number, n_finite)
    if number == len(values):
        return np.arange(number)
    return np.argpartition(values, number)[:number]
