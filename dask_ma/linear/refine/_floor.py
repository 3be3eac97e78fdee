"""Bounds of an optimum from below, and what intercepts may cost besides."""

from __future__ import annotations

import math


def intercept_rest(slope: float, intercept: float) -> float:
    """What an intercept may cost that is off by no more than its own size and 1."""
    return abs(slope) * (1 + abs(intercept))


class Floor:
    """What no model is below, by the best of the bounds so far.

    A bound goes by the intercept where it was found; how far that was from the optimum
    is known better later on. Of a new bound and the best one before, the better one at
    the present intercept is kept.
    """

    def __init__(self) -> None:
        self._base, self._slope = -math.inf, 0.0

    def raised(self, lowest: float, slope: float, intercept: float) -> float:
        """The floor, with a bound more.

        Parameters
        ----------
        lowest : float
            What no model with the present intercept is below.
        slope : float
            Derivative by the intercept there.
        intercept : float
            The present one.

        Returns
        -------
        floor : float
        """
        base = lowest - slope * intercept
        before = self._at(self._base, self._slope, intercept)
        now = self._at(base, slope, intercept)
        if now >= before:
            self._base, self._slope = base, slope
        return max(before, now)

    @staticmethod
    def _at(base: float, slope: float, intercept: float) -> float:
        """A bound at some intercept, which may be off itself."""
        return base + slope * intercept - intercept_rest(slope, intercept)
