"""The interface of a loss: value, slope, curvature, smooth version."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np


class SmoothLoss(NamedTuple):
    """A loss of some samples, all of float64.

    Attributes
    ----------
    values : ndarray
        The loss itself.
    smooth : ndarray
        Its smooth version.
    slopes, curvatures : ndarray
        First and second derivatives of the smooth version by the predictions.
    gaps : ndarray
        ``loss(p) + loss*(slope) - slope p``, at least 0.
    """

    values: np.ndarray
    smooth: np.ndarray
    slopes: np.ndarray
    curvatures: np.ndarray
    gaps: np.ndarray


class Loss(ABC):
    """A loss of a linear model, sample by sample.

    Targets ``y`` and predictions ``p`` broadcast together, and each method returns a
    new array. No method branches over masks where a branch that is not taken could
    overflow.

    Attributes
    ----------
    is_smoothed : bool
        Whether it has a smooth version, for methods of second order.
    is_rounded : bool
        Whether the width of the smooth version matters.
    """

    is_smoothed: ClassVar[bool] = True
    is_rounded: ClassVar[bool] = False

    @abstractmethod
    def value(self, y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
        """Value of each sample."""

    @abstractmethod
    def slope(self, y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
        """Derivative by the prediction; at a kink, that of scikit-learn's SGD."""

    def curvature(
        self, y: np.ndarray, p: np.ndarray, epsilon: float, caution: Any
    ) -> np.ndarray:
        """Second derivative by the prediction, of losses that are smooth themselves."""
        raise NotImplementedError(f"{type(self).__name__} has no curvature of its own")

    def smooth(
        self, y: np.ndarray, p: np.ndarray, epsilon: float, width: Any, caution: Any
    ) -> SmoothLoss:
        """The loss and its smooth version, which is the loss itself by default."""
        values = self.value(y, p, epsilon)
        return SmoothLoss(
            values,
            values,
            self.slope(y, p, epsilon),
            self.curvature(y, p, epsilon, caution),
            np.zeros(values.shape),
        )
