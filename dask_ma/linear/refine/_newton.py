"""Directions from all second derivatives, also for L1."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, lapack

from dask_ma.linear.refine._coordinates import Found, least_subgradient
from dask_ma.linear.refine._share import Share

# What is added to the diagonal, relative to it: the first one that suffices.
_DAMPINGS = (1e-10, 1e-7, 1e-4, 1e-1)
_FLAT = 1e-6  # second derivatives that are as good as 0, against the largest one
# How the caution begins, grows where steps are too long, shrinks where they are not,
# and ends.
_FIRST_CAUTION, _MORE_CAUTION, _LESS_CAUTION, _LEAST_CAUTION = 0.01, 10.0, 3.0, 1e-3
_SWEEPS = 100
_MODEL_TOL = 1e-10  # largest subgradient of the model against that at its start


class Newton:
    """Newton's method, with more caution where its steps are too long.

    It steps over the weights whose second derivatives it is given, and leaves the
    others where they are.

    With L1 a step leads to the minimum of the quadratic model plus the L1 norm, which
    takes no look at the rows (the proximal Newton method of Lee, Sun and Saunders,
    2014).

    Parameters
    ----------
    l1 : ndarray of shape (n_weights,)
        Weights of the L1 norm.
    share : Share
        Of which weights these are those of.
    """

    has_memory = is_long = False
    knows_curvature = True

    def __init__(self, l1: np.ndarray, share: Share) -> None:
        self._l1 = l1
        self._share = share
        self.caution = 0.0
        self._n_refused = 0
        self._left = np.inf

    def restart(self) -> None:
        """Nothing has been learnt of the function."""

    def sharpen(self) -> None:
        """The function is less smooth from now on."""

    def has_slowed(self, elsewhere: float) -> bool:
        """Whether the last steps have gained little; there are few of them."""
        return False

    def direction(self, point: np.ndarray, found: Found, slopes: np.ndarray) -> float:
        """Find the direction from an accepted point, and what may be gained yet.

        Parameters
        ----------
        point : ndarray of shape (n_weights,)
            The point.
        found : Found
            What was found there.
        slopes : ndarray of shape (n_weights,)
            Subgradient of least norm.

        Returns
        -------
        along : float
            Slope along the direction; 0, as nobody asks for it.
        """
        used = self.caution
        if self._n_refused == 0:
            self.caution = used / _LESS_CAUTION if used > _LEAST_CAUTION else 0.0
        self._n_refused = 0
        left = self._solve(point, found) + self._left_outside(found, slopes)
        # A function that is taken to be steeper looks nearer to its minimum.
        self._left = left if used == 0 else np.inf
        return 0.0

    def left(self, along: float) -> float:
        """What may be gained yet."""
        return self._left

    def move(self, point: np.ndarray, length: float) -> np.ndarray:
        """Point some way along the direction."""
        return point + self.step if length == 1 else point + length * self.step

    def refuse(self, n_refused: int) -> None:
        """Take note that a trial was no better."""
        self._n_refused = n_refused
        self.caution = min(1.0, max(_FIRST_CAUTION, _MORE_CAUTION * self.caution))

    def _solve(self, point: np.ndarray, found: Found) -> float:
        """Go to the minimum of the model; return how much lower it is."""
        if found.hessian is None or found.columns is None:
            raise ValueError("Newton's method needs second derivatives, got none")
        own, share = found.columns, self._share
        vectors = (share.take(v, own) for v in (point, found.gradient, self._l1))
        step, gain = share.decide(partial(_step_over, found.hessian, *vectors))
        self.step = np.zeros(len(point))
        share.put(self.step, own, step)
        return gain

    def _left_outside(self, found: Found, slopes: np.ndarray) -> float:
        """What steps by other weights may gain, each with a typical curvature."""
        if found.hessian is None or found.columns is None:
            return 0.0
        others = slopes.copy()
        self._share.put(others, found.columns, np.zeros(len(found.columns)))
        curvature = float(np.diagonal(found.hessian).mean())
        (square,) = self._share.sums(float(others @ others))
        return 0.5 * square / max(curvature, _FLAT)


def _step_over(
    hessian: np.ndarray, start: np.ndarray, gradient: np.ndarray, l1: np.ndarray
) -> tuple[np.ndarray, float]:
    """Step to the minimum of the model, and how much lower that is."""
    damped = _positive_definite(hessian)
    if not l1.any():
        step = -cho_solve(cho_factor(damped), gradient)
        return step, -0.5 * float(gradient @ step)
    end = minimize_model(damped, gradient - damped @ start, l1, start)
    step = end - start
    gain = gradient @ step + 0.5 * step @ damped @ step
    gain += l1 @ (np.abs(end) - np.abs(start))
    return step, max(0.0, -float(gain))


def _positive_definite(hessian: np.ndarray) -> np.ndarray:
    """A matrix with a diagonal that rounding cannot make indefinite."""
    diagonal = np.diagonal(hessian)
    # In these coordinates a second derivative is about 1 where no row is flat.
    floor = _FLAT * max(float(diagonal.max(initial=0.0)), _FLAT)
    for damping in _DAMPINGS:
        damped = hessian + np.diag(damping * np.maximum(diagonal, floor))
        try:
            cho_factor(damped)
        except LinAlgError:
            continue
        return damped
    raise ValueError(
        "the second derivatives of the objective are not positive definite; scale the "
        "features, or use refine='lbfgs'"
    )


def minimize_model(
    quadratic: np.ndarray, linear: np.ndarray, l1: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """Minimum of ``z' Q z / 2 + q' z + sum_j l1_j |z_j|``.

    Sweeps of coordinate descent find out which components may differ from 0. After
    each, Newton steps over these go on until none of them changes its sign: one that
    would do so becomes 0.

    Parameters
    ----------
    quadratic : ndarray of shape (n_weights, n_weights)
        `Q`, positive definite.
    linear : ndarray of shape (n_weights,)
        `q`.
    l1 : ndarray of shape (n_weights,)
        Weights of the L1 norm.
    start : ndarray of shape (n_weights,)
        Where to begin.

    Returns
    -------
    ndarray of shape (n_weights,)
        With exact zeros.
    """
    z = start.copy()
    gradient = quadratic @ z + linear
    goal = _MODEL_TOL * np.abs(least_subgradient(z, gradient, l1)).max(initial=0.0)
    for _ in range(_SWEEPS):
        _sweep(z, gradient, quadratic, l1)
        while not _polish(z, gradient, quadratic, l1):  # ever fewer components are left
            gradient = quadratic @ z + linear
        gradient = quadratic @ z + linear
        if np.abs(least_subgradient(z, gradient, l1)).max(initial=0.0) <= goal:
            break
    return z


def _sweep(
    z: np.ndarray, gradient: np.ndarray, quadratic: np.ndarray, l1: np.ndarray
) -> None:
    """Minimise by each component in turn, in place."""
    # Python's own numbers: a scalar of NumPy takes ten times as long to calculate with.
    columns = zip(np.diagonal(quadratic).tolist(), z.tolist(), l1.tolist(), strict=True)
    for j, (curvature, old, threshold) in enumerate(columns):
        goal = curvature * old - gradient.item(j)
        sign = (goal > 0) - (goal < 0)
        new = sign * max(abs(goal) - threshold, 0.0) / curvature
        if new != old:
            gradient += (new - old) * quadratic[j]
            z[j] = new


def _polish(
    z: np.ndarray, gradient: np.ndarray, quadratic: np.ndarray, l1: np.ndarray
) -> bool:
    """Newton step over the components that are not 0; whether no sign was in it."""
    support = np.flatnonzero(z)
    if not len(support):
        return True
    slopes = gradient[support] + l1[support] * np.sign(z[support])
    step = -_solve_definite(quadratic[support[:, None], support], slopes)
    crossing = (step * z[support] < 0) & (l1[support] > 0)
    lengths = np.where(crossing, -z[support] / np.where(crossing, step, 1.0), np.inf)
    length = min(1.0, float(lengths.min(initial=np.inf)))
    z[support] += length * step
    if length < 1:
        z[support[lengths <= length]] = 0.0
    return length == 1


def _solve_definite(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solution for a finite, positive definite matrix, without SciPy's checks."""
    factor, info = lapack.dpotrf(matrix, clean=False)
    if info:
        raise LinAlgError(f"leading minor {info} is not positive definite")
    return np.asarray(lapack.dpotrs(factor, right)[0])
