"""Bounds of an optimum from below, and what intercepts may cost besides."""

from __future__ import annotations

_KEPT = 8  # bounds


def intercept_rest(slope: float, intercept: float, reach: float) -> float:
    """What an intercept may cost that is off by no more than its own size and `reach`.

    That of the best model of a regression is within a standard deviation, and the
    width of the tube of the loss, of the mean of the targets, from which it is counted.
    """
    return abs(slope) * (reach + abs(intercept))


class Floor:
    """What no model is below, by the best of the bounds so far.

    A bound goes by the intercept where it was found; how far that was from the optimum
    is known better later on, by that of the best model. Of all bounds the best ones
    there are kept, since each round looks at all that are.

    Parameters
    ----------
    reach : float
        How far from zero the best intercept may be.
    """

    def __init__(self, reach: float) -> None:
        self._reach = reach
        self._bounds: list[tuple[float, float]] = []

    def raised(
        self, lowest: float, slope: float, intercept: float, best: float
    ) -> float:
        """The floor, with a bound more.

        Parameters
        ----------
        lowest : float
            What no model with the intercept is below.
        slope : float
            Derivative by the intercept there.
        intercept : float
            Where that was found.
        best : float
            The one of the best model so far.

        Returns
        -------
        floor : float
        """
        self._bounds.append((lowest - slope * intercept, slope))
        values = [
            b + s * best - intercept_rest(s, best, self._reach) for b, s in self._bounds
        ]
        if len(values) > _KEPT:
            self._bounds.pop(values.index(min(values)))
        return max(values)
