"""Minimum of a quadratic model with 1-norms, by the signs of its variables.

Among points of given signs the 1-norms are linear, and the minimum solves a system.
Signs become those of the minimum as in feature-sign search (H. Lee, A. Battle, R.
Raina, A. Ng, 2007): from near by a few systems are enough, however much variables have
in common, where steps along gradients would take very many.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

_MOST_FAILED = 2
# What a step has to bring, in parts of what it is the difference of; how far slopes
# have to be beyond the 1-norms; and what is added to a system that is singular, first.
_ROUNDING, _BEYOND, _JITTER = 1e-14, 1e-9, 1e-13


class SignedModel:
    """The model ``g . x + x . B x / 2 + sum_j l1_j |x_j|``.

    Parameters
    ----------
    hessian : ndarray of shape (n, n)
        Symmetric, and positive semidefinite but for rounding; `B`.
    gradient, l1 : ndarray of shape (n,)
        `g`, and the weights of the 1-norms, not negative.
    """

    def __init__(
        self, hessian: np.ndarray, gradient: np.ndarray, l1: np.ndarray
    ) -> None:
        self._hessian, self._gradient, self._l1 = hessian, gradient, l1

    def minimum(self, start: np.ndarray, *, most: int = 50) -> np.ndarray:
        """The minimum, or what a number of systems has come to.

        Parameters
        ----------
        start : ndarray of shape (n,)
            A point near it.
        most : int, default=50
            Systems at most.

        Returns
        -------
        x : ndarray of shape (n,)
            The model is not larger there than at `start`.
        """
        x, image = start, self._hessian @ start
        n_failed, is_least = 0, False
        for _ in range(most):
            signs, n_new = self._signs(x, image, n_failed)
            if is_least and not n_new:
                break
            moves = self._moves(x, self._target(signs), signs)
            images = [self._hessian @ move for move in moves]
            gains = [
                self._gain(x, image, *place)
                for place in zip(moves, images, strict=True)
            ]
            best = int(np.argmax(gains))
            if gains[best] > 0:
                x, image = moves[best], images[best]
                n_failed, is_least = 0, len(moves) == 1
            elif n_failed == _MOST_FAILED or not (n_new or n_failed):
                break
            else:
                n_failed, is_least = n_failed + 1, False
        return x

    def _signs(
        self, x: np.ndarray, image: np.ndarray, n_failed: int
    ) -> tuple[np.ndarray, int]:
        """Signs that variables have and that some at zero get, and how many do."""
        slopes = self._gradient + image
        beyond = np.abs(slopes) - self._l1 * (1 + _BEYOND)
        beyond[x != 0] = 0.0
        # All at once may be in each other's way. Where the model is least among points
        # of the signs there are, the one that is farthest beyond is in nobody's.
        least = (0.0, np.inf, beyond.max(initial=0.0))[n_failed]
        new = (beyond > 0) & (beyond >= least)
        return np.where(new, -np.sign(slopes), np.sign(x)), int(new.sum())

    def _target(self, signs: np.ndarray) -> np.ndarray:
        """Where the model is least among points of some signs, whatever they become."""
        target = np.zeros(len(signs))
        free = np.flatnonzero((signs != 0) | (self._l1 == 0))
        if not len(free):
            return target
        system = self._hessian[np.ix_(free, free)]
        right = -(self._gradient + self._l1 * signs)[free]
        diagonal = np.diagonal(system).copy()
        jitter = _JITTER * (float(diagonal.max()) or 1.0)  # of zeros, any will do
        while True:
            try:
                factor = linalg.cho_factor(system, lower=True, check_finite=False)
                break
            except linalg.LinAlgError:
                system[np.diag_indices_from(system)] = diagonal + jitter
                jitter *= 10
        target[free] = linalg.cho_solve(factor, right, check_finite=False)
        return target

    def _moves(
        self, x: np.ndarray, target: np.ndarray, signs: np.ndarray
    ) -> list[np.ndarray]:
        """The target without other signs, and as far as up to the first of them."""
        others = (self._l1 > 0) & (target * signs < 0)
        if not others.any():
            return [target]
        shares = np.abs(x[others]) / np.abs(target - x)[others]
        first = x + shares.min() * (target - x)
        first[np.flatnonzero(others)[shares == shares.min()]] = 0.0
        return [np.where(others, 0.0, target), first]

    def _gain(
        self, x: np.ndarray, image: np.ndarray, new: np.ndarray, new_image: np.ndarray
    ) -> float:
        """By how much the model is less at a new point; 0 where that is rounding."""
        slopes = self._gradient + (image + new_image) / 2
        parts = slopes * (x - new) + self._l1 * (np.abs(x) - np.abs(new))
        gain = float(parts.sum())
        return gain if gain > _ROUNDING * float(np.abs(parts).sum()) else 0.0
