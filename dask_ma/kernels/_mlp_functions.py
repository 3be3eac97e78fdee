"""Activations and losses of a multi-layer perceptron, in place.

The arrays are of shape (n_rows, n_units), float32 or float64. None of the functions
overflows where its result is finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from scipy import special


def _identity(z: np.ndarray) -> None:
    """Nothing to do."""


def _logistic(z: np.ndarray) -> None:
    special.expit(z, out=z)


def _tanh(z: np.ndarray) -> None:
    np.tanh(z, out=z)


def _relu(z: np.ndarray) -> None:
    np.maximum(z, 0, out=z)


ACTIVATIONS: Mapping[str, Callable[[np.ndarray], None]] = MappingProxyType(
    {"identity": _identity, "logistic": _logistic, "tanh": _tanh, "relu": _relu}
)


# A derivative multiplies slopes; the values `a` of the units end as a temporary.
def _identity_derivative(a: np.ndarray, slopes: np.ndarray) -> None:
    """1."""


def _logistic_derivative(a: np.ndarray, slopes: np.ndarray) -> None:
    """a (1 - a)."""
    slopes *= a
    np.subtract(1, a, out=a)
    slopes *= a


def _tanh_derivative(a: np.ndarray, slopes: np.ndarray) -> None:
    """1 - a^2."""
    a *= a
    np.subtract(1, a, out=a)
    slopes *= a


def _relu_derivative(a: np.ndarray, slopes: np.ndarray) -> None:
    """1 where a > 0, else 0."""
    np.greater(a, 0, out=a, casting="unsafe")
    slopes *= a


DERIVATIVES: Mapping[str, Callable[[np.ndarray, np.ndarray], None]] = MappingProxyType(
    {
        "identity": _identity_derivative,
        "logistic": _logistic_derivative,
        "tanh": _tanh_derivative,
        "relu": _relu_derivative,
    }
)


# A loss turns outputs into its slopes, in place, and returns the losses of the rows.
def _log_loss(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """log(sum_k exp(z_k)) - z_y; softmax(z) - e_y."""
    rows = np.arange(len(y))
    z -= z.max(axis=1, keepdims=True)
    chosen = z[rows, y]
    np.exp(z, out=z)
    sums = z.sum(axis=1)
    z /= sums[:, np.newaxis]
    z[rows, y] -= 1
    return np.log(sums) - chosen


def _binary_log_loss(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """log(1 + exp(z)) - y z, summed over the outputs; expit(z) - y."""
    y = y.reshape(z.shape)
    losses = np.logaddexp(0, np.where(y == 1, -z, z)).sum(axis=1)
    special.expit(z, out=z)
    z -= y
    return losses


def _squared_error(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(z - y)^2 / 2, its mean over the outputs; z - y, that of its sum."""
    z -= y.reshape(z.shape)
    return np.square(z).mean(axis=1) / 2


OUTPUT_LOSSES: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]
OUTPUT_LOSSES = MappingProxyType(
    {
        "log_loss": _log_loss,
        "binary_log_loss": _binary_log_loss,
        "squared_error": _squared_error,
    }
)
