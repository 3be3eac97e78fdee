"""One problem on its way to its optimum, a pass over the rows at a time."""

from __future__ import annotations

import numpy as np

from dask_ma.linear.refine._active import choose_active, count_active
from dask_ma.linear.refine._coordinates import Coordinates
from dask_ma.linear.refine._found import Found, least_subgradient
from dask_ma.linear.refine._lbfgs import LBFGS
from dask_ma.linear.refine._newton import Newton

_SUFFICIENT = 1e-4  # part of the predicted decrease that a step must bring
_SHORTEST, _LONGEST = 0.1, 0.5  # how a step that does not is shortened
_MOST_REFUSED = 30
_ROUNDING = 8 * np.finfo(np.float64).eps
_NARROWER, _LEAST_NARROWER = 0.1, 0.5  # how a width shrinks
_SHARE = 0.4  # of the tolerance, that a width may cost
# What a bound has at least of what is left, where kinks make the gradient jump: L-BFGS
# crawls over many of them, and takes that for the end.
_LOOSENESS = 1 / 30


class Track:
    """A line search along directions, with a loss that becomes ever less smooth.

    The loop belongs to the caller: it evaluates the problem at `trial` with the loss of
    `width` and hands what it finds to :meth:`update`.

    Parameters
    ----------
    start : ndarray of shape (n_weights,)
        Where to begin.
    rule : LBFGS or Newton
        What gives the directions.
    coordinates : Coordinates
        What the weights are.
    width : float
        Of the smooth loss, to begin with.
    least_width : float
        Where it is the loss itself; 0 if it never is.
    is_positive : bool, default=True
        Whether the loss is nowhere negative.

    Attributes
    ----------
    trial : ndarray of shape (n_weights,)
        Where the problem is to be evaluated next.
    width : float
        With which width.
    best : ndarray of shape (n_weights,)
        Where the objective was lowest.
    objective : float
        The objective there.
    excess : float
        Estimate of how far it is above the optimum.
    is_stuck : bool
        Whether rounding leaves nothing to gain.
    """

    def __init__(
        self,
        start: np.ndarray,
        rule: LBFGS | Newton,
        coordinates: Coordinates,
        width: float,
        least_width: float,
        *,
        is_positive: bool = True,
    ) -> None:
        self.trial = self.best = start
        self.width = width
        self.objective = self.excess = np.inf
        self.is_stuck = False
        self._rule = rule
        self._coordinates = coordinates
        self._least_width = least_width
        self._is_positive = is_positive
        self._point = start
        self._at: Found | None = None  # None: what comes next is taken as it is
        self._gradient = np.zeros(len(start))
        self._length = 1.0
        self._n_refused = 0

    @property
    def caution(self) -> float:
        """How much steeper than it is the loss is taken to become."""
        return self._rule.caution

    @property
    def n_used(self) -> int:
        """Columns that have a weight at the trial."""
        return int(np.count_nonzero(self.trial[: self._coordinates.n_features]))

    @property
    def n_active(self) -> int:
        """Columns that have a weight, or want one, at the trial."""
        slopes = least_subgradient(self._point, self._gradient, self._coordinates.l1)
        return count_active(self.trial, slopes, self._coordinates.n_features)

    def active(self, size: int) -> np.ndarray:
        """The columns that most want to take part, at least those of the trial."""
        l1, n_features = self._coordinates.l1, self._coordinates.n_features
        return choose_active(self.trial, self._gradient, l1, n_features, size)

    def change_rule(self, rule: LBFGS | Newton) -> None:
        """Have another method go on from the last point."""
        self._rule = rule
        self.trial, self._at, self._n_refused = self._point, None, 0

    def note(self, found: Found) -> None:
        """Take note of the objective at the trial."""
        if found.objective < self.objective:
            self.objective, self.best = found.objective, self.trial

    def update(self, found: Found, tolerance: float) -> None:
        """Take what was found at the trial, and choose the next one.

        Parameters
        ----------
        found : Found
            Objective and derivatives.
        tolerance : float
            Excess that is asked for.
        """
        if self._at is None and not np.isfinite(found.value):
            self._give_up()
        elif self._at is None or self._is_lower(found):
            self._accept(found, tolerance)
        else:
            self._refuse(found)

    def _is_lower(self, found: Found) -> bool:
        if self._at is None or not np.isfinite(found.value):
            return False
        rounding = _ROUNDING * abs(self._at.value)
        return bool(
            found.value <= self._at.value + _SUFFICIENT * self._predicted() + rounding
        )

    def _predicted(self) -> float:
        """Change of the objective to the trial, if its smooth part were linear."""
        if self._at is None:
            return 0.0
        l1 = self._coordinates.l1 @ (np.abs(self.trial) - np.abs(self._point))
        return float(self._at.gradient @ (self.trial - self._point) + l1)

    def _accept(self, found: Found, tolerance: float) -> None:
        self._point, self._at, self._gradient = self.trial, found, found.gradient
        slopes = least_subgradient(self._point, found.gradient, self._coordinates.l1)
        left = self._rule.direction(self._point, found, slopes)
        paid = found.objective if self._is_positive else np.inf
        bound = self._coordinates.bound(self._point, found.gradient, paid)
        rounding = _ROUNDING * abs(found.objective)
        gap = found.gap if found.gap > rounding else 0.0
        if gap and not self._rule.knows_curvature and np.isfinite(bound):
            left = max(left, _LOOSENESS * bound)
        left = min(left, bound, paid)
        self._n_refused, self._length = 0, 1.0
        self.trial = self._rule.move(self._point, 1.0)
        if self._predicted() >= -rounding:
            left, self.is_stuck = 0.0, not gap
        self.excess = max(0.0, left + gap - (found.objective - self.objective))
        if gap > _SHARE * tolerance and left <= max(gap, 0.5 * tolerance):
            self._narrow(gap, tolerance)

    def _narrow(self, gap: float, tolerance: float) -> None:
        """Make the loss less smooth for what comes next."""
        factor = 0.8 * _SHARE * tolerance / gap
        factor = min(max(factor, _NARROWER), _LEAST_NARROWER)
        self.width = max(self._least_width, factor * self.width)
        self._rule.restart()
        self._at = None

    def _refuse(self, found: Found) -> None:
        self._n_refused += 1
        self._rule.refuse(self._n_refused)
        if self._n_refused > _MOST_REFUSED:
            self._give_up()
            return
        factor = _SHORTEST
        if self._at is not None and np.isfinite(found.value):
            # Where a parabola through both values, with the slope, is lowest.
            predicted = self._predicted()
            bend = found.value - self._at.value - predicted
            if bend > 0:
                factor = min(max(-0.5 * predicted / bend, _SHORTEST), _LONGEST)
        self._length *= factor
        self.trial = self._rule.move(self._point, self._length)

    def _give_up(self) -> None:
        """Begin anew from the best point, or end there."""
        if not self._rule.has_memory:
            self.is_stuck = True
            return
        self._rule.restart()
        self.trial, self._at = self._point, None
        self._n_refused = 0
