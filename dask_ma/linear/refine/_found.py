"""Objective and derivatives at a point, and bounds that follow from them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Found(NamedTuple):
    """One problem's objective at a point.

    Attributes
    ----------
    objective : float
        The objective itself.
    value : float
        The objective with the smooth loss.
    gap : float
        How far the objective is above its optimum at most where the other one is at
        its own.
    gradient : ndarray of shape (n_weights,)
        Of the smooth loss and L2.
    hessian : ndarray of shape (n_columns, n_columns) or None
        Their second derivatives by the weights `columns`.
    columns : ndarray of int, shape (n_columns,), or None
        Numbers of these weights, in rising order but for the intercept, which is last.
    """

    objective: float
    value: float
    gap: float
    gradient: np.ndarray
    hessian: np.ndarray | None
    columns: np.ndarray | None


def least_subgradient(
    point: np.ndarray, gradient: np.ndarray, l1: np.ndarray
) -> np.ndarray:
    """Subgradient of least norm, 0 at a minimum.

    Parameters
    ----------
    point : ndarray of shape (n_weights,)
        Where.
    gradient : ndarray of shape (n_weights,)
        Derivatives of all but the L1 norm.
    l1 : ndarray of shape (n_weights,)
        Weights of the L1 norm.

    Returns
    -------
    ndarray of shape (n_weights,)
    """
    at_zero = np.sign(gradient) * np.maximum(np.abs(gradient) - l1, 0.0)
    return np.where(point != 0, gradient + l1 * np.sign(point), at_zero)
