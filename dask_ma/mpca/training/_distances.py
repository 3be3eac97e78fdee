"""Distances of rows from their mean, and what a few rows far out make of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard
from dask_ma.kernels import column_sums, row_slice

_DROWNED = 1000.0  # times the mean square of other rows, that those far out make of it
_LOOKED_AT = 100.0  # the same, of where the mean of the other rows may be
_MOST = 0.01  # of the weights of all rows, that these may have
_SEVERAL = 0.1  # that one of them may have, and more of which the user is told
_SLACK = 1e-6  # of that part, for rounding
_MOST_PASSES = 8  # each leaves out what the one before has hidden
_CHUNK = 2**19  # elements at a time
_LEAST, _EXPONENTS = -1100, 2200  # powers of two, by which squares are counted


class Distances(NamedTuple):
    """Mean squared distance of the rows of all ranks from their mean.

    Attributes
    ----------
    square : float
        Of all rows.
    inner : float
        Of those that are not far out, from their own mean; `square` itself where no
        few rows make up most of it.
    rest : float
        The same where those that are far out may be more.
    size : float
        Square of the length of the last mean.
    """

    square: float
    inner: float
    rest: float
    size: float


def distances_of(group: Group, shard: Shard, mean: np.ndarray) -> Distances:
    """Mean squared distances with and without few rows far out; a collective call.

    One value of 1 among thousands of rows of a millionth makes a distance in the unit
    of which all others are the same. Rows count as far out if they have no more than
    1 % of the weights, or are one with no more than 10 %, and the mean square of the
    others is a thousandth of that of all: of more rows, or nearer ones, a network may
    have to learn as well.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        Its rows.
    mean : ndarray of shape (n_features,)
        That of the rows of all ranks; finite.

    Returns
    -------
    distances : Distances
        The same on all ranks.
    """
    limit = _EXPONENTS
    square = inner = rest = np.nan
    for number in range(_MOST_PASSES):
        # Of rows below each power of two.
        weights, squares, rows = np.cumsum(allreduce(group, _counted(shard, mean)), 1)
        rest = float(squares[limit - 1] / weights[limit - 1])
        outside = 1 - weights[limit - 1] / weights[-1]
        is_one = rows[-1] - rows[limit - 1] <= 1
        if number == 0:
            square = inner = rest
        elif outside <= _MOST * (1 + _SLACK) or is_one:
            inner = rest
        is_enough = weights >= (1 - _SEVERAL) * weights[-1]
        is_less = is_enough[:limit] & _may_be_drowned(weights[:limit], squares[:limit])
        if not is_less.any():
            break
        # As few rows as possible are left out.
        limit = int(np.flatnonzero(is_less)[-1]) + 1
        mean = _mean_of_others(group, shard, mean, limit)
    inner, rest = (
        each if each * _DROWNED <= square else square for each in (inner, rest)
    )
    return Distances(square, inner, rest, float(mean @ mean))


def _may_be_drowned(weights: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Whether rows up to each place may be near each other, beside those after it."""
    with np.errstate(invalid="ignore", divide="ignore"):
        means = squares / weights
        # Rows in one place draw the mean of all by their part of their distance to it.
        drawn = (weights[-1] - weights) * (squares[-1] - squares) / weights**2
        return ((means - drawn) * _LOOKED_AT <= means[-1]) & (squares > 0)


def far_rows_note(unit: float, of_most: float) -> str:
    """What to tell the user of rows so far out that the others are all alike.

    Parameters
    ----------
    unit, of_most : float
        Distance of rows from their mean that the network takes for 1, and what it is
        without those rows.

    Returns
    -------
    note : str
    """
    return (
        f"a few rows of X are so far out that the network, whose unit is {unit:.3g}, "
        f"sees little of the others, which are {of_most:.3g} from their mean; leave "
        "the few out, clip their values, or use "
        "sklearn.preprocessing.QuantileTransformer"
    )


def _counted(shard: Shard, mean: np.ndarray) -> np.ndarray:
    """Weights, weighted squares and numbers of this rank's rows by powers of two."""
    found = np.zeros((3, _EXPONENTS))
    for block in shard.read():
        squares, weight = _squares(block.X, mean), block.weights()
        places = _places(squares)
        found[0] += np.bincount(places, weight, _EXPONENTS)
        found[1] += np.bincount(places, weight * squares, _EXPONENTS)
        found[2] += np.bincount(places, weight > 0, _EXPONENTS)
    return found


def _mean_of_others(
    group: Group, shard: Shard, mean: np.ndarray, limit: int
) -> np.ndarray:
    """Mean of the rows that are not further out; a collective call."""
    sums = np.zeros(1 + len(mean))
    for block in shard.read():
        is_near = _places(_squares(block.X, mean)) < limit
        weight = np.where(is_near, block.weights(), 0.0)
        sums[0] += weight.sum()
        sums[1:] += column_sums(block.X, weight)
    sums = allreduce(group, sums)
    return np.asarray(sums[1:] / sums[0])


def _places(squares: np.ndarray) -> np.ndarray:
    """Number of the power of two above each square."""
    exponents = np.where(squares > 0, np.frexp(squares)[1], _LEAST)
    return np.clip(exponents - _LEAST, 0, _EXPONENTS - 1)


def _squares(X: Any, mean: np.ndarray) -> np.ndarray:
    """Squared distance of each row from a centre."""
    found, is_sparse = np.zeros(X.shape[0]), sparse.issparse(X)
    stored = X.nnz if is_sparse else X.size
    step = max(1, _CHUNK * X.shape[0] // max(1, stored))
    for start in range(0, X.shape[0], step):
        stop = min(start + step, X.shape[0])
        rows = row_slice(X, start, stop)
        if is_sparse:
            own = sparse.csr_array(rows, dtype=np.float64)
            squares = own.power(2).sum(axis=1) - 2 * (own @ mean) + mean @ mean
            found[start:stop] = np.maximum(squares, 0.0)
        else:
            found[start:stop] = np.square(rows - mean).sum(axis=1)
    return found
