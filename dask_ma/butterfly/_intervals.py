"""Smooth functions of a positive number, known at nodes of short intervals.

The intervals are of equal length in the logarithm of the number, and so are the parts
that they are cut into to look a function up: it is a polynomial on each of these. Where
many numbers are looked up, parts are short and polynomials of low degree; for few
numbers it would take longer to find the coefficients than it takes to use them.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

# Intervals in an octave, and nodes of each. A function that is analytic within pi of
# the real axis of the logarithm, as the logarithm of ``1 + a x`` is, is followed by a
# polynomial through 7 nodes of a quarter of an octave to 72 ** -7 of itself.
_PER_OCTAVE = 4
N_NODES = 7
# Parts of an interval, and the coefficients of each that follow the function about as
# well: with `n` parts the error is some (72 n) ** -k of it.
_CUTS = ((1, 7), (5, 5), (32, 4))
AT_ONCE = 1 << 13  # numbers that are looked up at a time: 0.5 MB of coefficients
_NEAR_END = 1e-9  # of an interval: so near to its end, rounding may leave it
_ROUNDING = 1e-12


class Intervals:
    """Intervals that cover a range of numbers.

    Parameters
    ----------
    bounds : (float, float)
        Least and largest number, above 0.

    Attributes
    ----------
    nodes : ndarray of shape (n_intervals, 7)
        Numbers at which a function is to be known, in each interval in falling order.
    """

    def __init__(self, bounds: tuple[float, float]) -> None:
        places = np.log2(np.array(bounds)) * _PER_OCTAVE
        self._first, last = np.floor(places + [-_NEAR_END, _NEAR_END]).astype(int)
        starts = np.arange(self._first, last + 1)[:, np.newaxis]
        self.nodes = np.exp2((starts + (_points(N_NODES) + 0.5)) / _PER_OCTAVE)

    def find(self, numbers: np.ndarray) -> np.ndarray:
        """Intervals of numbers."""
        return _places(numbers, self._first)[0]

    def start(self, interval: int) -> float:
        """A bound of the numbers of an interval from below."""
        # Rounding may differ by which interval a number at its end belongs to.
        least = np.exp2((self._first + interval) / _PER_OCTAVE)
        return float(least * (1 - _ROUNDING))

    def polynomials(self, values: np.ndarray, n_numbers: int) -> Polynomials:
        """A function that is known at the nodes.

        Parameters
        ----------
        values : ndarray of shape (n_intervals, 7)
            Its values there.
        n_numbers : int
            About how many numbers it is to be found of.
        """
        # A coefficient takes about as long to find as a number takes of it.
        n_parts, n_terms = min(
            _CUTS, key=lambda cut: cut[1] * (n_numbers + cut[0] * len(values))
        )
        coefficients = values @ _maps(n_parts, n_terms)
        return Polynomials(coefficients.reshape(n_terms, -1), self._first, n_parts)


class Polynomials(NamedTuple):
    """A function as a polynomial on each part of intervals.

    Attributes
    ----------
    coefficients : ndarray of shape (n_terms, n_parts)
        Those of a part, by rising degree of the place from its middle.
    first : int
        Intervals from 1 to the first one, negative below 1.
    n_parts : int
        Parts of an interval.
    """

    coefficients: np.ndarray
    first: int
    n_parts: int

    def at(self, numbers: np.ndarray) -> np.ndarray:
        """Values at numbers, of shape (n,)."""
        if len(numbers) <= AT_ONCE:
            return self._at(numbers)
        values = np.empty(len(numbers))
        for start in range(0, len(numbers), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            values[some] = self._at(numbers[some])
        return values

    def _at(self, numbers: np.ndarray) -> np.ndarray:
        """Values at a few numbers."""
        which, points = _places(numbers, self.first, self.n_parts)
        # By Horner's rule. Of degree 6, powers lose no more than three digits.
        *others, values = self.coefficients.take(which, axis=1)
        for of_degree in reversed(others):
            values *= points
            values += of_degree
        return values


def _places(
    numbers: np.ndarray, first: int, n_parts: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Parts that numbers are in, and where they are there, from -1/2 to 1/2."""
    places: np.ndarray = np.log2(numbers, dtype=np.float64)
    places *= _PER_OCTAVE
    places -= first
    # Rounded down, what lies at an end is in the same interval whatever its parts.
    places *= n_parts
    starts = np.floor(places)
    places -= starts
    places -= 0.5
    return starts.astype(np.intp), places


def _points(n: int) -> np.ndarray:
    """Nodes of Chebyshev's in (-1/2, 1/2)."""
    return np.cos(np.pi * (np.arange(n) + 0.5) / n) / 2


def _powers(points: np.ndarray, n: int) -> np.ndarray:
    """Powers from 0 on, a row for each point."""
    return np.vander(points, n, increasing=True)


@cache
def _maps(n_parts: int, n_terms: int) -> np.ndarray:
    """What turns values at nodes into coefficients: (n_terms, 7, n_parts)."""
    to_coefficients = np.linalg.inv(_powers(_points(N_NODES), N_NODES))
    of_part = np.linalg.inv(_powers(_points(n_terms), n_terms))
    middles = (np.arange(n_parts) + 0.5) / n_parts - 0.5
    points = middles[:, np.newaxis] + _points(n_terms) / n_parts
    at_points = _powers(points.ravel(), N_NODES) @ to_coefficients
    at_points = at_points.reshape(n_parts, n_terms, N_NODES)
    return np.ascontiguousarray(np.einsum("kj,pjn->knp", of_part, at_points))
