"""Columns over which Newton's method steps, where there are too many for all of them.

With L1 most weights end at 0. Those that are not 0, and those at 0 that the gradient
pulls away from there, are what a step has to know second derivatives of: the active set
of a proximal Newton method (C.-J. Hsieh, M. Sustik, I. Dhillon, P. Ravikumar, "Sparse
inverse covariance matrix estimation using quadratic approximation", 2011, section 3.2).
"""

from __future__ import annotations

import numpy as np


def count_active(point: np.ndarray, slopes: np.ndarray, n_features: int) -> int:
    """Number of active columns.

    Parameters
    ----------
    point : ndarray of shape (n_weights,)
        Weights of the columns, and perhaps that of the intercept.
    slopes : ndarray of shape (n_weights,)
        Subgradient of least norm there.
    n_features : int
        Number of columns.

    Returns
    -------
    n_active : int
    """
    is_active = (point[:n_features] != 0) | (slopes[:n_features] != 0)
    return int(np.count_nonzero(is_active))


def choose_active(
    point: np.ndarray, gradient: np.ndarray, l1: np.ndarray, n_features: int, size: int
) -> np.ndarray:
    """The columns that most want to take part.

    Parameters
    ----------
    point : ndarray of shape (n_weights,)
        Weights of the columns, and perhaps that of the intercept.
    gradient : ndarray of shape (n_weights,)
        Derivatives of all but the L1 norm.
    l1 : ndarray of shape (n_weights,)
        Weights of the L1 norm, above 0 for columns.
    n_features : int
        Number of columns.
    size : int
        How many to choose; at least as many as are not 0.

    Returns
    -------
    columns : ndarray of int, shape (size,)
        In rising order.
    """
    if size >= n_features:
        return np.arange(n_features)
    pull = np.abs(gradient[:n_features]) / l1[:n_features]
    pull[point[:n_features] != 0] = np.inf
    return np.sort(np.argpartition(-pull, size - 1)[:size])
