"""Small L1-regularised quadratic problems, solved to rounding on one rank.

``min_b  b' G b / 2 - c' b + sum_j l1_j |b_j|`` for a Gram matrix `G`. Coordinate
descent finds out which coefficients are not zero, and Newton steps on these find their
values; in turns they need few sweeps where the columns are correlated.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, lapack

from dask_ma.schmp.l1._gram import (
    Gram,
    ReducedGram,
    ScaledGram,
    WholeGram,
    block_of,
)

# Of coordinate descent between Newton steps, if there are few, and in the first turn;
# in each of the next twice as many.
_SWEEPS = 60
# The most for each coefficient: a Newton step takes longer with more of them.
_SWEEPS_EACH = 0.25
# Of more than a thousand, each sweep takes much longer than it does for a Newton step
# to do as much: so many times the coefficients are gone over at most, if that is more
# than the fewest sweeps.
_MOST_UPDATES = 250_000
# So many that are not zero have a Newton step before the first sweeps. On a path most
# keep their signs from model to model, and are at once where they belong.
_FEWEST_AHEAD = 20
_NEWTON_STEPS = 2
_MOST_DOUBLINGS = 6  # of the Newton steps, while there is no progress
_MAX_TURNS = 200
_PATIENCE = 20  # turns without progress after which to give up
_ROUNDING = 1e-10  # gap as a part of the norm where no progress is due to rounding
# Of its bound: a zero coefficient whose slope is less is not looked at in a turn.
_NEAR = 0.95
# Of the others, so many come into a turn, or this part of those that are not zero.
_MOST_NEW = 100
_SHARE_NEW = 0.5
_RIDGE = 1e-12  # of the largest diagonal element, for columns that depend on others
_LARGER_RIDGE = 1e-7
# Free coefficients, from which a singular system takes long: those of as many classes,
# whose intercepts may all be shifted alike.
_MANY_FREE = 256
_MUCH = 1e3  # of what single coefficients can gain together
# One thread at a time changes the warning filters of the process.
_FILTERS = threading.Lock()


class Quadratic(NamedTuple):
    """A quadratic function and the penalty of its coefficients.

    Attributes
    ----------
    gram : Gram
        Of shape (m, m).
    linear : ndarray of shape (m,)
        In the range of `gram`.
    l1 : ndarray of shape (m,)
        Weights of the absolute values, not negative; 0 for what is not penalised.
    norm : float
        Upper bound of ``linear' pinv(gram) linear``; for least squares, ``y' y``.
    positive : bool
        Whether penalised coefficients must not be negative.
    """

    gram: Gram
    linear: np.ndarray
    l1: np.ndarray
    norm: float
    positive: bool


def minimize(problem: Quadratic, start: np.ndarray, gap: float) -> np.ndarray:
    """Solve a problem until its duality gap is small enough.

    Parameters
    ----------
    problem : Quadratic
        What to minimise.
    start : ndarray of shape (m,)
        Coefficients to begin with.
    gap : float
        Duality gap to reach; what rounding allows is taken where that is more.

    Returns
    -------
    coef : ndarray of shape (m,)
    """
    free = problem.l1 == 0
    if not len(free):  # every feature may have been ruled out
        return start.copy()
    coef = start.copy()
    bound = np.flatnonzero(~free)
    gram, linear = problem.gram, problem.linear
    if free.any():
        unbound = np.flatnonzero(free)
        rows = gram.rows(unbound)
        if free.all():
            return _solve(rows, linear)
        gram, linear = _eliminate(gram, rows, linear, unbound, bound)
    weights = problem.l1[bound]
    if (weights == weights[0]).all():
        even = _Even(
            gram,
            linear,
            float(weights[0]),
            problem.norm,
            problem.positive,
        )
        coef[bound] = _minimize_even(even, start[bound], gap)
    else:  # in units in which all weights are 1
        scale = 1 / weights
        even = _Even(
            ScaledGram(gram, np.zeros(len(scale)), scale),
            linear * scale,
            1.0,
            problem.norm,
            problem.positive,
        )
        coef[bound] = scale * _minimize_even(even, start[bound] / scale, gap)
    if free.any():
        fixed = rows[:, bound] @ coef[bound]
        coef[free] = _solve(rows[:, unbound], problem.linear[free] - fixed)
    return coef


def certify(problem: Quadratic, coef: np.ndarray) -> tuple[float, float]:
    """Value and duality gap of a problem in which all coefficients are penalised.

    Parameters
    ----------
    problem : Quadratic
        What to minimise.
    coef : ndarray of shape (m,)
        Coefficients.

    Returns
    -------
    value, gap : float
    """
    slope = problem.gram.dot(coef) - problem.linear
    return _certificate(problem, coef, slope)


def descend_path(
    gram: np.ndarray,
    problems: Sequence[Quadratic],
    ridges: np.ndarray,
    tol: float,
    max_iter: int,
) -> np.ndarray:
    """Solve problems of falling penalties by coordinate descent, as far as it gets.

    Parameters
    ----------
    gram : ndarray of shape (m, m)
        The matrix of all problems, without the ridge.
    problems : sequence of Quadratic
        Their weights are multiples of those of the first, and above 0.
    ridges : ndarray of shape (n_problems,)
        What each problem adds to the diagonal; of the weights, one part for all.
    tol : float
        Part of the norm that is asked for as duality gap.
    max_iter : int
        Most sweeps of each problem.

    Returns
    -------
    coef : ndarray of shape (n_problems, m)
    """
    first = problems[0]
    weights = first.l1 / first.l1.max()
    l1 = np.array([problem.l1.max() for problem in problems])
    total = l1[0] + ridges[0]
    path = _descent(
        gram / weights / weights[:, np.newaxis],
        first.linear / weights,
        np.zeros(len(weights)),
        first,
        alphas=l1 * total / l1[0],
        l1_ratio=l1[0] / total,
        tol=tol,
        max_iter=max_iter,
    )
    return np.ascontiguousarray((path / weights[:, np.newaxis]).T)


def descend(
    gram: np.ndarray,
    linear: np.ndarray,
    l1: np.ndarray,
    start: np.ndarray,
    positive: bool,
    n_sweeps: int,
) -> np.ndarray:
    """Some sweeps of coordinate descent.

    Parameters
    ----------
    gram : ndarray of shape (m, m)
        Symmetric; a coefficient without an element on the diagonal stays as it is.
    linear, start : ndarray of shape (m,)
    l1 : ndarray of shape (m,)
        Weights of the absolute values, above 0.
    positive : bool
        Whether coefficients must not be negative.
    n_sweeps : int

    Returns
    -------
    coef : ndarray of shape (m,)
    """
    largest = l1.max()
    scale = largest / l1
    # With much more than what single coefficients can gain, none is ruled out. Beside
    # far more than that, rounding would look like the optimum.
    diagonal = np.diag(gram)
    bent = diagonal > 0
    norm = _MUCH * float((linear[bent] ** 2 / diagonal[bent]).sum())
    even = _Even(WholeGram(gram), linear, largest, norm, positive)
    if (scale == 1).all():
        return _swept(even, gram, linear, start.copy(), n_sweeps)
    scaled = gram * scale * scale[:, np.newaxis]
    return scale * _swept(even, scaled, linear * scale, start / scale, n_sweeps)


class _Even(NamedTuple):
    """A problem whose penalties all have the same weight, above 0."""

    gram: Gram
    linear: np.ndarray
    l1: float
    norm: float
    positive: bool


def _eliminate(
    gram: Gram,
    rows: np.ndarray,
    linear: np.ndarray,
    free: np.ndarray,
    bound: np.ndarray,
) -> tuple[Gram, np.ndarray]:
    """The problem of the penalised coefficients, at the best of the free ones."""
    cross = rows[:, bound]
    right = np.column_stack([cross, linear[free]])
    solved = _solve(rows[:, free], right)
    reduced = ReducedGram(gram, bound, cross, solved[:, :-1])
    return reduced, linear[bound] - cross.T @ solved[:, -1]


def _solve(gram: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solution of a linear system; the shortest one if there are several."""
    found = _solve_definite(gram, right)
    if found is None and len(gram) > _MANY_FREE:
        found = _solve_but_for_shift(gram, right)
    return np.linalg.lstsq(gram, right, rcond=1e-12)[0] if found is None else found


