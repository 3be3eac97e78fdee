"""Columns so far from zero that squares do not tell their variance from rounding.

Nanoseconds since 1970 are near 1.7e18. The mean of their squares less the square of
their mean is rounding where they are within minutes of each other, and rounding times
the value, hundreds of nanoseconds, is left of a column that is the same in all rows. In
coordinates made for a smaller scale either drowns all other columns. Squares of the
distances from the mean tell.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dask_ma.linear.refine._coordinates import CURVATURE, ROUNDING, known_variance

# Sums of values that are alike are rounded the same way in each row, and to so many at
# most, as a chunk has no more rows.
_MOST_ROWS = 2**16
# Of the mean of a column: a standard deviation below which its values times a weight
# that makes use of it are hardly more than their rounding.
_CONSTANT = 64 * np.finfo(np.float64).eps
_SAME = 1e-3 * np.finfo(np.float64).eps  # the same, of values that are all the same


def lost_columns(
    mean: np.ndarray, mean_square: np.ndarray, n_rows: int, l2: float
) -> np.ndarray:
    """Columns whose variance may be rounding, and more than the penalty weighs up.

    Parameters
    ----------
    mean, mean_square : ndarray of shape (n_features,)
        Weighted means of the columns and of their squares.
    n_rows : int
        Rows that they are means over.
    l2 : float
        Weight of the squared norm in the penalty.

    Returns
    -------
    columns : ndarray of int
    """
    rounding = max(ROUNDING, min(n_rows, _MOST_ROWS) * np.finfo(np.float64).eps)
    hidden = rounding * mean_square
    is_lost = mean_square - mean**2 <= hidden
    return np.flatnonzero(is_lost & (CURVATURE * hidden > (l2 or 1.0)))


class Regained(NamedTuple):
    """Moments of all columns, with those that were lost.

    Attributes
    ----------
    mean, variance : ndarray of shape (n_features,)
        The variance is not a number where a column is constant but for rounding.
    note : str or None
        What the user is to know of columns that are not quite constant.
    """

    mean: np.ndarray
    variance: np.ndarray
    note: str | None = None


def regained_moments(
    mean: np.ndarray, mean_square: np.ndarray, lost: np.ndarray, about: np.ndarray
) -> Regained:
    """Moments of all columns, from distances of those that were lost.

    Parameters
    ----------
    mean, mean_square : ndarray of shape (n_features,)
        Weighted means of the columns and of their squares.
    lost : ndarray of int, shape (n_lost,)
        What :func:`lost_columns` gives.
    about : ndarray of shape (2, n_lost)
        Weighted means of their distances from the mean, and of the squares of these.

    Returns
    -------
    regained : Regained
    """
    variance = known_variance(mean, mean_square)
    off, square = about
    mean = mean.copy()
    mean[lost] += off  # to the bit where all values are the same
    own = np.maximum(square - off**2, 0.0)
    is_flat = own <= (_CONSTANT * mean[lost]) ** 2
    varies = own > (_SAME * mean[lost]) ** 2
    variance[lost] = np.where(is_flat, np.nan, own)
    told = np.flatnonzero(is_flat & varies)
    note = None
    if len(told):
        first = told[0]
        note = (
            f"{len(told)} of the features get no weight, as products with their values "
            "are rounded by more than these differ: the first has a mean of "
            f"{mean[lost[first]]:.6g} and a standard deviation of "
            f"{np.sqrt(own[first]):.2g}; take their means from them before they are "
            "floats, or scale the features, for example with StandardScaler"
        )
    return Regained(mean, variance, note)
