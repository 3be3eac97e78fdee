"""The search of a refinement: next points, by which method, and the best so far."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dask_ma.kernels import make_loss
from dask_ma.linear._model import RefineParams
from dask_ma.linear.refine._coordinates import (
    Coordinates,
    Found,
    choose_active,
    count_active,
    least_subgradient,
)
from dask_ma.linear.refine._evaluation import Request
from dask_ma.linear.refine._floor import Floor, intercept_rest
from dask_ma.linear.refine._lbfgs import LBFGS
from dask_ma.linear.refine._newton import Newton
from dask_ma.linear.refine._rules import Rules
from dask_ma.linear.refine._share import Share

# An objective this small against that at the start is zero: no model is the best one of
# classes that a plane divides, without a penalty.
ZERO = 1e-7
_NARROWEST = 1e-9  # smooth loss, against the spread of the targets
# The same where the search begins near the optimum. With a loss as smooth as the spread
# is wide the first rounds would lead away from there: its own optimum is elsewhere. But
# with L1 that way is the shorter one at times: it finds out which weights are zero.
_WARM = 0.1
_SUFFICIENT = 1e-4  # part of the predicted decrease that a step must bring
_SHORTEST, _LONGEST = 0.1, 0.5  # how a step that does not is shortened
_MOST_REFUSED = 30
_ROUNDING = 8 * np.finfo(np.float64).eps
# How a width shrinks: by the least where it has taken many steps, as the next one will.
_NARROWER, _LEAST_NARROWER = 0.1, 0.5
_SHARE = 0.4  # of the tolerance, that a width may cost
# What a bound has at least of what is left. L-BFGS crawls over kinks, where gradients
# jump, and from large weights of rows far out, whose loss has no curvature there but a
# lot near the optimum; it takes that for the end.
_LOOSENESS = 1 / 30
# A search that is at its end but for a bound that leaves more than a part of the
# objective begins again from zero, where no weight is too large; with less it soon is.
# So does one that crawls: each step of the last half of so many has gained less than
# another part, and no bound is above zero, or, after more steps of a smooth loss, the
# bound leaves more than the first part.
_CRAWLING, _SMOOTH_CRAWLING, _SLOW, _FAR = 30, 100, 1 / 500, 0.25


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
    share : Share
        Of which weights that is.
    width : float
        Of the smooth loss, to begin with.
    least_width : float
        Where it is the loss itself; 0 if it never is.
    is_positive : bool, default=True
        Whether the loss is nowhere negative.
    is_warm : bool, default=False
        Whether the start is not zero.

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
        share: Share,
        width: float,
        least_width: float,
        *,
        is_positive: bool = True,
        is_warm: bool = False,
    ) -> None:
        self.trial = self.best = start
        self.width = self._first_width = width
        self.objective = self.excess = np.inf
        self._floor = Floor(coordinates.reach)
        self._may_begin_anew, self._is_anew = is_warm, False
        self._best_end = 0.0  # the intercept at the best point
        self._is_poor = False
        self._lowest: list[float] = []  # objectives of the best points so far
        self.is_stuck = False
        self._rule = rule
        self._coordinates = coordinates
        self._share = share
        self._least_width = least_width
        self._is_positive = is_positive
        self._point = start
        self._at: Found | None = None  # None: what comes next is taken as it is
        self._gradient = np.zeros(len(start))
        self._length = 1.0
        self._predicted = 0.0  # change of the objective to the trial, if all is linear
        self._n_refused = 0

    @property
    def caution(self) -> float:
        """How much steeper than it is the loss is taken to become."""
        return self._rule.caution

    @property
    def n_used(self) -> int:
        """Columns that have a weight at the trial."""
        own = np.count_nonzero(self.trial[: self._coordinates.n_features])
        (n_used,) = self._share.sums(float(own))
        return int(n_used)

    @property
    def n_active(self) -> int:
        """Columns that have a weight, or want one, at the trial."""
        slopes = least_subgradient(self._point, self._gradient, self._coordinates.l1)
        own = count_active(self.trial, slopes, self._coordinates.n_features)
        (n_active,) = self._share.sums(float(own))
        return int(n_active)

    def active(self, size: int) -> np.ndarray:
        """The columns that most want to take part, at least those of the trial."""
        l1, n_features = self._coordinates.l1, self._coordinates.n_features
        return choose_active(
            self.trial, self._gradient, l1, n_features, size, self._share
        )

    def change_rule(self, rule: LBFGS | Newton) -> None:
        """Have another method go on from the last point."""
        self._rule = rule
        self.trial, self._at, self._n_refused = self._point, None, 0

    def leave(self) -> None:
        """Take the start for one that zero is better than."""
        self._is_poor = not self._rule.knows_curvature

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
            found.value <= self._at.value + _SUFFICIENT * self._predicted + rounding
        )

    def _change_to(self, trial: np.ndarray) -> float:
        """Choose the trial; predict what this rank's weights change by it."""
        self.trial = trial
        change = self._gradient @ (self.trial - self._point)
        if self._coordinates.penalty.l1 > 0:
            sizes = np.abs(self.trial) - np.abs(self._point)
            change = change + self._coordinates.l1 @ sizes
        return float(change)

    def _accept(self, found: Found, tolerance: float) -> None:
        self._point, self._at, self._gradient = self.trial, found, found.gradient
        slopes = least_subgradient(self._point, found.gradient, self._coordinates.l1)
        along = self._rule.direction(self._point, found, slopes)
        columns, slope, end, most = self._coordinates.bound_parts(
            self._point, found.gradient
        )
        # All that has to be summed over ranks, in one message.
        change = self._change_to(self._rule.move(self._point, 1.0))
        sums = self._share.sums(along, columns, slope, end, change)
        along, columns, slope, end, self._predicted = sums
        penalty = self._coordinates.penalty
        if penalty.l1 and not penalty.l2:
            most = self._share.largest(most)
        paid = found.objective if self._is_positive else np.inf
        own = self._coordinates.bound(columns, most, paid)
        bound = own + intercept_rest(slope, end, self._coordinates.reach)
        rounding = _ROUNDING * abs(found.objective)
        gap = found.gap if found.gap > rounding else 0.0
        guess = self._rule.left(along)
        least = _LOOSENESS * bound if self._goes_by(bound, gap) else 0.0
        left = min(max(guess, least), bound, paid)
        self._n_refused, self._length = 0, 1.0
        cannot_fall = self._predicted >= -rounding
        if cannot_fall:
            left, self.is_stuck = 0.0, not gap
        over = found.objective - self.objective
        most_left = self.objective - self._raise_floor(found, own, slope, end)
        # Before a search that began with a rounder loss, or from zero, has come back to
        # the best model, it knows little of what that one could gain. Far from the
        # optimum a part of a bound may be much less than is left.
        knows_little = gap < over and (gap > 0 or self._is_anew)
        size = abs(self.objective)
        is_far = most_left >= (size if gap else _FAR * size)
        is_blind = is_far and self._goes_by(bound, gap)
        certain = np.inf if knows_little or (is_blind and not cannot_fall) else left
        excess = min(certain + gap - over, most_left)
        self.excess = max(0.0, excess)
        is_doubtful = guess <= tolerance < self.excess and is_far and not gap
        self._lowest.append(self.objective)
        n_steps = _CRAWLING if most_left >= size else _SMOOTH_CRAWLING
        crawls = is_blind and self._has_slowed(n_steps)
        if self._may_begin_anew and (is_doubtful or crawls or self._is_poor):
            self._begin_anew()
        elif gap > _SHARE * tolerance and (
            left <= max(gap, 0.5 * tolerance) or self._rule.has_slowed(gap)
        ):
            self._narrow(gap, tolerance)
        elif cannot_fall and self.excess > tolerance:
            self._give_up()

    def _raise_floor(self, found: Found, own: float, slope: float, end: float) -> float:
        """What no model is below, with a bound more, which intercepts come besides."""
        if found.objective <= self.objective:
            self._best_end = end
        lowest = found.objective - found.gap - own
        floor = self._floor.raised(lowest, slope, end, self._best_end)
        return max(floor, 0.0) if self._is_positive else floor

    def _goes_by(self, bound: float, gap: float) -> bool:
        """Whether what is left is no less than a part of a bound of it."""
        is_rough = gap > 0 or self._coordinates.penalty.l2 > 0
        return not self._rule.knows_curvature and is_rough and bool(np.isfinite(bound))

    def _has_slowed(self, n_steps: int) -> bool:
        """Whether the last half of so many steps, or more, has gained little."""
        half = len(self._lowest) // 2
        if len(self._lowest) < n_steps:
            return False
        gain = self._lowest[-1 - half] - self.objective
        return gain < _SLOW * half * abs(self.objective)

    def _begin_anew(self) -> None:
        """Begin from zero, or the mean of targets that are values, once."""
        self._may_begin_anew, self._is_anew = False, True
        self._rule.restart()
        self.trial, self._at = np.zeros_like(self._point), None
        self.width, self._n_refused = self._first_width, 0
        self.is_stuck = False

    def _narrow(self, gap: float, tolerance: float) -> None:
        """Make the loss less smooth for what comes next."""
        factor = 0.8 * _SHARE * tolerance / gap
        least = _LEAST_NARROWER if self._rule.is_long else _NARROWER
        factor = min(max(factor, least), _LEAST_NARROWER)
        self.width = max(self._least_width, factor * self.width)
        self._rule.sharpen()
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
            bend = found.value - self._at.value - self._predicted
            if bend > 0:
                factor = min(max(-0.5 * self._predicted / bend, _SHORTEST), _LONGEST)
        self._length *= factor
        change = self._change_to(self._rule.move(self._point, self._length))
        (self._predicted,) = self._share.sums(change)

    def _give_up(self) -> None:
        """Begin anew from the best point, or end there."""
        if not self._rule.has_memory:
            self.is_stuck = True
            return
        self._rule.restart()
        self.trial, self._at = self._point, None
        self._n_refused = 0


