"""Shrinkage of each row of the weights by the penalty, without touching them all.

In step `s` the penalty divides row `j` of the weights by ``1 + a_s * p_j``, where `p_j`
is its element of the preconditioner. The product over many steps is a smooth function
of ``log p``. It is followed at the nodes of short intervals of ``log p``, whose number
does not depend on that of the features, and is interpolated in between by polynomials,
to about 1e-12 of itself (:class:`Intervals`). Where every step takes little, its
logarithm is a short power series in `p`, which takes a fraction of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dask_ma.butterfly._intervals import AT_ONCE, Intervals

# What the polynomials cost is most of what a step on sparse rows takes.
_MOST_OCTAVES = 80
_SHORT_SERIES = 0.03  # largest `a * p` whose series is shorter than the polynomials


def decay_range(preconditioner: np.ndarray | None) -> tuple[float, float] | None:
    """Least and largest element; None where :class:`Decay` cannot follow the range."""
    if preconditioner is None:
        return 1.0, 1.0
    low, high = float(preconditioner.min()), float(preconditioner.max())
    if low > 0 and math.isfinite(high) and high / low < 2.0**_MOST_OCTAVES:
        return low, high
    return None


def rows_with_values(weights: np.ndarray) -> np.ndarray:
    """Rows of weights that are not all 0."""
    # Flags are found in a quarter of the time that numbers take.
    return np.flatnonzero(_have_values(weights))


def has_most_rows(weights: np.ndarray) -> bool:
    """Whether more than half of the rows of weights are not all 0."""
    # To count flags takes a tenth of what it takes to name the rows.
    return 2 * int(np.count_nonzero(_have_values(weights))) > len(weights)


def _have_values(weights: np.ndarray) -> np.ndarray:
    """Whether each row of weights is not all 0."""
    if weights.shape[1] > 1:
        return np.asarray(weights.any(axis=1))
    return np.asarray(weights[:, 0] != 0)


class Decay:
    """Product over steps of what the penalty leaves of each row, since its restart.

    Rows that are shrunk much are restarted one after the other, those with the largest
    elements of the preconditioner most often.

    Parameters
    ----------
    preconditioner : ndarray of shape (n_features,) or None
        None is 1 everywhere.
    bounds : (float, float)
        Its :func:`decay_range`.
    n_features : int
        The row of this number is that of the intercepts, which nothing shrinks.
    dtype : numpy.dtype
        Type of the factors.
    most : float
        Logarithm by which a row may be shrunk before it is to be restarted.
    amounts : ndarray of shape (n_steps,)
        What :meth:`advance` is going to be called with.

    Attributes
    ----------
    total : float
        Sum of the coefficients of :meth:`count`, what :meth:`sums` has for intercepts.
    """

    def __init__(
        self,
        preconditioner: np.ndarray | None,
        bounds: tuple[float, float],
        n_features: int,
        dtype: np.dtype,
        most: float,
        amounts: np.ndarray,
    ) -> None:
        self._preconditioner = preconditioner
        self._n_features = n_features
        self._dtype = dtype
        self._most = most
        self._intervals = Intervals(bounds)
        self._nodes = self._intervals.nodes
        self._logs = np.zeros_like(self._nodes)
        self._sums = np.zeros_like(self._nodes)
        self.total = 0.0
        self._find_restarted(amounts)
        largest = float(amounts.max(initial=0)) * float(self._nodes.max())
        self._terms = np.zeros(_n_terms(largest))
        # Rows that begin anew by themselves have sums of their own.
        self._has_series = largest <= _SHORT_SERIES and not len(self._rows)

    def _find_restarted(self, amounts: np.ndarray) -> None:
        """Sort the rows that these steps shrink too much, by their intervals."""
        largest = self._nodes.max(axis=1) if len(amounts) else np.zeros(1)
        most = amounts.max(initial=0) * largest
        reached = np.minimum(len(amounts) * np.log1p(most), amounts.sum() * largest)
        self._lowest = int(np.searchsorted(reached, self._most))
        if self._lowest == len(reached):
            rows = np.arange(0)
        elif self._preconditioner is None:
            rows = np.arange(self._n_features)
        else:
            rows = np.flatnonzero(
                self._preconditioner >= self._intervals.start(self._lowest)
            )
        intervals = self._intervals.find(self.elements(rows)).astype(np.int16)
        order = np.argsort(intervals, kind="stable")
        self._rows = rows[order]
        self._starts = np.searchsorted(intervals[order], np.arange(len(reached)))

    @property
    def due(self) -> int | None:
        """First of the intervals that are to be restarted, None for none."""
        logs = self._logs[:, 0]  # the node that is shrunk most
        if logs[-1] <= self._most:
            return None
        # Those that are soon to follow come along.
        return max(self._lowest, int(np.searchsorted(logs, self._most / 2)))

    def rows_from(self, interval: int) -> np.ndarray:
        """Rows of an interval that is due, and of those beyond."""
        return self._rows[self._starts[interval] :]

    def advance(self, amount: float) -> None:
        """Count a step; `amount` is its length times the weight of the penalty."""
        self._logs += np.log1p(amount * self._nodes)
        if self._has_series:  # log(1 + a p) = a p - (a p)^2 / 2 + (a p)^3 / 3 - ...
            number = np.arange(1, len(self._terms) + 1)
            self._terms -= (-amount) ** number / number

    def count(self, coefficient: float) -> None:
        """Add the factors as they are now, times a coefficient, to the sums."""
        self._sums += coefficient * np.exp(-self._logs)
        self.total += coefficient

    def restart(self, interval: int) -> None:
        """Begin anew in an interval and those beyond: factors of 1 and sums of 0.

        The row of the intercepts is in none of them.
        """
        self._logs[interval:] = 0
        self._sums[interval:] = 0
        self._terms[:] = 0

    def elements(self, rows: np.ndarray) -> np.ndarray:
        """The preconditioner of some rows, of shape (n,); any number for intercepts."""
        if self._preconditioner is None:
            return np.ones(len(rows), self._dtype)
        return self._preconditioner.take(rows, mode="clip")

    def factors(self, rows: np.ndarray, interval: int = 0) -> np.ndarray:
        """What is left of some rows.

        Parameters
        ----------
        rows : ndarray of int, shape (n,)
            Their numbers; that of the intercepts may be among them.
        interval : int, default=0
            Rows below this interval have a factor of 1.

        Returns
        -------
        factors : ndarray of shape (n, 1), from 0 to 1
        """
        elements = self.elements(rows)
        if not interval:
            factors = self.factors_of(elements)
        else:
            factors = np.ones((len(rows), 1), self._dtype)
            there = np.flatnonzero(elements >= self._intervals.start(interval))
            factors[there] = self.factors_of(elements.take(there), interval)
        factors[rows == self._n_features] = 1
        return factors

    def shrink(
        self, weights: np.ndarray, first: int = 0, last: int | None = None
    ) -> None:
        """Multiply all rows, or those of a range, by what is left of them, in place."""
        logarithm = self._logarithm(self._n_features)
        if logarithm is None:
            return
        last = self._n_features if last is None else last
        # What is read in order takes half of the time that picking it takes.
        for start in range(first, last, AT_ONCE):
            rows = slice(start, min(start + AT_ONCE, last))
            if self._preconditioner is None:
                elements = np.ones(rows.stop - rows.start, self._dtype)
            else:
                elements = self._preconditioner[rows]
            weights[rows] *= self._exponential(logarithm(elements))

    def factors_of(self, elements: np.ndarray, interval: int = 0) -> np.ndarray:
        """What is left of rows with some :meth:`elements`, of shape (n, 1)."""
        logarithm = self._logarithm(len(elements), interval)
        if logarithm is None:
            return np.ones((len(elements), 1), self._dtype)
        return self._exponential(logarithm(elements))

    def _logarithm(
        self, n_elements: int, interval: int = 0
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        """Gives logarithms of what is left, of about so many rows; None for 0."""
        if not self._logs[interval:].any():
            return None
        if self._has_series:
            return self._series
        logs = -self._logs
        logs[:interval] = 0
        return self._intervals.polynomials(logs, n_elements).at

    def _exponential(self, found: np.ndarray) -> np.ndarray:
        """Factors with some logarithms, which are lost."""
        np.exp(found, out=found)
        return found.astype(self._dtype, copy=False)[:, np.newaxis]

    def _series(self, elements: np.ndarray) -> np.ndarray:
        """Logarithms of what is left of rows, by the power series."""
        points = elements.astype(np.float64, copy=False)
        first, *others = -self._terms[::-1]
        found = np.full(len(points), first)
        for term in others:
            found *= points
            found += term
        found *= points
        return found

    def sums(self, rows: np.ndarray) -> np.ndarray:
        """Sums of the factors that :meth:`count` has seen, of shape (n, 1)."""
        polynomials = self._intervals.polynomials(self._sums, len(rows))
        sums = polynomials.at(self.elements(rows))
        sums[rows == self._n_features] = self.total
        return sums.astype(self._dtype, copy=False)[:, np.newaxis]


def _n_terms(largest: float) -> int:
    """Terms of the series of ``log(1 + x)`` that count beside the first one."""
    if not 0 < largest <= _SHORT_SERIES:
        return 1
    return max(2, math.ceil(math.log(np.finfo(np.float64).eps) / math.log(largest)))
