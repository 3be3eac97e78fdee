"""Activations and losses of a multi-layer perceptron, in place.

The arrays are of shape (n_rows, n_units), float32 or float64. None of the functions
overflows where its result is finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from scipy import special

from dask_ma.kernels.losses import LogLoss, Loss, MultinomialLogLoss, SquaredError


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


# The losses of networks that have a loss for each of several outputs, in the order of
# scikit-learn: those of labels are added up, of squares the mean is told.
_OUTPUT_LOSSES: Mapping[str, tuple[Loss, Callable[..., np.ndarray]]] = MappingProxyType(
    {
        "binary_log_loss": (LogLoss(), np.sum),
        "squared_error": (SquaredError(), np.mean),
    }
)


def output_losses(name: str, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Losses of the rows; their outputs become the slopes, in place."""
    if name == "log_loss":
        loss: Loss = MultinomialLogLoss(z.shape[1])
        losses, z[...] = loss.value_and_slope(loss.targets(y), z)
        return losses
    loss, combine = _OUTPUT_LOSSES[name]
    targets = loss.targets(y.reshape(z.shape), z.dtype)
    losses, z[...] = loss.value_and_slope(targets, z)
    return np.asarray(combine(losses, axis=1))
