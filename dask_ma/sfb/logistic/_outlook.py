"""Forecast of the passes to come from those made."""

from __future__ import annotations

from math import inf, log

_N_SEEN = 3  # passes before anything is said


class Outlook:
    """Foretells how many passes are needed, by the duality gaps so far.

    Parameters
    ----------
    most : float
        How many passes more are few enough.

    Attributes
    ----------
    most : float
        It may be changed.
    least : list of float
        The least gap so far, after each pass.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self.least: list[float] = []

    def is_long(self, gap: float, target: float) -> bool:
        """Take the gap of a pass; return whether passes like the last are too slow.

        Parameters
        ----------
        gap : float
            How far the objective is from its minimum at most; infinite if unknown.
        target : float
            Gap that is wanted, not negative.

        Returns
        -------
        is_long : bool
        """
        self.least.append(min([gap, *self.least[-1:]]))
        if len(self.least) < _N_SEEN:
            return False
        before, now = self.least[-_N_SEEN], self.least[-1]
        if now <= target:
            return False
        if not now < before < inf or target == 0:
            return True
        fall = log(before / now) / (_N_SEEN - 1)
        return log(now / target) > self.most * fall
