"""Smooth versions of the losses, with their slopes and curvatures.

A loss with a kink is a maximum over slopes; what is subtracted from it inside the
maximum makes it smooth (Y. Nesterov, "Smooth minimization of non-smooth functions",
2005). The entropy of the slope gives ``width log(1 + exp(u / width))`` for ``max(0,
u)``: second derivatives are nowhere 0, and Newton's method gets on with it as with the
logistic loss. "hinge" and "epsilon_insensitive" are made of such maxima. "huber" is
smooth, but flat where a residual is above `epsilon`: with a width above ``epsilon / 2``
it is ``2 epsilon width log(cosh(p - y) / (2 width))``. The other losses are what they
are.

The slope of the smooth loss is one that the loss has somewhere, so it bounds what the
difference costs (Fenchel's inequality): the sum over rows of ``loss(p) + loss*(slope) -
slope p``, with the conjugate ``loss*``, is 0 but near the kinks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from dask_ma.kernels._gradients import loss_slopes
from dask_ma.kernels._losses import loss_values

_Curvature = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


def _squared_hinge(y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
    """2 where y p < 1, else 0."""
    return 2.0 * (y * p < 1)


def _modified_huber(y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
    """2 where |y p| < 1, else 0."""
    return 2.0 * (np.abs(y * p) < 1)


def _squared_error(y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
    """1."""
    return np.ones(p.shape)


def _squared_epsilon_insensitive(
    y: np.ndarray, p: np.ndarray, epsilon: float
) -> np.ndarray:
    """2 where |p - y| > epsilon, else 0."""
    return 2.0 * (np.abs(p - y) > epsilon)


_CURVATURES: Mapping[str, _Curvature] = MappingProxyType(
    {
        "squared_hinge": _squared_hinge,
        "modified_huber": _modified_huber,
        "squared_error": _squared_error,
        "squared_epsilon_insensitive": _squared_epsilon_insensitive,
    }
)

#: Losses that a width makes smooth, or smoother.
ROUNDED_LOSSES = frozenset({"hinge", "epsilon_insensitive", "huber"})
#: Losses with a smooth version; the optimum of "perceptron" is zero.
SMOOTHED_LOSSES = ROUNDED_LOSSES | {"log_loss"} | frozenset(_CURVATURES)


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


def smooth_loss(
    name: str,
    y: np.ndarray,
    p: np.ndarray,
    epsilon: float,
    width: Any,
    caution: Any = 0.0,
) -> SmoothLoss:
    """Evaluate a loss and its smooth version.

    Parameters
    ----------
    name : str
        One of ``SMOOTHED_LOSSES``.
    y : ndarray of float64
        Targets, -1 or 1 for the margin losses.
    p : ndarray of float64
        Predictions, of the shape of `y`.
    epsilon : float
        Width of huber and of the epsilon-insensitive losses.
    width : float or ndarray
        Of the smooth version, above 0, in the units of the predictions. Broadcasts with
        `y`. Only losses of ``ROUNDED_LOSSES`` read it; up to ``epsilon / 2``, "huber"
        is itself.
    caution : float or ndarray, default=0.0
        Share, from 0 to 1, of the curvature of the parabola that touches the smooth
        version and is nowhere below it, instead of its own. Broadcasts with `y`. Only
        "log_loss", "hinge" and "epsilon_insensitive" read it.

    Returns
    -------
    SmoothLoss

    Raises
    ------
    ValueError
        If `name` is not a known loss.
    """
    if name not in SMOOTHED_LOSSES:
        raise ValueError(f"loss must be one of {sorted(SMOOTHED_LOSSES)}, got {name!r}")
    values = loss_values(name, y, p, epsilon)
    if name == "hinge":
        return _smooth_hinge(values, y, p, width, caution)
    if name == "epsilon_insensitive":
        return _smooth_epsilon_insensitive(values, p - y, epsilon, width, caution)
    slopes = loss_slopes(name, y, p, epsilon)
    if name == "huber":
        return _smooth_huber(values, slopes, p - y, epsilon, width)
    if name == "log_loss":
        curvatures = _softplus_curvature(p, special.expit(p), caution)
    else:
        curvatures = _CURVATURES[name](y, p, epsilon)
    return SmoothLoss(values, values, slopes, curvatures, np.zeros(values.shape))


def _softplus(u: np.ndarray) -> np.ndarray:
    """log(1 + exp(u)), without overflow."""
    return np.logaddexp(0.0, u)


def _softplus_curvature(u: np.ndarray, share: np.ndarray, caution: Any) -> np.ndarray:
    """Second derivative of log(1 + exp(u)), or of a parabola that is not below it.

    The parabola is that of T. Jaakkola and M. Jordan (2000): its second derivative is
    ``tanh(u / 2) / (2 u)``, which falls far more slowly.
    """
    half = np.maximum(0.5 * np.abs(u), np.finfo(np.float64).tiny)
    own, touching = share * (1 - share), 0.25 * np.tanh(half) / half
    return own + caution * (touching - own)


def _smooth_hinge(
    values: np.ndarray, y: np.ndarray, p: np.ndarray, width: Any, caution: Any
) -> SmoothLoss:
    u = 1 - y * p
    share = special.expit(u / width)
    return SmoothLoss(
        values,
        width * _softplus(u / width),
        -y * share,
        _softplus_curvature(u / width, share, caution) / width,
        np.maximum(values - share * u, 0.0),
    )


def _smooth_epsilon_insensitive(
    values: np.ndarray, r: np.ndarray, epsilon: float, width: Any, caution: Any
) -> SmoothLoss:
    above, below = (r - epsilon) / width, (-r - epsilon) / width
    up, down = special.expit(above), special.expit(below)
    slopes = up - down
    curvatures = _softplus_curvature(above, up, caution)
    curvatures += _softplus_curvature(below, down, caution)
    return SmoothLoss(
        values,
        width * (_softplus(above) + _softplus(below)),
        slopes,
        curvatures / width,
        np.maximum(values - slopes * r + epsilon * np.abs(slopes), 0.0),
    )


def _smooth_huber(
    values: np.ndarray, slopes: np.ndarray, r: np.ndarray, epsilon: float, width: Any
) -> SmoothLoss:
    is_itself = np.broadcast_to(width, r.shape) <= 0.5 * epsilon
    share = np.tanh(0.5 * r / width)
    log_cosh = width * (2 * _softplus(-np.abs(r) / width) - 2 * np.log(2))
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
