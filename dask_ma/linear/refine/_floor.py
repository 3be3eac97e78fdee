"""Bounds of an optimum from below, and what intercepts may cost besides."""

from __future__ import annotations

_KEPT = 8  # bounds


def intercept_rest(slope: float, intercept: float, spread: float) -> float:
    """What an intercept may cost that is off by no more than its own size and spread.

    That of the best model is within a standard deviation of the mean of the targets,
    from which it is counted.
    """
    return abs(slope) * (spread + abs(intercept))


class Floor:
    """What no model is below, by the best of the bounds so far.

    A bound goes by the intercept where it was found; how far that was from the optimum
    is known better later on. Of all bounds the best ones at the present intercept are
    kept, since each round looks at all that are.

    Parameters
    ----------
    spread : float
        How far from zero the best intercept may be.
    """

    def __init__(self, spread: float) -> None:
        self._spread = spread
        self._bounds: list[tuple[float, float]] = []

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
        self._bounds.append((lowest - slope * intercept, slope))
        values = [
            b + s * intercept - intercept_rest(s, intercept, self._spread)
            for b, s in self._bounds
        ]
        if len(values) > _KEPT:
            self._bounds.pop(values.index(min(values)))
        return max(values)
