"""Losses: values, slopes, curvatures, conjugates, smooth versions.

The names and scales are those of scikit-learn's ``SGDClassifier`` and ``SGDRegressor``.
A new loss is a class of :class:`Loss`; an entry of ``LOSSES`` gives it a name, which
it can do without.

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

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from dask_ma.kernels.losses._base import Loss, SmoothLoss
from dask_ma.kernels.losses._margin import (
    Hinge,
    LogLoss,
    MarginLoss,
    ModifiedHuber,
    Perceptron,
    SquaredHinge,
)
from dask_ma.kernels.losses._residual import (
    EpsilonInsensitive,
    Huber,
    SquaredEpsilonInsensitive,
    SquaredError,
)
from dask_ma.kernels.losses._softmax import (
    MultinomialLogLoss,
    PartOfLogLoss,
    entropy_sum,
    log_loss_of,
    log_loss_sum,
    log_softmax,
    part_of_log_losses,
    residuals,
    softmax,
    softmax_slopes,
)

__all__ = [
    "EpsilonInsensitive",
    "Hinge",
    "Huber",
    "LOSSES",
    "LogLoss",
    "Loss",
    "MarginLoss",
    "ModifiedHuber",
    "MultinomialLogLoss",
    "PartOfLogLoss",
    "Perceptron",
    "ROUNDED_LOSSES",
    "SMOOTHED_LOSSES",
    "SmoothLoss",
    "SquaredEpsilonInsensitive",
    "SquaredError",
    "SquaredHinge",
    "entropy_sum",
    "log_loss_of",
    "log_loss_sum",
    "log_softmax",
    "loss_slopes",
    "loss_values",
    "make_loss",
    "part_of_log_losses",
    "residuals",
    "smooth_loss",
    "softmax",
    "softmax_slopes",
]

LOSSES: Mapping[str, type[Loss]] = MappingProxyType(
    {
        "hinge": Hinge,
        "log_loss": LogLoss,
        "modified_huber": ModifiedHuber,
        "squared_hinge": SquaredHinge,
        "perceptron": Perceptron,
        "squared_error": SquaredError,
        "huber": Huber,
        "epsilon_insensitive": EpsilonInsensitive,
        "squared_epsilon_insensitive": SquaredEpsilonInsensitive,
    }
)
#: Losses with a smooth version.
SMOOTHED_LOSSES = frozenset(name for name, loss in LOSSES.items() if loss.is_smoothed)
#: Losses that a width makes smooth, or smoother.
ROUNDED_LOSSES = frozenset(name for name, loss in LOSSES.items() if loss.is_rounded)


def make_loss(name: str | Loss, epsilon: float = 0.1) -> Loss:
    """The loss of a name.

    Parameters
    ----------
    name : str or Loss
        One of ``LOSSES``; a loss is returned as it is.
    epsilon : float, default=0.1
        Width of huber and of the epsilon-insensitive losses; no other loss reads it.

    Returns
    -------
    loss : Loss

    Raises
    ------
    ValueError
        If `name` is not a known loss.
    """
    if isinstance(name, Loss):
        return name
    try:
        kind = LOSSES[name]
    except KeyError:
        raise ValueError(
            f"loss must be one of {sorted(LOSSES)}, got {name!r}"
        ) from None
    arguments = {"epsilon": epsilon} if kind.has_epsilon else {}
    return kind(**arguments)


def loss_values(
    name: str | Loss, y: np.ndarray, p: np.ndarray, epsilon: float = 0.1
) -> np.ndarray:
    """Loss of every sample.

    Parameters
    ----------
    name : str or Loss
        One of ``LOSSES``, or another loss.
    y : ndarray of float32 or float64
        Targets, -1 or +1 for the margin losses (hinge, log_loss, modified_huber,
        squared_hinge, perceptron).
    p : ndarray of float32 or float64
        Predictions ``X @ w + b``; broadcasts with `y`.
    epsilon : float, default=0.1
        Width of huber and of the epsilon-insensitive losses; no other loss reads it.

    Returns
    -------
    ndarray of the broadcast shape
        float32 if both inputs are, else float64. A squared loss too large for the
        type is ``inf``, without a warning.

    Raises
    ------
    ValueError
        If `name` is not a known loss.
    """
    loss = make_loss(name, epsilon)
    with np.errstate(over="ignore", under="ignore"):
        return loss.value(np.asarray(y), np.asarray(p))


def loss_slopes(
    name: str | Loss, y: np.ndarray, p: np.ndarray, epsilon: float = 0.1
) -> np.ndarray:
    """Derivative of the loss of every sample by its prediction.

    Parameters
    ----------
    name : str or Loss
        One of ``LOSSES``, or another loss.
    y : ndarray of float32 or float64
        Targets, -1 or +1 for the margin losses.
    p : ndarray of float32 or float64
        Predictions ``X @ w + b``; broadcasts with `y`.
    epsilon : float, default=0.1
        Width of huber and of the epsilon-insensitive losses; no other loss reads it.

    Returns
    -------
    ndarray of the broadcast shape
        float32 if both inputs are, else float64. At a kink, -y for "hinge" and
        "perceptron" and 0 for "epsilon_insensitive".

    Raises
    ------
    ValueError
        If `name` is not a known loss.
    """
    loss = make_loss(name, epsilon)
    with np.errstate(over="ignore", under="ignore"):
        return loss.slope(np.asarray(y), np.asarray(p))


def smooth_loss(
    name: str | Loss,
    y: np.ndarray,
    p: np.ndarray,
    epsilon: float,
    width: Any,
    caution: Any = 0.0,
) -> SmoothLoss:
    """Evaluate a loss and its smooth version.

    Parameters
    ----------
    name : str or Loss
        One of ``SMOOTHED_LOSSES``, or another loss.
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
    caution : float, ndarray or None, default=0.0
        Share, from 0 to 1, of the curvature of the parabola that touches the smooth
        version and is nowhere below it, instead of its own. Broadcasts with `y`. Only
        "log_loss", "hinge" and "epsilon_insensitive" read it. None says that no
        curvatures are wanted; what they are then means nothing.

    Returns
    -------
    SmoothLoss

    Raises
    ------
    ValueError
        If `name` is not a known loss.
    """
    if isinstance(name, str) and name not in SMOOTHED_LOSSES:
        raise ValueError(f"loss must be one of {sorted(SMOOTHED_LOSSES)}, got {name!r}")
    with np.errstate(over="ignore", under="ignore"):
        return make_loss(name, epsilon).smooth(y, p, width, caution)
