"""Directions from the last few gradients, also for L1."""

from __future__ import annotations

from collections import deque

import numpy as np

from dask_ma.linear.refine._coordinates import Found

_MEMORY = 10  # pairs of steps and changes of the gradient
_SMALLEST = 1e-12  # cosine between the two of a pair that says something
_WINDOW = 5  # fewest steps whose gain says something


class LBFGS:
    """Limited-memory BFGS, for L1 that of Andrew and Gao (OWL-QN, 2007).

    With L1 a step stays in the orthant that it begins in: it goes along the subgradient
    of least norm, and components that would change their sign become 0.

    Parameters
    ----------
    l1 : ndarray of shape (n_weights,)
        Weights of the L1 norm.
    """

    def __init__(self, l1: np.ndarray) -> None:
        self._l1 = l1
        self._pairs: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=_MEMORY)
        self._last: tuple[np.ndarray, np.ndarray] | None = None
        self._values: list[float] = []
        self._lowest: list[float] = []  # objectives so far, of smoother losses as well
        self._orthant = np.zeros(0)

    knows_curvature = False
    caution = 0.0  # no second derivatives are asked for

    def restart(self) -> None:
        """Forget what was learnt, since the function is another one now."""
        self._pairs.clear()
        self._last = None
        self._values.clear()

    @property
    def has_memory(self) -> bool:
        """Whether there is something to forget."""
        return bool(self._pairs)

    def direction(self, point: np.ndarray, found: Found, slopes: np.ndarray) -> float:
        """Find the direction from an accepted point; return what may be gained yet.

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
        excess : float
            Estimate of how far the objective is above its optimum.
        """
        if self._last is not None:
            step, change = point - self._last[0], found.gradient - self._last[1]
            product = float(step @ change)
            if product > _SMALLEST * np.sqrt((step @ step) * (change @ change)):
                self._pairs.append((step, change, product))
        self._last = point, found.gradient
        self._values.append(found.value)
        best = min(self._lowest[-1:], default=np.inf)
        self._lowest.append(min(best, found.objective))
        self.step = -self._apply(slopes)
        if self._l1.any():
            self.step[self.step * slopes >= 0] = 0.0
            side = np.where(point != 0, np.sign(point), -np.sign(slopes))
            self._orthant = np.where(self._l1 > 0, side, 0.0)
        left = -0.5 * float(slopes @ self.step)
        return max(left, self._gain_left(), self._gain_of_all_left())

    def move(self, point: np.ndarray, length: float) -> np.ndarray:
        """Point some way along the direction."""
        moved = point + length * self.step
        if self._l1.any():
            moved[(self._orthant * moved <= 0) & (self._l1 > 0)] = 0.0
        return moved

    def refuse(self, n_refused: int) -> None:
        """Take note that a trial was no better."""

    def _apply(self, slopes: np.ndarray) -> np.ndarray:
        """The inverse of the second derivatives, as the pairs have it, times slopes."""
        result, factors = slopes.copy(), []
        for step, change, product in reversed(self._pairs):
            factor = float(step @ result) / product
            result -= factor * change
            factors.append(factor)
        if self._pairs:
            _, change, product = self._pairs[-1]
            result *= product / float(change @ change)
        for (step, change, product), factor in zip(
            self._pairs, reversed(factors), strict=True
        ):
            result += step * (factor - float(change @ result) / product)
        return result

    def _gain_left(self) -> float:
        """What is left to gain, from what the last third of the steps has gained."""
        window = max(_WINDOW, len(self._values) // 3)
        if len(self._values) <= window:
            return np.inf
        # All of it where the excess falls like the inverse of the number of steps, as
        # for badly scaled columns; too much where it falls faster.
        return 2 * max(0.0, self._values[-1 - window] - self._values[-1])

    def _gain_of_all_left(self) -> float:
        """What is left to gain, from what all steps have gained."""
        # A loss that has just become less smooth gains little at first, whatever is
        # left. The last two quarters of the steps tell: a gain that falls by a factor
        # from one to the next goes on to do so, and where the excess falls like the
        # inverse of the number of steps, that factor is a half and three times the last
        # gain is left.
        window = len(self._lowest) // 4
        if window < _WINDOW:
            return 0.0
        first, middle, last = (self._lowest[-1 - k * window] for k in (2, 1, 0))
        before, gain = first - middle, middle - last
        if gain <= 0:
            return 0.0
        return 3 * gain * gain / (before - gain) if gain < before else np.inf