def _solve_definite(gram: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """Solution of a linear system with a positive definite matrix; None for others."""
    try:
        factor = cho_factor(gram)
    except np.linalg.LinAlgError:
        return None
    diagonal = np.diag(factor[0])
    is_definite = diagonal.min() > 1e-6 * diagonal.max()
    return np.asarray(cho_solve(factor, right)) if is_definite else None


def _solve_but_for_shift(gram: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """The shortest solution where only a number added to all of it changes nothing."""
    size = np.diag(gram).mean()
    if np.abs(gram.sum(axis=1)).max() > _ROUNDING * size:
        return None
    found = _solve_definite(gram + size / len(gram), right)
    return None if found is None else found - found.mean(axis=0)


def _minimize_even(even: _Even, start: np.ndarray, gap: float) -> np.ndarray:
    """Coordinate descent and Newton steps in turns."""
    coef = start.copy()
    slope = even.gram.dot(coef) - even.linear
    best, best_gap, n_worse = start, _gap(even, coef, slope), 0
    for turn in range(_MAX_TURNS):
        patience = 3 if best_gap <= _ROUNDING * even.norm else _PATIENCE
        if best_gap <= gap or n_worse >= patience:
            break
        # Where columns depend on others, a step may do no more than drop one of them.
        n_steps = _NEWTON_STEPS << min(n_worse, _MOST_DOUBLINGS)
        core = _core(even, coef, slope)
        gram, linear = even.gram.block(core), even.linear[core]
        if not turn and np.count_nonzero(coef) >= _FEWEST_AHEAD:
            coef[core] = _newton_steps(even, gram, linear, coef[core], 1)
        n_sweeps = min(_most_sweeps(len(core)), _SWEEPS << min(turn, _MOST_DOUBLINGS))
        coef[core] = _swept(even, gram, linear, coef[core], n_sweeps)
        coef[core] = _newton_steps(even, gram, linear, coef[core], n_steps)
        slope = even.gram.dot(coef) - even.linear
        found = _gap(even, coef, slope)
        if found < best_gap:
            n_worse = 0 if found < 0.9 * best_gap else n_worse + 1
            best, best_gap = coef.copy(), found
        else:
            n_worse += 1
    return best


def _core(even: _Even, coef: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Coefficients that are not zero, and those least likely to stay so."""
    pull = -slope if even.positive else np.abs(slope)
    is_in = coef != 0
    others = np.flatnonzero(~is_in & (pull > _NEAR * even.l1))
    most = max(_MOST_NEW, int(_SHARE_NEW * np.count_nonzero(is_in)))
    if len(others) > most:
        others = others[np.argpartition(-pull[others], most)[:most]]
    is_in[others] = True
    return np.flatnonzero(is_in)


def _newton_steps(
    even: _Even, gram: np.ndarray, linear: np.ndarray, coef: np.ndarray, n_steps: int
) -> np.ndarray:
    """Newton steps for those of some coefficients that are not zero."""
    active = np.flatnonzero(coef)
    hessian = block_of(gram, active)
    slope = hessian @ coef[active] - linear[active]
    for _ in range(n_steps):
        if not len(active):
            break
        values, is_whole = _newton(even, hessian, slope, coef[active])
        slope += hessian @ (values - coef[active])
        coef[active] = values
        if is_whole:
            break
        kept = np.flatnonzero(values)
        if len(kept) < len(active):
            active, slope = active[kept], slope[kept]
            hessian = block_of(hessian, kept)
    return coef


def _gap(even: _Even, coef: np.ndarray, slope: np.ndarray) -> float:
    """Duality gap, with the residual scaled into the feasible set as dual point."""
    return _certificate(even, coef, slope)[1]


def _certificate(
    even: _Even | Quadratic, coef: np.ndarray, slope: np.ndarray
) -> tuple[float, float]:
    """Value and duality gap."""
    pull = -slope if even.positive else np.abs(slope)
    reach = (pull / even.l1).max()
    scale = min(1.0, 1 / reach) if reach > 0 else 1.0
    along = float(even.linear @ coef)
    curvature = along + float(slope @ coef)  # coef' gram coef
    primal = curvature / 2 - along + (even.l1 * np.abs(coef)).sum()
    dual = -0.5 * (
        (1 - scale) ** 2 * even.norm
        + 2 * scale * (1 - scale) * along
        + scale**2 * curvature
    )
    return float(primal), float(primal - dual)


def _most_sweeps(m: int) -> int:
    """Most sweeps of coordinate descent over `m` coefficients in a turn."""
    return max(_SWEEPS, min(int(_SWEEPS_EACH * m), _MOST_UPDATES // max(1, m)))


def _swept(
    even: _Even,
    gram: np.ndarray,
    linear: np.ndarray,
    coef: np.ndarray,
    n_sweeps: int,
) -> np.ndarray:
    """So many sweeps."""
    path = _descent(
        gram, linear, coef, even, alphas=[even.l1], tol=0.0, max_iter=n_sweeps
    )
    return np.ascontiguousarray(path[:, 0])


def _descent(
    gram: np.ndarray,
    linear: np.ndarray,
    start: np.ndarray,
    problem: _Even | Quadratic,
    **settings: Any,
) -> np.ndarray:
    """scikit-learn's coordinate descent on a Gram matrix, of shape (m, n_alphas)."""
    # Only rank 0 comes here.
    from sklearn import config_context
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import enet_path

    # To check the parameters takes longer than to sweep over a hundred coefficients.
    is_checked = config_context(skip_parameter_validation=True)
    with is_checked, _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is to stop early
        _, path, _ = enet_path(
            np.empty((1, len(start))),  # one row, so that alpha means what l1 does
            np.array([np.sqrt(problem.norm)]),  # only its square counts
            precompute=gram,
            Xy=linear,
            coef_init=start,
            positive=problem.positive,
            check_input=False,
            copy_X=False,
            **{"l1_ratio": 1.0, **settings},
        )
    return np.asarray(path)


def _newton(
    even: _Even, hessian: np.ndarray, slope: np.ndarray, coef: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Go towards the minimum for the present signs, as far as the objective falls."""
    # All are of the coefficients that are not zero.
    signs = even.l1 * np.sign(coef)
    step = _newton_direction(hessian, slope + signs)
    crossing = np.flatnonzero((coef + step) * coef < 0)
    if not len(crossing):
        return coef + step, True  # True: all of the step
    # The objective along the step is quadratic between the places where a coefficient
    # passes zero; its slope jumps there.
    curvature = max(0.0, float(step @ (hessian @ step)))
    places = -coef[crossing] / step[crossing]
    order = np.argsort(places)
    crossing, places = crossing[order], places[order]
    ends = np.append(places, 1.0)
    jumps = np.append(0.0, np.cumsum(2 * even.l1 * np.abs(step[crossing])))
    first = (slope + signs) @ step
    if even.positive:
        jumps[1:] = np.inf  # no coefficient may pass zero
    rising = curvature * ends + first + jumps >= 0
    piece = int(np.argmax(rising)) if rising.any() else len(ends) - 1
    start = ends[piece - 1] if piece else 0.0
    place = ends[piece]
    if curvature * start + first + jumps[piece] >= 0:
        place = start
    elif curvature > 0:
        place = min(max(-(first + jumps[piece]) / curvature, start), place)
    values = coef + place * step
    values[crossing[places == place]] = 0.0
    return values, False


def _newton_direction(hessian: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Newton step for some coefficients, whose columns may depend on each other."""
    largest = np.diag(hessian).max()
    for ridge in (_RIDGE, _LARGER_RIDGE):
        # It is symmetric, so that its transpose has the order of memory that is wanted.
        damped = hessian.copy().T
        damped[np.diag_indices_from(damped)] += ridge * largest
        factor, info = lapack.dpotrf(damped, lower=1, overwrite_a=1)
        if info == 0:
            return lapack.dpotrs(factor, -slope, lower=1)[0]
    return -slope / largest / len(slope)  # a safe gradient step
