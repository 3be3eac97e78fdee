"""Losses of the L1-regularised models, with what duality gaps and Newton steps need.

All sums are weighted with weights that add up to 1 over the rows of all ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from scipy.special import expit, logsumexp, xlogy

Curvatures = Callable[[int], np.ndarray]

_SMALLEST_PROBABILITY = 1e-10


class Loss(ABC):
    """A loss over some rows.

    Parameters
    ----------
    y : ndarray of shape (n_rows,)
        Targets, or codes of classes.
    weight : ndarray of shape (n_rows,)
        Weights of the rows, which add up to 1 over all ranks.

    Attributes
    ----------
    n_outputs : int
        Number `K` of linear functions.
    smoothness : float
        Largest curvature of the loss of a row.
    """

    n_outputs: int
    smoothness: float
    is_quadratic = False

    def __init__(self, y: np.ndarray, weight: np.ndarray) -> None:
        self.y = y
        self.weight = weight

    @abstractmethod
    def value(self, margins: np.ndarray) -> float:
        """Weighted sum of the losses for margins of shape (n_rows, K)."""

    @abstractmethod
    def negative_slopes(self, margins: np.ndarray) -> np.ndarray:
        """Weighted negative derivatives by the margins, of shape (n_rows, K)."""

    @abstractmethod
    def dual(self, margins: np.ndarray, scale: float) -> float:
        """This rank's part of the dual objective.

        Parameters
        ----------
        margins : ndarray of shape (n_rows, K)
            Margins whose negative slopes, times `scale`, are the dual point.
        scale : float
            From 0 to 1.
        """

    @abstractmethod
    def curvatures(self, margins: np.ndarray) -> Curvatures:
        """Weighted second derivatives by the margins.

        Returns
        -------
        curvatures : callable
            ``curvatures(k)`` gives those by the margin of output `k` and of each
            output, ndarray of shape (n_rows, K).
        """

    @abstractmethod
    def norm(self, margins: np.ndarray) -> float:
        """Bound for the constant term of the quadratic model around the margins.

        It is ``sum_i v_i' D_i v_i``, where `D_i` holds the second derivatives of a row
        and ``v_i = m_i + D_i^+ (negative slopes)`` is the target of the weighted least
        squares problem that the model is.
        """


class SquaredError(Loss):
    """Half the squared error; margins and targets are centred by the caller."""

    n_outputs = 1
    smoothness = 1.0
    is_quadratic = True

    def value(self, margins: np.ndarray) -> float:
        residual = self.y - margins[:, 0]
        return 0.5 * float(self.weight @ (residual * residual))

    def negative_slopes(self, margins: np.ndarray) -> np.ndarray:
        slopes: np.ndarray = self.weight * (self.y - margins[:, 0])
        return slopes[:, np.newaxis]

    def dual(self, margins: np.ndarray, scale: float) -> float:
        point = scale * (self.y - margins[:, 0])
        return float(self.weight @ (self.y * point - 0.5 * point * point))

    def curvatures(self, margins: np.ndarray) -> Curvatures:
        return lambda output: self.weight[:, np.newaxis]

    def norm(self, margins: np.ndarray) -> float:
        return float(self.weight @ (self.y * self.y))


class LogLoss(Loss):
    """Logistic loss of two classes, with codes 0 and 1 and one linear function."""

    n_outputs = 1
    smoothness = 0.25

    def _signed(self, margins: np.ndarray) -> np.ndarray:
        """Margins that are positive where the row is classified right."""
        return np.where(self.y == 1, margins[:, 0], -margins[:, 0])

    def value(self, margins: np.ndarray) -> float:
        return float(self.weight @ np.logaddexp(0.0, -self._signed(margins)))

    def negative_slopes(self, margins: np.ndarray) -> np.ndarray:
        wrong = self.weight * expit(-self._signed(margins))
        return np.where(self.y == 1, wrong, -wrong)[:, np.newaxis]

    def dual(self, margins: np.ndarray, scale: float) -> float:
        wrong = scale * expit(-self._signed(margins))
        return -float(self.weight @ (xlogy(wrong, wrong) + xlogy(1 - wrong, 1 - wrong)))

    def curvatures(self, margins: np.ndarray) -> Curvatures:
        curvature = self.weight[:, np.newaxis] * expit(margins) * expit(-margins)
        return lambda output: curvature

    def norm(self, margins: np.ndarray) -> float:
        margin = margins[:, 0]
        right = np.maximum(expit(self._signed(margins)), _SMALLEST_PROBABILITY)
        slopes = self.negative_slopes(margins)[:, 0]
        bent = self.curvatures(margins)(0)[:, 0] * margin
        return float(margin @ (bent + 2 * slopes) + self.weight @ (1 / right - 1))


class MultinomialLogLoss(Loss):
    """Logistic loss of several classes, one linear function for each.

    Parameters
    ----------
    y, weight
        As in :class:`Loss`.
    n_classes : int
        Number of classes.
    """

    smoothness = 0.5

    def __init__(self, y: np.ndarray, weight: np.ndarray, n_classes: int) -> None:
        super().__init__(y, weight)
        self.n_outputs = n_classes
        self._rows = np.arange(len(y))

    def value(self, margins: np.ndarray) -> float:
        own = margins[self._rows, self.y]
        return float(self.weight @ (logsumexp(margins, axis=1) - own))

    def negative_slopes(self, margins: np.ndarray) -> np.ndarray:
        slopes = -_probabilities(margins)
        slopes[self._rows, self.y] += 1
        slopes *= self.weight[:, np.newaxis]
        return slopes

    def dual(self, margins: np.ndarray, scale: float) -> float:
        mixed = scale * _probabilities(margins)
        mixed[self._rows, self.y] += 1 - scale
        return -float(self.weight @ xlogy(mixed, mixed).sum(axis=1))

    def curvatures(self, margins: np.ndarray) -> Curvatures:
        probabilities = _probabilities(margins)

        def by(output: int) -> np.ndarray:
            result = -probabilities
            result[:, output] += 1
            result *= (self.weight * probabilities[:, output])[:, np.newaxis]
            return result

        return by

    def norm(self, margins: np.ndarray) -> float:
        probabilities = _probabilities(margins)
        mean = np.einsum("ik,ik->i", probabilities, margins)
        spread = np.einsum("ik,ik->i", probabilities, margins**2) - mean**2
        along = margins[self._rows, self.y] - mean
        right = np.maximum(probabilities[self._rows, self.y], _SMALLEST_PROBABILITY)
        return float(self.weight @ (spread + 2 * along + 1 / right - 1))


def _probabilities(margins: np.ndarray) -> np.ndarray:
    """Softmax of each row."""
    shifted = margins - margins.max(axis=1, keepdims=True)
    np.exp(shifted, out=shifted)
    shifted /= shifted.sum(axis=1, keepdims=True)
    return shifted
