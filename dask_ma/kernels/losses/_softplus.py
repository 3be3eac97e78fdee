"""The soft version of max(0, u), from which smooth losses are made."""

from __future__ import annotations

from typing import Any

import numpy as np


def softplus(u: np.ndarray) -> np.ndarray:
    """log(1 + exp(u)), without overflow."""
    return np.logaddexp(0.0, u)


def softplus_curvature(u: np.ndarray, share: np.ndarray, caution: Any) -> np.ndarray:
    """Second derivative of log(1 + exp(u)), or of a parabola that is not below it.

    The parabola is that of T. Jaakkola and M. Jordan (2000): its second derivative is
    ``tanh(u / 2) / (2 u)``, which falls far more slowly.
    """
    half = np.maximum(0.5 * np.abs(u), np.finfo(np.float64).tiny)
    own, touching = share * (1 - share), 0.25 * np.tanh(half) / half
    return own + caution * (touching - own)
