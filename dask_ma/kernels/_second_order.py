"""Steps towards the minimum of a smooth function plus weighted 1- and 2-norms.

A step minimises a model of the function around a point, with the penalty as it is
(proximal Newton methods: Lee, Sun and Saunders, 2014)::

    m(x) = g . (x - v) + (x - v) . B (x - v) / 2 + sum_j l1_j |x_j| + l2_j x_j^2 / 2

`B` is the matrix of second derivatives, or what limited-memory BFGS has learnt of it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import linalg

from dask_ma.kernels._signs import SignedModel

_POWER_STEPS = 8
# Towards the minimum of a model with second derivatives: steps that find out about
# signs, and systems for given signs, for where variables have much in common.
_FEW_STEPS, _FEW_SYSTEMS = 200, 8
_GROWTH = 1.5  # of a bound of the curvature that has turned out too low
_CHUNK = 2**14  # variables at a time, whose pairs are put side by side
_LEAST_CURVATURE = 1e-12  # of a pair, relative to the lengths of both parts


class CompactMemory:
    """What limited-memory BFGS knows of the second derivatives.

    ``B = theta I - W M W^T``, with the last pairs of steps and changes of the gradient
    in `W` (Byrd, Nocedal and Schnabel, 1994).

    Parameters
    ----------
    size : int
        Most pairs, at least 1.

    Attributes
    ----------
    size : int
        Most pairs.
    steps, changes : list of ndarray of shape (n,)
        The pairs, the oldest first.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.steps: list[np.ndarray] = []
        self.changes: list[np.ndarray] = []
        self._theta = 1.0
        self._crossed = np.zeros((0, 0))  # S Y^T, of steps and changes as rows
        self._squared = np.zeros((0, 0))  # S S^T
        self._middle = np.zeros((0, 0))

    def add(self, step: np.ndarray, change: np.ndarray) -> None:
        """Learn from a step; one without positive curvature is passed over.

        Parameters
        ----------
        step : ndarray of shape (n,)
            By which the point has moved; kept, not copied.
        change : ndarray of shape (n,)
            By which the gradient has; kept, not copied.
        """
        least = _LEAST_CURVATURE * np.linalg.norm(step) * np.linalg.norm(change)
        if not float(step @ change) > least:
            return
        self.steps = [*self.steps, step][-self.size :]
        self.changes = [*self.changes, change][-self.size :]
        self._theta = float(change @ change) / float(step @ change)
        self._crossed = _grown(self._crossed, self.steps, self.changes)
        self._squared = _grown(self._squared, self.steps, self.steps)
        lower = np.tril(self._crossed, -1)
        diagonal = np.diag(np.diag(self._crossed))
        squared = self._theta * self._squared
        middle = np.linalg.pinv(np.block([[-diagonal, lower.T], [lower, squared]]))
        # There is no second array of the pairs: the factor of steps in W is in here.
        units = np.repeat([1.0, self._theta], len(self.steps))
        self._middle = middle * units * units[:, np.newaxis]

    def product(self, direction: np.ndarray) -> np.ndarray:
        """``B @ direction``.

        Parameters
        ----------
        direction : ndarray of shape (n,)

        Returns
        -------
        product : ndarray of shape (n,)
        """
        product = self._theta * direction
        vectors = [*self.changes, *self.steps]
        if vectors:
            shares = self._middle @ [vector @ direction for vector in vectors]
            for start in range(0, len(product), _CHUNK):
                part = slice(start, start + _CHUNK)
                product[part] -= shares @ np.array([vector[part] for vector in vectors])
        return product

    def solve(self, right: np.ndarray, added: np.ndarray) -> np.ndarray:
        """Solution of ``(B + diag(added)) x = right``.

        By the formula of Sherman, Morrison and Woodbury: a system of two unknowns for
        each pair is left.

        Parameters
        ----------
        right, added : ndarray of shape (n,)
            Nothing of `added` is negative.

        Returns
        -------
        x : ndarray of shape (n,)
        """
        diagonal = self._theta + added
        x, vectors = right / diagonal, [*self.changes, *self.steps]
        if not vectors:
            return x
        crossed, along = np.zeros(self._middle.shape), np.zeros(len(vectors))
        parts = [slice(k, k + _CHUNK) for k in range(0, len(x), _CHUNK)]
        for part in parts:
            own = np.array([vector[part] for vector in vectors])
            along += own @ x[part]
            crossed += (own / diagonal[part]) @ own.T
        system = np.eye(len(along)) - self._middle @ crossed
        shares = np.linalg.solve(system, self._middle @ along)
        for part in parts:
            own = np.array([vector[part] for vector in vectors])
            x[part] += (shares @ own) / diagonal[part]
        return x


def _grown(
    products: np.ndarray, left: list[np.ndarray], right: list[np.ndarray]
) -> np.ndarray:
    """Products of all pairs of vectors, of which the last ones are new."""
    n = len(left)
    found = np.empty((n, n))
    found[:-1, :-1] = products[len(products) - n + 1 :, len(products) - n + 1 :]
    found[-1] = [left[-1] @ vector for vector in right]
    found[:, -1] = [vector @ right[-1] for vector in left]
    return found


def penalty_of(point: np.ndarray, l1: np.ndarray, l2: np.ndarray) -> float:
    """``sum_j l1_j |x_j| + l2_j x_j^2 / 2``.

    Parameters
    ----------
    point, l1, l2 : ndarray of shape (n,)

    Returns
    -------
    penalty : float
    """
    return float(l1 @ np.abs(point) + (l2 * point) @ point / 2)


