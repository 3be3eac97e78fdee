"""Losses of a linear model, sample by sample.

Every loss takes targets ``y`` and predictions ``p`` that broadcast together, and
returns a new array. The margin losses expect ``y`` in {-1, +1}; the others take any
real target. The names and scales are those of scikit-learn's ``SGDClassifier`` and
``SGDRegressor``.

Each function works in place on its one or two temporaries. None of them branches over
masks: a branch that is not taken must not overflow either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

_Loss = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


def _margin_shortfall(y: np.ndarray, p: np.ndarray, threshold: float) -> np.ndarray:
    """max(0, threshold - y p)."""
    z = np.multiply(y, p)
    np.subtract(threshold, z, out=z)
    return np.maximum(z, 0, out=z)


def _residual(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """|p - y|."""
    r = np.subtract(p, y)
    return np.abs(r, out=r)


def _hinge(y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
    """max(0, 1 - y p)."""
    return _margin_shortfall(y, p, 1)


def _perceptron(y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
    """max(0, -y p)."""
    return _margin_shortfall(y, p, 0)


def _squared_hinge(y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
    """max(0, 1 - y p)^2."""
    z = _margin_shortfall(y, p, 1)
    return np.multiply(z, z, out=z)


def _modified_huber(y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
    """max(0, 1 - y p)^2 where y p >= -1, else -4 y p."""
    z = _margin_shortfall(y, p, 1)
    quadratic = np.minimum(z, 2)
    # with c = min(z, 2): c^2 + 4 (z - c) is z^2 up to 2 and 4 (z - 1) beyond
    z -= quadratic
    z *= 4
    quadratic *= quadratic
    z += quadratic
    return z


def _log_loss(y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
    """log(1 + exp(-y p)), written as max(0, -y p) + log1p(exp(-|y p|))."""
    z = np.multiply(y, p)
    loss = np.abs(z)
    np.negative(loss, out=loss)
    np.exp(loss, out=loss)
    np.log1p(loss, out=loss)
    loss -= np.minimum(z, 0, out=z)
    return loss


def _squared_error(y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
    """(p - y)^2 / 2."""
    r = np.subtract(p, y)
    np.multiply(r, r, out=r)
    r *= 0.5
    return r


def _huber(y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
    """r^2 / 2 where r = |p - y| <= epsilon, else epsilon r - epsilon^2 / 2."""
    r = _residual(y, p)
    clipped = np.minimum(r, epsilon)
    # with c = min(r, epsilon): c (r - c / 2) is both branches
    r -= 0.5 * clipped
    r *= clipped
    return r


def _epsilon_insensitive(y: np.ndarray, p: np.ndarray, epsilon: float) -> np.ndarray:
    """max(0, |p - y| - epsilon)."""
    r = _residual(y, p)
    r -= epsilon
    return np.maximum(r, 0, out=r)


def _squared_epsilon_insensitive(
    y: np.ndarray, p: np.ndarray, epsilon: float
) -> np.ndarray:
    """max(0, |p - y| - epsilon)^2."""
    r = _epsilon_insensitive(y, p, epsilon)
    return np.multiply(r, r, out=r)


LOSSES: Mapping[str, _Loss] = MappingProxyType(
    {
        "hinge": _hinge,
        "log_loss": _log_loss,
        "modified_huber": _modified_huber,
        "squared_hinge": _squared_hinge,
        "perceptron": _perceptron,
        "squared_error": _squared_error,
        "huber": _huber,
        "epsilon_insensitive": _epsilon_insensitive,
        "squared_epsilon_insensitive": _squared_epsilon_insensitive,
    }
)


def loss_values(
    name: str, y: np.ndarray, p: np.ndarray, epsilon: float = 0.1
) -> np.ndarray:
    """Loss of every sample.

    Parameters
    ----------
    name : str
        One of ``LOSSES``.
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
    try:
        loss = LOSSES[name]
    except KeyError:
        raise ValueError(
            f"loss must be one of {sorted(LOSSES)}, got {name!r}"
        ) from None
    with np.errstate(over="ignore", under="ignore"):
        return loss(np.asarray(y), np.asarray(p), epsilon)
