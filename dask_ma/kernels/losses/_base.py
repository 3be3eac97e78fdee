"""The interface of a loss: value, slope, curvature, conjugate, smooth version."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

# From here on exp(-u) is nothing beside 1, and soon a number that processors are
# slow with.
_LARGE = 700.0


def softplus(u: np.ndarray) -> np.ndarray:
    """log(1 + exp(u)), without overflow."""
    value, _ = softplus_and_share(u)
    return value


def softplus_and_share(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log(1 + exp(u)) and its derivative, 1 / (1 + exp(-u)), from one exponential."""
    # NumPy's exp and log1p take several elements at a time; logaddexp and SciPy's expit
    # do not, and take two to three times as long.
    small = np.abs(u)
    np.minimum(small, _LARGE, out=small)
    np.negative(small, out=small)
    np.exp(small, out=small)
    value = np.log1p(small)
    value += np.maximum(u, 0)
    share = np.where(u > 0, 1, small)
    small += 1
    share /= small
    return value, share


def softplus_curvature(u: np.ndarray, share: np.ndarray, caution: Any) -> np.ndarray:
    """Second derivative of log(1 + exp(u)), or of a parabola that is not below it.

    The parabola is that of T. Jaakkola and M. Jordan (2000): its second derivative is
    ``tanh(u / 2) / (2 u)``, which falls far more slowly. Without caution, None, nobody
    asks for it: zeros.
    """
    if caution is None:
        return np.zeros(u.shape)
    half = np.maximum(0.5 * np.abs(u), np.finfo(np.float64).tiny)
    own, touching = share * (1 - share), 0.25 * np.tanh(half) / half
    return own + caution * (touching - own)


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
    """A convex loss, sample by sample.

    Subclasses say what the loss of a prediction is and how it changes; whoever
    minimises it adds up over samples. Targets `y` and predictions `p` broadcast
    together, and each method returns a new array. A loss of several outputs takes
    predictions of shape (n_samples, n_outputs), and targets of shape (n_samples,).

    ``value`` and ``slope`` are all that gradient descent and L-BFGS need. Coordinate
    descent also needs ``smoothness``; Newton's method ``curvature``; duality gaps
    ``conjugate``.

    Attributes
    ----------
    n_outputs : int
        Predictions of a sample.
    smoothness : float
        Largest second derivative, along any direction where there are several outputs;
        infinite where there is no bound.
    is_quadratic : bool
        Whether it is half the square of the residual.
    is_smoothed : bool
        Whether it has a smooth version, for methods of second order.
    is_rounded : bool
        Whether the width of the smooth version matters.
    has_epsilon : bool
        Whether it has a parameter `epsilon`.
    """

    n_outputs: int = 1
    smoothness: float = math.inf
    is_quadratic: ClassVar[bool] = False
    is_smoothed: ClassVar[bool] = True
    is_rounded: ClassVar[bool] = False
    has_epsilon: ClassVar[bool] = False

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"

    @property
    def has_curvature(self) -> bool:
        """Whether second derivatives are known, of the loss or its smooth version."""
        kind = type(self)
        return kind.curvature is not Loss.curvature or kind.smooth is not Loss.smooth

    @property
    def least_width(self) -> float:
        """Width up to which the smooth version is the loss itself."""
        return 0.0

    def targets(self, y: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
        """Targets as the other methods take them.

        Parameters
        ----------
        y : ndarray
            Targets, or codes of classes from 0 on.
        dtype : dtype, default=float64
            Of the predictions.

        Returns
        -------
        targets : ndarray of the shape of `y`
        """
        return np.asarray(y, dtype=dtype)

    @abstractmethod
    def value(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Loss of each sample.

        Parameters
        ----------
        y : ndarray
            What :meth:`targets` gives.
        p : ndarray of float32 or float64
            Predictions.

        Returns
        -------
        values : ndarray of shape (n_samples,)
            Or of the shape of `p`, where there is one output.
        """

    @abstractmethod
    def slope(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Derivatives by the predictions; at a kink, that of scikit-learn's SGD.

        Parameters
        ----------
        y, p : ndarray
            As in :meth:`value`.

        Returns
        -------
        slopes : ndarray of the shape of `p`
        """

    def value_and_slope(
        self, y: np.ndarray, p: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Both at once, for losses where one helps with the other.

        Parameters
        ----------
        y, p : ndarray
            As in :meth:`value`.

        Returns
        -------
        values, slopes : ndarray
        """
        return self.value(y, p), self.slope(y, p)

    def curvature(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Second derivatives by the prediction, of losses that are smooth themselves.

        Parameters
        ----------
        y, p : ndarray
            As in :meth:`value`.

        Returns
        -------
        curvatures : ndarray of the shape of `p`
        """
        raise NotImplementedError(f"{type(self).__name__} has no curvature of its own")

    def curvatures(self, y: np.ndarray, p: np.ndarray) -> Callable[[int], np.ndarray]:
        """Second derivatives by pairs of outputs.

        Parameters
        ----------
        y : ndarray of shape (n_samples,)
            What :meth:`targets` gives.
        p : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Predictions.

        Returns
        -------
        curvatures : callable
            ``curvatures(k)`` gives those by output `k` and each output, a new ndarray
            of shape (n_samples, n_outputs).
        """
        own = self.curvature(y, p)[:, np.newaxis]
        return lambda output: own.copy()

    def conjugate(self, y: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """The convex conjugate, ``max over p of slope p - loss(p)``.

        Parameters
        ----------
        y : ndarray
            What :meth:`targets` gives.
        slopes : ndarray
            Some that the loss has somewhere, or those times a number from 0 to 1; of
            others the result means nothing.

        Returns
        -------
        values : ndarray of shape (n_samples,)
            Or of the shape of `slopes`, where there is one output.
        """
        raise NotImplementedError(f"{type(self).__name__} has no conjugate")

    def working_squares(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Squared targets of the least squares problem that Newton's method solves.

        Near a prediction `m` the loss is about ``curvature / 2 (target - p)^2`` and a
        constant, with the target ``m - slope / curvature``.

        Parameters
        ----------
        y, p : ndarray
            As in :meth:`value`.

        Returns
        -------
        squares : ndarray of shape (n_samples,)
            ``curvature * target^2``; infinite where there is a slope without curvature.
        """
        slopes, curvatures = self.slope(y, p), self.curvature(y, p)
        own = np.where(slopes == 0, 0.0, np.inf)
        np.divide(slopes * slopes, curvatures, out=own, where=curvatures > 0)
        return np.asarray(p * (curvatures * p - 2 * slopes) + own)

    def smooth(
        self, y: np.ndarray, p: np.ndarray, width: Any, caution: Any
    ) -> SmoothLoss:
        """The loss and its smooth version, which is the loss itself by default.

        Parameters
        ----------
        y, p : ndarray
            As in :meth:`value`.
        width : float or ndarray
            Of the smooth version, above 0, in the units of the predictions. Only losses
            with a kink read it, and "huber".
        caution : float, ndarray or None
            Share, from 0 to 1, of the curvature of a parabola that touches the smooth
            version and is nowhere below it, instead of its own. Where it is None,
            nobody looks at the curvatures.

        Returns
        -------
        smooth : SmoothLoss
        """
        values = self.value(y, p)
        no = np.zeros(values.shape)
        # First derivatives are enough for L-BFGS, which does not look at the others.
        has_curvature = type(self).curvature is not Loss.curvature
        is_asked = has_curvature and caution is not None
        return SmoothLoss(
            values,
            values,
            self.slope(y, p),
            self._cautious_curvature(y, p, caution) if is_asked else no,
            no,
        )

    def _cautious_curvature(
        self, y: np.ndarray, p: np.ndarray, caution: Any
    ) -> np.ndarray:
        """Curvature of the loss, or of a parabola that touches it from above."""
        return self.curvature(y, p)
