"""Losses of a residual, for any real target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_ma.kernels.losses._base import (
    Loss,
    SmoothLoss,
    softplus,
    softplus_and_share,
    softplus_curvature,
)


def _size(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """|p - y|, in one temporary."""
    r = np.subtract(p, y)
    return np.abs(r, out=r)


class SquaredError(Loss):
    """Least squares."""

    smoothness = 1.0
    is_quadratic = True

    def value(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``(p - y)^2 / 2``."""
        r = np.subtract(p, y)
        np.multiply(r, r, out=r)
        r *= 0.5
        return r

    def slope(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``p - y``."""
        return p - y

    def curvature(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """1."""
        return np.ones(p.shape)

    def conjugate(self, y: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """``u y + u^2 / 2``."""
        return y * slopes + 0.5 * slopes * slopes

    def working_squares(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``y^2``."""
        return y * y


@dataclass(frozen=True)
class Huber(Loss):
    """Squares of small residuals, sizes of large ones.

    It is smooth, but flat where a residual is above epsilon: with a width above
    ``epsilon / 2`` its smooth version is ``2 epsilon width log(cosh(p - y) / (2
    width))``.

    Parameters
    ----------
    epsilon : float, default=0.1
        Largest residual that is squared, above 0.
    """

    epsilon: float = 0.1
    smoothness = 1.0
    is_rounded = True
    has_epsilon = True

    @property
    def least_width(self) -> float:
        """``epsilon / 2``."""
        return 0.5 * self.epsilon

    def value(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``r^2 / 2`` up to ``epsilon``, then ``epsilon (r - epsilon / 2)``."""
        r = _size(y, p)
        clipped = np.minimum(r, self.epsilon)
        # with c = min(r, epsilon): c (r - c / 2) is both branches
        r -= 0.5 * clipped
        r *= clipped
        return r

    def slope(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``p - y``, at most epsilon in size."""
        return np.clip(p - y, -self.epsilon, self.epsilon)

    def curvature(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """1 where ``|p - y| <= epsilon``, else 0."""
        return 1.0 * (np.abs(p - y) <= self.epsilon)

    def conjugate(self, y: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """``u y + u^2 / 2``."""
        return y * slopes + 0.5 * slopes * slopes

    def smooth(
        self, y: np.ndarray, p: np.ndarray, width: Any, caution: Any
    ) -> SmoothLoss:
        """The loss itself for small widths, else the log of a hyperbolic cosine."""
        epsilon = self.epsilon
        values, slopes, r = self.value(y, p), self.slope(y, p), p - y
        is_itself = np.broadcast_to(width, r.shape) <= 0.5 * epsilon
        share = np.tanh(0.5 * r / width)
        log_cosh = width * (2 * softplus(-np.abs(r) / width) - 2 * np.log(2))
        log_cosh += np.abs(r)
        smooth = np.where(is_itself, values, epsilon * log_cosh)
        slopes = np.where(is_itself, slopes, epsilon * share)
        curvatures = np.where(
            is_itself, self.curvature(y, p), 0.5 * epsilon * (1 - share**2) / width
        )
        gaps = np.maximum(values - slopes * r + 0.5 * slopes**2, 0.0)
        return SmoothLoss(
            values, smooth, slopes, curvatures, np.where(is_itself, 0.0, gaps)
        )


@dataclass(frozen=True)
class EpsilonInsensitive(Loss):
    """Support vector regression; its smooth version is made of two softpluses.

    Parameters
    ----------
    epsilon : float, default=0.1
        Largest residual that costs nothing, not negative.
    """

    epsilon: float = 0.1
    is_rounded = True
    has_epsilon = True

    def value(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``max(0, |p - y| - epsilon)``."""
        r = _size(y, p)
        r -= self.epsilon
        return np.maximum(r, 0, out=r)

    def slope(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Sign of ``p - y`` where ``|p - y| > epsilon``, else 0."""
        r = p - y
        return np.where(np.abs(r) > self.epsilon, np.sign(r), 0)

    def conjugate(self, y: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """``u y + epsilon |u|``."""
        return y * slopes + self.epsilon * np.abs(slopes)

    def smooth(
        self, y: np.ndarray, p: np.ndarray, width: Any, caution: Any
    ) -> SmoothLoss:
        """A softplus on either side."""
        epsilon = self.epsilon
        values, r = self.value(y, p), p - y
        above, below = (r - epsilon) / width, (-r - epsilon) / width
        (upper, up), (lower, down) = map(softplus_and_share, (above, below))
        slopes = up - down
        curvatures = softplus_curvature(above, up, caution)
        curvatures += softplus_curvature(below, down, caution)
        return SmoothLoss(
            values,
            width * (upper + lower),
            slopes,
            curvatures / width,
            np.maximum(values - slopes * r + epsilon * np.abs(slopes), 0.0),
        )


@dataclass(frozen=True)
class SquaredEpsilonInsensitive(Loss):
    """Squares of what residuals are above epsilon.

    Parameters
    ----------
    epsilon : float, default=0.1
        Largest residual that costs nothing, not negative.
    """

    epsilon: float = 0.1
    smoothness = 2.0
    has_epsilon = True

    def value(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``max(0, |p - y| - epsilon)^2``."""
        r = _size(y, p)
        r -= self.epsilon
        np.maximum(r, 0, out=r)
        return np.multiply(r, r, out=r)

    def slope(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``2 max(0, |p - y| - epsilon)``, with the sign of ``p - y``."""
        r = p - y
        return 2 * (r - np.clip(r, -self.epsilon, self.epsilon))

    def curvature(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """2 where ``|p - y| > epsilon``, else 0."""
        return 2.0 * (np.abs(p - y) > self.epsilon)

    def conjugate(self, y: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """``u y + u^2 / 4 + epsilon |u|``."""
        return y * slopes + 0.25 * slopes * slopes + self.epsilon * np.abs(slopes)