class Verdict(NamedTuple):
    """What rank 0 makes of a round.

    Attributes
    ----------
    excess : float
        Estimate of how far the mean objective is above its optimum, relative to it, or
        to what is usual where that is less.
    is_done : bool
        Whether there is nothing more to be evaluated.
    is_converged : bool
        Whether the mean objective is as near to its optimum as asked for.
    """

    excess: float = np.inf
    is_done: bool = False
    is_converged: bool = False


class Search:
    """Looks for the optimum of all problems at once.

    All weights are on rank 0, or shared out: then all methods are collective.

    Each problem has a line search of its own; their trials are evaluated in the same
    pass, and those that have come to their end are left out.

    Parameters
    ----------
    points : ndarray of shape (n_problems, n_weights)
        Where to start.
    params : RefineParams
        Parameters of the fit.
    coordinates : Coordinates
        What the points are.
    method : {"newton", "lbfgs"}
        What gives the directions.
    share : Share
        Of which weights points and coordinates are.
    is_warm : bool
        Whether something has brought the points near the optimum already.
    """

    def __init__(
        self,
        points: np.ndarray,
        params: RefineParams,
        coordinates: Coordinates,
        method: str,
        share: Share,
        *,
        is_warm: bool,
    ) -> None:
        self._params, self._usual = params, coordinates.usual
        self._constant = coordinates.constant
        has_curvature = make_loss(params.loss).has_curvature
        is_free = params.refine == "auto" and has_curvature
        self._rules = Rules(coordinates, len(points), method, share, is_free=is_free)
        spread = coordinates.spread  # typical size of a residual
        least = make_loss(params.loss, params.epsilon).least_width
        least = max(least, _NARROWEST * spread)
        is_near = is_warm and not coordinates.penalty.l1
        width = max(_WARM * spread if is_near else spread, least)
        self._tracks = [
            Track(
                point.copy(),
                self._rules.make(),
                coordinates,
                share,
                width,
                least,
                # Nobody says so of a loss that has no name.
                is_positive=isinstance(params.loss, str),
                is_warm=is_warm,
            )
            for point in points
        ]
        self._asked: list[int] = []
        self._tolerance = 0.0
        self._start: float | None = None

    def ask(self) -> Request:
        """What is to be evaluated next."""
        self._asked = [
            k for k, track in enumerate(self._tracks) if not self._is_ended(track)
        ]
        tracks = [self._tracks[k] for k in self._asked]
        columns = self._rules.columns(tracks)
        return Request(
            np.array(self._asked),
            np.array([track.trial for track in tracks]),
            np.array([track.width for track in tracks]),
            np.array([track.caution for track in tracks]),
            columns,
        )

    def tell(self, found: list[Found]) -> Verdict:
        """Take what was found at the points asked for."""
        asked = [self._tracks[k] for k in self._asked]
        for track, one in zip(asked, found, strict=True):
            track.note(one)
        mean = float(np.mean([track.objective for track in self._tracks]))
        if self._start is None:
            self._start = mean
            if mean >= self._constant:
                for track in asked:
                    track.leave()
        # A loss may be negative: relative is then to the size of the objective.
        part = min(abs(mean), self._usual)
        size = max(part, ZERO * abs(self._start))
        self._tolerance = self._params.refine_tol * size
        for track, one in zip(asked, found, strict=True):
            track.update(one, self._tolerance)
        left = float(np.mean([track.excess for track in self._tracks]))
        # Each problem is worked on until it is near. Where rounds do not suffice for
        # some, their mean, which is what the fit minimises, may be near all the same.
        return Verdict(
            left / part if part else 0.0,
            all(self._is_ended(track) for track in self._tracks),
            left <= self._tolerance,
        )

    def _is_ended(self, track: Track) -> bool:
        return track.is_stuck or track.excess <= self._tolerance
