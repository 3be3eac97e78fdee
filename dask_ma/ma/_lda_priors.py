"""Priors and first topics of a topic model, checked against its sizes."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_prior(value: Any, name: str, size: int, what: str) -> np.ndarray:
    """A prior as numbers above 0.

    Parameters
    ----------
    value : float or array-like
        What the user has given.
    name : str
        Name of the parameter, for messages.
    size : int
        Length that a vector must have.
    what : str
        What it has one element for.

    Returns
    -------
    prior : ndarray of float64, shape (1,) or (size,)

    Raises
    ------
    ValueError
        For another length, and for elements that are not finite and above 0.
    """
    prior = np.atleast_1d(_numbers(value, name)).astype(np.float64)  # not the user's
    if prior.ndim != 1 or (np.ndim(value) and len(prior) != size):
        raise ValueError(
            f"{name} should be a number or have {size} elements, one per {what}; got "
            f"an array of shape {np.shape(value)}"
        )
    if not (np.isfinite(prior) & (prior > 0)).all():
        position = int(np.argmin(np.isfinite(prior) & (prior > 0)))
        raise ValueError(
            f"{name} should be finite and above 0, but element {position} is "
            f"{prior[position]}"
        )
    return prior


def check_components(value: Any, n_components: int, n_features: int) -> np.ndarray:
    """Parameters of first topics as numbers above 0.

    Parameters
    ----------
    value : array-like
        What the user has given as `components_init`.
    n_components, n_features : int
        Shape that it must have.

    Returns
    -------
    components : ndarray of shape (n_components, n_features)

    Raises
    ------
    ValueError
        For another shape, and for elements that are not finite and above 0.
    """
    components = _numbers(value, "components_init")
    if components.shape != (n_components, n_features):
        raise ValueError(
            f"components_init should have the shape {(n_components, n_features)}, one "
            f"row per topic and one column per feature; got {components.shape}"
        )
    right = np.isfinite(components) & (components > 0)
    if not right.all():
        row, column = np.argwhere(~right)[0]
        raise ValueError(
            "components_init should be finite and above 0, but row "
            f"{row} has {components[row, column]} in column {column}"
        )
    return components


def _numbers(value: Any, name: str) -> np.ndarray:
    """An array of float32 or float64."""
    array = np.asarray(value)
    if array.dtype in (np.float32, np.float64):
        return array
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} should hold numbers: {error}") from error
