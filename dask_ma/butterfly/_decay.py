"""Shrinkage of each row of the weights by the penalty, without touching them all.

In step `s` the penalty divides row `j` of the weights by ``1 + a_s * p_j``, where `p_j`
is its element of the preconditioner. The product over many steps is a smooth function
of ``log p``. It is followed at the nodes of short intervals of ``log p``, whose number
does not depend on that of the features, and is interpolated in between by polynomials,
to about 1e-13 of itself. Where every step takes little, its logarithm is a short power
series in `p`, which takes a fraction of the time.
"""

from __future__ import annotations

import math

import numpy as np

# Intervals in an octave of the preconditioner, and nodes of each. The logarithm of the
# product is analytic within pi of the real axis, so a polynomial through 7 nodes of an
# interval of a quarter of an octave is off by 72 ** -7 of it. What it costs is most of
# what a step on sparse rows takes: half of an octave with 9 nodes takes a third more.
_PER_OCTAVE = 4
_N_NODES = 7
_MOST_OCTAVES = 80
_ROUNDING = 1e-12
_NEAR_END = 1e-9  # of an interval: so near to its end, rounding may leave it
_SHORT_SERIES = 0.03  # largest `a * p` whose series is shorter than the polynomials
_AT_ONCE = 1 << 13  # rows whose polynomials are evaluated at a time: 0.5 MB of them


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
        places = np.log2(np.array(bounds)) * _PER_OCTAVE
        self._first, last = np.floor(places + [-_NEAR_END, _NEAR_END]).astype(int)
        points = np.cos(np.pi * (np.arange(_N_NODES) + 0.5) / _N_NODES)
        starts = np.arange(self._first, last + 1)[:, np.newaxis]
        self._nodes = np.exp2((starts + (points + 1) / 2) / _PER_OCTAVE)
        self._to_coefficients = np.linalg.inv(
            np.vander(points / 2, _N_NODES, increasing=True)
        )
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
            rows = np.flatnonzero(self._preconditioner >= self._least_of(self._lowest))
        intervals = self._places(self.elements(rows))[0].astype(np.int16)
        order = np.argsort(intervals, kind="stable")
        self._rows = rows[order]
        self._starts = np.searchsorted(intervals[order], np.arange(len(reached)))

    def _least_of(self, interval: int) -> float:
        """A bound of the elements of an interval from below."""
        # Rounding may differ by which interval an element at its end belongs to.
        least = np.exp2((self._first + interval) / _PER_OCTAVE)
        return float(least * (1 - _ROUNDING))

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
            there = np.flatnonzero(elements >= self._least_of(interval))
            factors[there] = self.factors_of(elements.take(there), interval)
        factors[rows == self._n_features] = 1
        return factors

    def shrink(
        self, weights: np.ndarray, first: int = 0, last: int | None = None
    ) -> None:
        """Multiply all rows, or those of a range, by what is left of them, in place."""
        last = self._n_features if last is None else last
        # What is read in order takes half of the time that picking it takes.
        for start in range(first, last, _AT_ONCE):
            rows = slice(start, min(start + _AT_ONCE, last))
            if self._preconditioner is None:
                elements = np.ones(rows.stop - rows.start, self._dtype)
            else:
                elements = self._preconditioner[rows]
            weights[rows] *= self.factors_of(elements)

    def factors_of(self, elements: np.ndarray, interval: int = 0) -> np.ndarray:
        """What is left of rows with some :meth:`elements`, of shape (n, 1)."""
        logs = self._logs
        if not logs[interval:].any():
            return np.ones((len(elements), 1), self._dtype)
        if self._has_series:
            found = self._series(elements)
        else:
            logs = -logs
            logs[:interval] = 0
            found = self._interpolate(logs, elements)
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
        sums = self._interpolate(self._sums, self.elements(rows))
        sums[rows == self._n_features] = self.total
        return sums.astype(self._dtype, copy=False)[:, np.newaxis]

    def _interpolate(self, values: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """A function of the preconditioner, known at the nodes."""
        coefficients = self._to_coefficients @ values.T
        if len(elements) <= _AT_ONCE:
            return _polynomials(coefficients, *self._places(elements))
        found = np.empty(len(elements))
        for start in range(0, len(elements), _AT_ONCE):
            places = self._places(elements[start : start + _AT_ONCE])
            found[start : start + _AT_ONCE] = _polynomials(coefficients, *places)
        return found

    def _places(self, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Intervals of elements, and where they are there, from -1/2 to 1/2."""
        places: np.ndarray = np.log2(elements, dtype=np.float64)
        places *= _PER_OCTAVE
        places -= self._first + 0.5
        middles = np.rint(places)
        places -= middles
        return middles.astype(np.intp), places


def _n_terms(largest: float) -> int:
    """Terms of the series of ``log(1 + x)`` that count beside the first one."""
    if not 0 < largest <= _SHORT_SERIES:
        return 1
    return max(2, math.ceil(math.log(np.finfo(np.float64).eps) / math.log(largest)))


def _polynomials(
    coefficients: np.ndarray, which: np.ndarray, points: np.ndarray
) -> np.ndarray:
    """Polynomials, a column each, at points from -1/2 to 1/2 of `which` of them."""
    # By Horner's rule. Of degree 6, powers lose no more than three digits.
    *others, values = coefficients.take(which, axis=1)
    for of_degree in reversed(others):
        values *= points
        values += of_degree
    return values