def newton_point(
    hessian: np.ndarray,
    gradient: np.ndarray,
    point: np.ndarray,
    l1: np.ndarray,
    l2: np.ndarray,
    *,
    tol: float = 1e-3,
) -> np.ndarray:
    """Minimum of the model with a matrix of second derivatives.

    Parameters
    ----------
    hessian : ndarray of shape (n, n)
        Symmetric, and positive semidefinite but for rounding; `B`.
    gradient, point, l1, l2 : ndarray of shape (n,)
        `g`, `v` and the weights of the penalties, not negative.
    tol : float, default=1e-3
        As in :func:`model_point`; without 1-norms the minimum is exact.

    Returns
    -------
    x : ndarray of shape (n,)
    """
    if not l1.any():
        system = hessian + np.diag(l2)
        # Penalties differ by the squares of the units of columns.
        units = np.sqrt(np.diagonal(system))
        units[units == 0] = 1.0
        system = system / units / units[:, np.newaxis]
        slopes = (gradient + l2 * point) / units
        return point - linalg.solve(system, slopes, assume_a="sym") / units
    # In these units the second derivatives by single variables are 1.
    units = np.sqrt(np.diagonal(hessian))
    scaled = hessian / units / units[:, np.newaxis]
    slopes, start, l1, l2 = gradient / units, point * units, l1 / units, l2 / units**2
    place = slopes, start, l1, l2
    x = model_point(lambda d: scaled @ d, *place, tol=tol, max_iter=_FEW_STEPS)
    slopes -= scaled @ start
    scaled[np.diag_indices_from(scaled)] += l2
    return SignedModel(scaled, slopes, l1).minimum(x, most=_FEW_SYSTEMS) / units


def newton_excess(
    hessian: np.ndarray, decrement: float, largest_square: float
) -> float:
    """How far a logistic objective is above its minimum at most, near it.

    Along any `u` the third derivative is at most ``R ||u||`` times the second one, with
    ``R^2 = 2 largest_square``. With the smallest eigenvalue `m` of the second
    derivatives and the square of Newton's decrement, ``D = g' H^-1 g``, the objective
    is less than `D` above its minimum where ``D R^2 <= m / 4``: the lower bound of
    proposition 1 of F. Bach, "Self-concordant analysis for logistic regression", 2010,
    minimised over the length of `u`.

    Parameters
    ----------
    hessian : ndarray of shape (n, n)
        Second derivatives of the whole objective, symmetric.
    decrement : float
        `D`, not negative.
    largest_square : float
        Largest squared length of a row, with a 1 for the intercept if there is one, in
        the units of the variables.

    Returns
    -------
    excess : float
        Twice `D`, since that is known but for rounding; infinite farther away.
    """
    units = np.sqrt(np.diagonal(hessian))
    if not (np.isfinite(units).all() and units.all()):
        return np.inf
    scaled = hessian / units / units[:, np.newaxis]
    least = float(linalg.eigvalsh(scaled, subset_by_index=(0, 0))[0])
    # Variables in other units have other lengths: those of the rows are no larger then.
    square = largest_square / min(1.0, float(units.min()) ** 2)
    return 2 * decrement if 8 * decrement * square <= least else np.inf


def model_point(
    product: Callable[[np.ndarray], np.ndarray],
    gradient: np.ndarray,
    point: np.ndarray,
    l1: np.ndarray,
    l2: np.ndarray,
    *,
    tol: float = 1e-2,
    max_iter: int = 500,
) -> np.ndarray:
    """About the minimum of the model, by accelerated proximal gradient steps.

    FISTA (Beck and Teboulle, 2009), begun anew where momentum leads away (O'Donoghue
    and Candes, 2015).

    Parameters
    ----------
    product : callable
        Gives ``B @ d`` for a vector `d`.
    gradient, point, l1, l2 : ndarray of shape (n,)
        `g`, `v` and the weights of the penalties, not negative.
    tol : float, default=1e-2
        Length of the last step, relative to that of the first one.
    max_iter : int, default=500
        Most steps.

    Returns
    -------
    x : ndarray of shape (n,)
        The model is not larger there than at `point`.
    """
    bound = _curvature(product, len(point))
    x, x_image = point, np.zeros_like(point)  # the image is B @ (x - v)
    ahead, ahead_image, momentum = x, x_image, 1.0
    value = penalty_of(point, l1, l2)
    best, least, first = point, value, None
    for _ in range(max_iter):
        while True:
            new = ahead - (gradient + ahead_image) / bound
            new -= np.clip(new, -l1 / bound, l1 / bound)
            new /= 1 + l2 / bound
            new_image = product(new - point)
            step = new - ahead
            square = float(step @ step)
            if float(step @ (new_image - ahead_image)) <= bound * square * (1 + 1e-9):
                break
            bound *= _GROWTH
        value = float((gradient + new_image / 2) @ (new - point))
        value += penalty_of(new, l1, l2)
        if value < least:
            best, least = new, value
        length = bound * np.sqrt(square)
        first = length if first is None else first
        if length <= tol * first:
            break
        turns = float((ahead - new) @ (new - x)) > 0
        momentum = 1.0 if turns else momentum
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        share = (momentum - 1) / following
        ahead = new + share * (new - x)
        ahead_image = new_image + share * (new_image - x_image)
        x, x_image, momentum = new, new_image, following
    return best


def _curvature(product: Callable[[np.ndarray], np.ndarray], n: int) -> float:
    """About the largest eigenvalue of `B`."""
    direction = np.cos(np.arange(n) + 1.0)  # no vector that matters is like it
    length = float(np.linalg.norm(direction))
    for _ in range(_POWER_STEPS):
        direction = product(direction / length)
        length = float(np.linalg.norm(direction))
        if length == 0:
            return 1.0
    return 1.1 * length
