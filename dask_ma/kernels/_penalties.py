"""Penalties of a linear model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np


def _half_squared_norm(coef: np.ndarray) -> float:
    """||w||^2 / 2, summed in float64 without a float64 copy."""
    flat = np.ravel(coef)
    return 0.5 * float(np.einsum("i,i->", flat, flat, dtype=np.float64))


def _l1_norm(coef: np.ndarray) -> float:
    """||w||_1, summed in float64."""
    return float(np.abs(coef).sum(dtype=np.float64))


def _elasticnet(coef: np.ndarray, l1_ratio: float) -> float:
    """(1 - l1_ratio) ||w||^2 / 2 + l1_ratio ||w||_1."""
    return (1 - l1_ratio) * _half_squared_norm(coef) + l1_ratio * _l1_norm(coef)


PENALTIES: Mapping[str | None, Callable[[np.ndarray, float], float]] = MappingProxyType(
    {
        None: lambda coef, l1_ratio: 0.0,
        "l2": lambda coef, l1_ratio: _half_squared_norm(coef),
        "l1": lambda coef, l1_ratio: _l1_norm(coef),
        "elasticnet": _elasticnet,
    }
)


def penalty_value(
    penalty: str | None, coef: np.ndarray, l1_ratio: float = 0.15
) -> float:
    """Penalty of the coefficients, without the factor alpha.

    Parameters
    ----------
    penalty : {None, "l2", "l1", "elasticnet"}
        ``||w||^2 / 2``, ``||w||_1`` or their mixture; None is 0.
    coef : ndarray of any shape
        Coefficients without the intercept, which no penalty of this package touches.
        Several rows (one-vs-rest) give the sum over the rows.
    l1_ratio : float, default=0.15
        Share of the L1 norm; only "elasticnet" reads it.

    Returns
    -------
    float
        Summed in float64.

    Raises
    ------
    ValueError
        If `penalty` is not known.
    """
    if penalty not in PENALTIES:
        raise ValueError(
            f"penalty must be None, 'l2', 'l1' or 'elasticnet', got {penalty!r}"
        )
    return PENALTIES[penalty](coef, l1_ratio)
