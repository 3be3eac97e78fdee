"""Optima of L2-regularised losses of few rows, from the products of all pairs of rows.

With centred rows `x_i`, their weights `w_i` and ``p_i = coef . x_i + b`` the problem is
::

    min_{coef, b}  sum_i w_i loss(y_i, p_i) + alpha/2 ||coef||^2

The optimum is a sum of rows, ``coef = -1/alpha sum_i v_i x_i``, and by the conjugates
`h` of the losses (Fenchel's duality) ::

    max_v  D(v) = -1/(2 alpha) v K v - sum_i w_i h(y_i, v_i / w_i),   sum_i v_i = 0

with the products `K` of the rows. The intercept is the multiplier of the constraint;
without one there is none. A loss that is made of lines and parabolas has a conjugate
that is a parabola, perhaps with a kink at 0, between two bounds: `D` is a quadratic
program, which the predictor-corrector method of S. Mehrotra ("On the implementation of
a primal-dual interior point method", 1992) solves in ten to thirty systems of as many
equations as there are rows. Kinks and separable classes do it no harm. The conjugate of
the log loss keeps within its bounds by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import linalg, special
from scipy.linalg import lapack

from dask_ma.kernels.losses import (
    EpsilonInsensitive,
    Huber,
    LogLoss,
    Loss,
    MarginLoss,
    ModifiedHuber,
    SquaredEpsilonInsensitive,
    SquaredError,
    SquaredHinge,
    make_loss,
)

_MOST_STEPS = 100
_PART = 0.995  # of the way to the next bound, that a step goes at most
_DAMPING = 1e-14  # of the diagonal, which rounding leaves
_SMALLEST = np.finfo(np.float64).tiny

#: Losses that :func:`few_rows_optimum` knows the conjugates of.
FEW_ROWS_LOSSES = frozenset(
    {
        "epsilon_insensitive",
        "hinge",
        "huber",
        "log_loss",
        "modified_huber",
        "squared_epsilon_insensitive",
        "squared_error",
        "squared_hinge",
    }
)


class FewRowsOptimum(NamedTuple):
    """Where the objective is lowest, and how sure that is.

    Attributes
    ----------
    shares : ndarray of shape (n_rows,)
        Of the rows in the coefficients: ``coef = shares @ X``.
    intercept : float
    objective : float
        The objective there.
    gap : float
        How far it is above its optimum at most; infinite where nothing was found.
    base : float
        No model is below ``base - alpha/2 ||coef||^2``, with the coefficients found:
        what does not rest on the products of the bound that the shares give.
    """

    shares: np.ndarray
    intercept: float
    objective: float
    gap: float
    base: float


@np.errstate(over="ignore", divide="ignore", invalid="ignore")  # no step goes on then
def few_rows_optimum(
    products: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    loss: str | Loss,
    alpha: float,
    *,
    epsilon: float = 0.1,
    intercept: float | None = None,
    unit: float = 1.0,
    tol: float = 1e-6,
) -> FewRowsOptimum:
    """Minimise the objective of one problem.

    Parameters
    ----------
    products : ndarray of float64, shape (n_rows, n_rows)
        Those of all pairs of rows, from which a common centre may have been taken away
        if the intercept is free.
    targets : ndarray of float64, shape (n_rows,)
        As the loss takes them.
    weights : ndarray of float64, shape (n_rows,)
        Above 0.
    loss : str or Loss
        One of ``FEW_ROWS_LOSSES``, or that loss.
    alpha : float
        Weight of half the squared length of the coefficients, above 0.
    epsilon : float, default=0.1
        As :func:`~dask_ma.kernels.losses.make_loss` takes it.
    intercept : float or None, default=None
        One that stays; None finds the best one.
    unit : float, default=1.0
        Typical size of the targets, from which the steps begin.
    tol : float, default=1e-6
        Gap to end with, relative to the objective.

    Returns
    -------
    optimum : FewRowsOptimum
        That of all steps whose own gap is least.
    """
    problem = _Problem(products, targets, weights, make_loss(loss, epsilon), alpha)
    zeros = np.zeros(len(targets))
    best = FewRowsOptimum(zeros, intercept or 0.0, np.inf, np.inf, -np.inf)
    if not len(targets):
        return best
    steps = _steps_to_optimum(problem, intercept, unit)
    try:
        for _, (v, b) in zip(range(_MOST_STEPS), steps, strict=False):
            objective, bound, base = problem.bounds(v, b, is_free=intercept is None)
            gap = max(objective - bound, 0.0)  # what is no number stays so
            if gap < best.gap:
                best = FewRowsOptimum(-v / alpha, float(b), objective, gap, base)
            if gap <= tol * objective:
                break
    except linalg.LinAlgError:
        pass  # rounding leaves no more
    return best


class _Bounds(NamedTuple):
    """The conjugate of a loss: ``linear u + curvature u^2 / 2 + kink |u|``."""

    low: np.ndarray
    high: np.ndarray
    linear: np.ndarray
    curvature: float = 0.0
    kink: float = 0.0


def _bounds_of(loss: Loss, y: np.ndarray) -> _Bounds:
    """The conjugate for each target; that of the log loss but for its entropy."""
    if isinstance(loss, MarginLoss):
        squares = {SquaredHinge: np.inf, ModifiedHuber: 4.0}
        most = squares.get(type(loss), 1.0)
        low, high = np.where(y > 0, -most, 0.0), np.where(y > 0, 0.0, most)
        linear = np.zeros(len(y)) if isinstance(loss, LogLoss) else y
        return _Bounds(low, high, linear, 0.5 if type(loss) in squares else 0.0)
    epsilon = getattr(loss, "epsilon", 0.0)
    most, curvature, kink = {
        SquaredError: (np.inf, 1.0, 0.0),
        Huber: (epsilon, 1.0, 0.0),
        EpsilonInsensitive: (1.0, 0.0, epsilon),
        SquaredEpsilonInsensitive: (np.inf, 0.5, epsilon),
    }[type(loss)]
    high = np.full(len(y), most)
    return _Bounds(-high, high, y, curvature, kink)


class _Problem:
    """The objective and its dual, as functions of the slopes `v` and the intercept."""

    def __init__(
        self,
        products: np.ndarray,
        targets: np.ndarray,
        weights: np.ndarray,
        loss: Loss,
        alpha: float,
    ) -> None:
        self.quadratic = products / alpha
        self._targets = targets
        self.weights = weights
        self._loss = loss
        self.has_entropy = isinstance(loss, LogLoss)
        own = _bounds_of(loss, targets)
        self.low, self.high = own.low * weights, own.high * weights
        self.linear, self.kink = own.linear, own.kink
        self.diagonal = own.curvature / weights

    def bounds(
        self, v: np.ndarray, b: float, *, is_free: bool
    ) -> tuple[float, float, float]:
        """The objective, what no model is below, and that without the penalty."""
        pulls = self.quadratic @ v
        penalty = 0.5 * float(v @ pulls)
        losses = self._loss.value(self._targets, b - pulls)
        objective = float(self.weights @ losses) + penalty
        paid = self.linear @ v + 0.5 * (self.diagonal * v) @ v
        paid += self.kink * np.abs(v).sum()
        if self.has_entropy:
            q = np.abs(v) / self.weights
            entropies = special.xlogy(q, q) + special.xlog1py(1 - q, -q)
            paid += self.weights @ entropies
        # A sum that is not zero but by rounding costs what intercepts may be.
        total = float(v.sum())
        base = (-abs(total * b) if is_free else total * b) - float(paid)
        return objective, base - penalty, base


def _steps_to_optimum(
    problem: _Problem, intercept: float | None, unit: float
) -> Iterator[tuple[np.ndarray, float]]:
    """Points that come ever nearer to the optimum."""
    has_bounds = np.isfinite(problem.low).any() or np.isfinite(problem.high).any()
    if not (has_bounds or problem.kink):
        yield _least_squares(problem, intercept)
        return
    interior = _Interior(problem, intercept, unit)
    while interior.has_room:
        yield interior.slopes, interior.intercept
        interior.advance()


def _least_squares(
    problem: _Problem, intercept: float | None
) -> tuple[np.ndarray, float]:
    """The optimum where the dual is a parabola without bounds."""
    solve = _solver(problem.quadratic, problem.diagonal)
    own, ones = (
        solve(right, False) for right in (problem.linear, np.ones(len(problem.linear)))
    )
    b = float(own.sum() / ones.sum()) if intercept is None else intercept
    return b * ones - own, b


class _Interior:
    """A point within all bounds, and the multipliers of these."""

    # Each row has a distance `t` from a bound, or two with a kink: one for each sign.

    def __init__(self, problem: _Problem, intercept: float | None, unit: float) -> None:
        self._problem = problem
        self._is_free = intercept is None
        self.intercept = 0.0 if intercept is None else intercept
        low, high = problem.low, problem.high
        if problem.kink:
            self._sign = np.array([[1.0], [-1.0]]) * np.ones(len(low))
            self._offset, self._width = np.zeros(len(low)), np.array([high, -low])
        else:
            self._sign = np.where(high == 0, -1.0, 1.0)[np.newaxis]
            self._offset = np.where((high == 0) | (low == 0), 0.0, low)
            self._width = (high - low)[np.newaxis]
        self._has_end = np.isfinite(self._width)
        self._t = self._begin(unit)
        shape = self._t.shape
        is_entropic = problem.has_entropy
        self._lower = np.zeros(shape) if is_entropic else np.full(shape, unit)
        self._upper = np.where(self._has_end, self._lower, 0.0)

    @property
    def has_room(self) -> bool:
        """Whether there is something within the bounds."""
        return bool((self._t > 0).all() and np.isfinite(self._t).all())

    @property
    def slopes(self) -> np.ndarray:
        """The variables `v`."""
        values: np.ndarray = self._offset + (self._sign * self._t).sum(axis=0)
        return values

    def advance(self) -> None:
        """One step of the predictor and the corrector."""
        self._factor()
        if self._problem.has_entropy:
            step = self._solve(0.0, 0.0)
            self._move(step, min(1.0, _PART * self._length(step)))
            return
        t, rest = self._t, self._rest
        mean = self._mean(t, rest, self._lower, self._upper)
        # Of the predictor only its length is kept, and what the corrector corrects.
        step = self._solve(-t * self._lower, -rest * self._upper, is_rough=True)
        length = min(1.0, self._length(step))
        ahead = self._mean(
            t + length * step.t,
            rest - length * step.t,
            self._lower + length * step.lower,
            self._upper + length * step.upper,
        )
        goal = mean * (ahead / mean) ** 3
        step = self._solve(
            goal - t * self._lower - step.t * step.lower,
            np.where(self._has_end, goal - rest * self._upper + step.t * step.upper, 0),
        )
        self._move(step, min(1.0, _PART * self._length(step)))

    def _begin(self, unit: float) -> np.ndarray:
        """Distances whose slopes have no sum."""
        # Those of the optimum where a row's own product is all that holds it.
        typical = float(np.mean(np.diagonal(self._problem.quadratic)))
        size = unit / typical if typical > 0 else np.inf
        t = np.minimum(0.5 * self._width, size)
        if len(t) == 2:
            return np.broadcast_to(t.min(axis=0), t.shape).copy()
        if self._offset.any():
            return 0.5 * self._width
        if self._is_free:
            sums = [t[self._sign == sign].sum() for sign in (1.0, -1.0)]
            for sign, own, other in zip((1.0, -1.0), sums, sums[::-1], strict=True):
                if own > other:
                    t[self._sign == sign] *= other / own
        return t

    @property
    def _rest(self) -> np.ndarray:
        """Distances from the other bound; 1 where there is none."""
        return np.where(self._has_end, self._width - self._t, 1.0)

    def _mean(self, *pairs: np.ndarray) -> float:
        """Mean product of distances and multipliers."""
        t, rest, lower, upper = pairs
        total = (t * lower).sum() + (rest * upper)[self._has_end].sum()
        return float(total) / (t.size + np.count_nonzero(self._has_end))

    def _factor(self) -> None:
        """Prepare to solve for steps from here."""
        problem, t, rest = self._problem, self._t, self._rest
        v = self.slopes
        slopes = problem.quadratic @ v + problem.diagonal * v + problem.linear
        residual = self._sign * (slopes - self.intercept) + problem.kink
        residual += self._upper - self._lower
        bend = self._lower / t + self._upper / rest
        if problem.has_entropy:
            residual += np.log(t / rest)
            bend = 1 / t + 1 / rest
        self._residual, self._bend = residual, np.maximum(bend, _SMALLEST)
        self._inverse = (1 / self._bend).sum(axis=0)
        added = problem.diagonal + 1 / self._inverse
        self._system = _solver(problem.quadratic, added)
        self._ones = (
            self._system(np.ones(len(v)), False) if self._is_free else np.zeros(0)
        )
        self._total = float(v.sum())

    def _solve(
        self,
        lower: np.ndarray | float,
        upper: np.ndarray | float,
        *,
        is_rough: bool = False,
    ) -> _Step:
        """Step after which products of distances and multipliers are these more."""
        t, rest = self._t, self._rest
        right = lower / t - upper / rest - self._residual
        f = (self._sign * right / self._bend).sum(axis=0) / self._inverse
        moved, intercept = self._system(f, is_rough), 0.0
        if self._is_free:
            intercept = -(self._total + moved.sum()) / self._ones.sum()
            moved = moved + intercept * self._ones
        pulled = f - moved / self._inverse
        step = (right - self._sign * pulled) / self._bend
        return _Step(
            step,
            (lower - self._lower * step) / t,
            np.where(self._has_end, (upper + self._upper * step) / rest, 0.0),
            float(intercept),
        )

    def _length(self, step: _Step) -> float:
        """How many times the step may be made before something is negative."""
        pairs = [(self._t, step.t), (self._rest, np.where(self._has_end, -step.t, 0.0))]
        if not self._problem.has_entropy:
            pairs += [(self._lower, step.lower), (self._upper, step.upper)]
        lengths = [
            (values[change < 0] / -change[change < 0]).min(initial=np.inf)
            for values, change in pairs
        ]
        return float(min(lengths))

    def _move(self, step: _Step, length: float) -> None:
        """Go some of the way."""
        self._t = self._t + length * step.t
        self.intercept += length * step.intercept
        if not self._problem.has_entropy:
            self._lower = self._lower + length * step.lower
            self._upper = self._upper + length * step.upper


class _Step(NamedTuple):
    """Changes of distances, of multipliers of both bounds, and of the intercept."""

    t: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    intercept: float


def _solver(
    quadratic: np.ndarray, added: np.ndarray
) -> Callable[[np.ndarray, bool], np.ndarray]:
    """What solves ``quadratic + diag(added)``, in units in which its diagonal is 1."""
    units = 1 / np.sqrt(np.diagonal(quadratic) + added)
    scaled = np.multiply(quadratic, units)
    scaled *= units[:, np.newaxis]
    scaled[np.diag_indices(len(units))] = 1 + _DAMPING * len(units)
    # SciPy's own functions would look for numbers that are not finite, and copy.
    factor, failed = lapack.dpotrf(scaled.T, lower=1, clean=0, overwrite_a=1)
    if failed:
        raise linalg.LinAlgError("the system is beyond the range of numbers")

    def solve(right: np.ndarray, is_rough: bool) -> np.ndarray:
        found, _ = lapack.dpotrs(factor, units * right, lower=1, overwrite_b=1)
        found *= units
        if is_rough:
            return np.asarray(found)
        # What the damping has changed is found from what is left.
        left = right - quadratic @ found - added * found
        more, _ = lapack.dpotrs(factor, units * left, lower=1, overwrite_b=1)
        found += units * more
        return np.asarray(found)

    return solve
