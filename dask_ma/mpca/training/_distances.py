"""Distances of rows from their mean, and what a few rows far out make of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard
from dask_ma.kernels import column_sums, row_slice

_DROWNED = 1000.0  # times the mean square of other rows, that those far out make of it
_LOOKED_AT = 100.0  # the same while the mean is still that of all rows
_MOST = 0.01  # of the weights of all rows, that these may have
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
    size : float
        Square of the length of that mean.
    """

    square: float
    inner: float
    size: float


def distances_of(group: Group, shard: Shard, mean: np.ndarray) -> Distances:
    """Mean squared distances with and without few rows far out; a collective call.

    One value of 1 among thousands of rows of a millionth makes a distance in the unit
    of which all others are the same. Rows count as far out if they have no more than
    1 % of the weights, and the mean square of the others is a thousandth of that of
    all: of more rows, or nearer ones, a network may have to learn as well.

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
    limit = np.inf
    square = inner = np.nan
    for _ in range(_MOST_PASSES):
        counts, sums = allreduce(group, _counted(shard, mean))
        # Rows below each power of two: their weights, and their squares.
        weights, squares = np.cumsum(counts), np.cumsum(sums)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = squares / weights
        if limit == np.inf:
            square = inner = float(means[-1])
        is_inside = np.arange(_EXPONENTS) < min(limit, _EXPONENTS)
        inner = float(means[is_inside][-1]) if limit < np.inf else inner
        is_enough = weights >= (1 - _MOST) * weights[-1]
        is_less = is_enough & is_inside & (means * _LOOKED_AT <= inner) & (squares > 0)
        if not is_less.any():
            break
        # As few rows as possible are left out.
        limit = int(np.flatnonzero(is_less)[-1]) + 1
        mean = _mean_of_others(group, shard, mean, limit)
    inner = inner if inner * _DROWNED <= square else square
    return Distances(square, inner, float(mean @ mean))


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
    """Weights, and weighted squares, of this rank's rows by powers of two."""
    found = np.zeros((2, _EXPONENTS))
    for block in shard.read():
        squares, weight = _squares(block.X, mean), block.weights()
        places = _places(squares)
        found[0] += np.bincount(places, weight, _EXPONENTS)
        found[1] += np.bincount(places, weight * squares, _EXPONENTS)
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
