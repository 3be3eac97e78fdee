"""Losses of a margin, for targets -1 and +1."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from dask_ma.kernels.losses._base import (
    Loss,
    SmoothLoss,
    softplus_and_share,
    softplus_curvature,
)

# Of the row's own class, where its inverse is asked for.
_SMALLEST_PROBABILITY = 1e-10


class MarginLoss(Loss):
    """A loss of the product of target and prediction."""

    def targets(self, y: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
        """1 for the code 1, else -1; targets stay what they are."""
        one = np.dtype(dtype).type(1)
        return np.where(np.asarray(y) > 0, one, -one)


def _shortfall(y: np.ndarray, p: np.ndarray, threshold: float) -> np.ndarray:
    """max(0, threshold - y p), in one temporary."""
    z = np.multiply(y, p)
    np.subtract(threshold, z, out=z)
    return np.maximum(z, 0, out=z)


class Hinge(MarginLoss):
    """Linear support vector machine; its smooth version is a softplus."""

    is_rounded = True

    def value(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``max(0, 1 - y p)``."""
        return _shortfall(y, p, 1)

    def slope(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``-y`` where ``y p <= 1``, else 0."""
        return np.where(y * p <= 1, -y, 0)

    def conjugate(self, y: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """``y u``."""
        return y * slopes

    def smooth(
        self, y: np.ndarray, p: np.ndarray, width: Any, caution: Any
    ) -> SmoothLoss:
        """``width log(1 + exp((1 - y p) / width))``."""
        u = 1 - y * p
        values, scaled = np.maximum(u, 0), u / width
        smooth, share = softplus_and_share(scaled)
        smooth *= width
        curvatures = softplus_curvature(scaled, share, caution)
        if caution is not None:
            curvatures /= width
        u *= share
        gaps = np.subtract(values, u, out=u)
        np.maximum(gaps, 0.0, out=gaps)
        share *= -y
        return SmoothLoss(values, smooth, share, curvatures, gaps)


class Perceptron(MarginLoss):
    """Its optimum is zero, so it has no smooth version to find that by."""

    is_smoothed = False

    def value(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``max(0, -y p)``."""
        return _shortfall(y, p, 0)

    def slope(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``-y`` where ``y p <= 0``, else 0: with 0 there it could not leave zero."""
        return np.where(y * p <= 0, -y, 0)

    def conjugate(self, y: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """0."""
        return 0 * slopes


class SquaredHinge(MarginLoss):
    """Support vector machine whose margins are squared."""

    smoothness = 2.0

    def value(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``max(0, 1 - y p)^2``."""
        z = _shortfall(y, p, 1)
        return np.multiply(z, z, out=z)

    def slope(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``-2 y max(0, 1 - y p)``."""
        return -2 * y * np.maximum(1 - y * p, 0)

    def curvature(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """2 where ``y p < 1``, else 0."""
        return 2.0 * (y * p < 1)

    def conjugate(self, y: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """``y u + u^2 / 4``."""
        return y * slopes + 0.25 * slopes * slopes


class ModifiedHuber(MarginLoss):
    """Squared hinge that goes on as a line where a row is far on the wrong side."""

    smoothness = 2.0

    def value(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``max(0, 1 - y p)^2`` where ``y p >= -1``, else ``-4 y p``."""
        z = _shortfall(y, p, 1)
        quadratic = np.minimum(z, 2)
        # with c = min(z, 2): c^2 + 4 (z - c) is z^2 up to 2 and 4 (z - 1) beyond
        z -= quadratic
        z *= 4
        quadratic *= quadratic
        z += quadratic
        return z

    def slope(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``-2 y min(max(0, 1 - y p), 2)``."""
        return -2 * y * np.clip(1 - y * p, 0, 2)

    def curvature(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """2 where ``|y p| < 1``, else 0."""
        return 2.0 * (np.abs(y * p) < 1)

    def conjugate(self, y: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """``y u + u^2 / 4``."""
        return y * slopes + 0.25 * slopes * slopes


class LogLoss(MarginLoss):
    """Logistic regression of two classes."""

    smoothness = 0.25

    def value(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``log(1 + exp(-y p))``, as ``max(0, -y p) + log1p(exp(-|y p|))``."""
        z = np.multiply(y, p)
        loss = np.abs(z)
        np.negative(loss, out=loss)
        np.exp(loss, out=loss)
        np.log1p(loss, out=loss)
        loss -= np.minimum(z, 0, out=z)
        return loss

    def slope(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``-y / (1 + exp(y p))``."""
        return -y * special.expit(-y * p)

    def smooth(
        self, y: np.ndarray, p: np.ndarray, width: Any, caution: Any
    ) -> SmoothLoss:
        """The loss itself."""
        values, share = softplus_and_share(-y * p)
        share *= -y
        curvatures = no = np.zeros(values.shape)
        if caution is not None:
            curvatures = self._cautious_curvature(y, p, caution)
        return SmoothLoss(values, values, share, curvatures, no)

    def curvature(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """That of a softplus, the same for both labels."""
        return special.expit(p) * special.expit(-p)

    def conjugate(self, y: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """``q log q + (1 - q) log(1 - q)`` with ``q = -y u``."""
        q = -y * slopes
        return special.xlogy(q, q) + special.xlogy(1 - q, 1 - q)

    def working_squares(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``p (c p - 2 u) + 1 / right - 1``, with the probability of being right."""
        right = np.maximum(special.expit(y * p), _SMALLEST_PROBABILITY)
        own = 1 / right - 1
        return p * (self.curvature(y, p) * p - 2 * self.slope(y, p)) + own

    def _cautious_curvature(
        self, y: np.ndarray, p: np.ndarray, caution: Any
    ) -> np.ndarray:
        """That of a softplus, or of a parabola above it."""
        return softplus_curvature(p, special.expit(p), caution)
