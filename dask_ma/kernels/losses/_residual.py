"""Losses of a residual, for any real target."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from dask_ma.kernels.losses._base import Loss, SmoothLoss
from dask_ma.kernels.losses._softplus import softplus, softplus_curvature


def _size(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """|p - y|, in one temporary."""
    r = np.subtract(p, y)
    return np.abs(r, out=r)


class SquaredError(Loss):
    """Least squares."""

    def value(self, y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
        """(p - y)^2 / 2."""
        r = np.subtract(p, y)
        np.multiply(r, r, out=r)
        r *= 0.5
        return r

    def slope(self, y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
        """p - y."""
        return p - y

    def curvature(
        self, y: np.ndarray, p: np.ndarray, epsilon: float, caution: Any
    ) -> np.ndarray:
        """1."""
        return np.ones(p.shape)


class Huber(Loss):
    """Squares of small residuals, sizes of large ones.

    It is smooth, but flat where a residual is above epsilon: with a width above
    ``epsilon / 2`` its smooth version is ``2 epsilon width log(cosh(p - y) / (2
    width))``.
    """

    is_rounded = True

    def value(self, y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
        """r^2 / 2 where r = |p - y| <= epsilon, else epsilon r - epsilon^2 / 2."""
        r = _size(y, p)
        clipped = np.minimum(r, epsilon)
        # with c = min(r, epsilon): c (r - c / 2) is both branches
        r -= 0.5 * clipped
        r *= clipped
        return r

    def slope(self, y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
        """p - y, at most epsilon in size."""
        return np.clip(p - y, -epsilon, epsilon)

    def smooth(
        self, y: np.ndarray, p: np.ndarray, epsilon: float, width: Any, caution: Any
    ) -> SmoothLoss:
        """The loss itself for small widths, else the log of a hyperbolic cosine."""
        values, slopes, r = self.value(y, p, epsilon), self.slope(y, p, epsilon), p - y
        is_itself = np.broadcast_to(width, r.shape) <= 0.5 * epsilon
        share = np.tanh(0.5 * r / width)
        log_cosh = width * (2 * softplus(-np.abs(r) / width) - 2 * np.log(2))
        log_cosh += np.abs(r)
        smooth = np.where(is_itself, values, epsilon * log_cosh)
        slopes = np.where(is_itself, slopes, epsilon * share)
        curvatures = np.where(
            is_itself, np.abs(r) <= epsilon, 0.5 * epsilon * (1 - share**2) / width
        )
        gaps = np.maximum(values - slopes * r + 0.5 * slopes**2, 0.0)
        return SmoothLoss(
            values, smooth, slopes, curvatures, np.where(is_itself, 0.0, gaps)
        )


class EpsilonInsensitive(Loss):
    """Support vector regression; its smooth version is made of two softpluses."""

    is_rounded = True

    def value(self, y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
        """max(0, |p - y| - epsilon)."""
        r = _size(y, p)
        r -= epsilon
        return np.maximum(r, 0, out=r)

    def slope(self, y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
        """Sign of p - y where |p - y| > epsilon, else 0."""
        r = p - y
        return np.where(np.abs(r) > epsilon, np.sign(r), 0)

    def smooth(
        self, y: np.ndarray, p: np.ndarray, epsilon: float, width: Any, caution: Any
    ) -> SmoothLoss:
        """A softplus on either side."""
        values, r = self.value(y, p, epsilon), p - y
        above, below = (r - epsilon) / width, (-r - epsilon) / width
        up, down = special.expit(above), special.expit(below)
        slopes = up - down
        curvatures = softplus_curvature(above, up, caution)
        curvatures += softplus_curvature(below, down, caution)
        return SmoothLoss(
            values,
            width * (softplus(above) + softplus(below)),
            slopes,
            curvatures / width,
            np.maximum(values - slopes * r + epsilon * np.abs(slopes), 0.0),
        )


class SquaredEpsilonInsensitive(Loss):
    """Squares of what residuals are above epsilon."""

    def value(self, y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
        """max(0, |p - y| - epsilon)^2."""
        r = _size(y, p)
        r -= epsilon
        np.maximum(r, 0, out=r)
        return np.multiply(r, r, out=r)

    def slope(self, y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
        """2 max(0, |p - y| - epsilon), with the sign of p - y."""
        r = p - y
        return 2 * (r - np.clip(r, -epsilon, epsilon))

    def curvature(
        self, y: np.ndarray, p: np.ndarray, epsilon: float, caution: Any
    ) -> np.ndarray:
        """2 where |p - y| > epsilon, else 0."""
        return 2.0 * (np.abs(p - y) > epsilon)
