"""Moments of features without the few values that would drown all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard
from dask_ma.kernels import row_slice

_REACH = 4.0  # standard deviations, beyond which a value may be an outlier
_DROWNED = 100.0  # times the variance of the other rows, that outliers make of it
_MOST = 0.05  # of the weights of all rows, that outliers may have
_MOST_PASSES = 8  # each leaves out what the one before has hidden
_CHUNK = 2**19  # elements at a time


def without_outliers(
    group: Group, shard: Shard, mean: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of columns without their outliers; a collective call.

    One value of a million among some hundred near 1 makes a standard deviation of
    75,000, and in that unit all others are the same. Outliers are the values further
    than four standard deviations from the mean, if the variance of the others is a
    hundredth, but not zero, and if all rows with one, in any column, have no more than
    5 % of the weights: what most rows have somewhere tells them from each other.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        Its rows.
    mean, variance : ndarray of shape (n_features,)
        Moments of all rows; columns whose variance is not above 0 are passed over.

    Returns
    -------
    mean, variance : ndarray of shape (n_features,)
        The same on all ranks, if those given are.
    """
    columns = np.flatnonzero(variance > 0)
    if not len(columns):
        return mean, variance
    ends = _ends(shard, columns)
    ends = allreduce(group, ends, "max")
    reach = np.maximum(ends[0] - mean[columns], mean[columns] + ends[1])
    columns = columns[reach > _REACH * np.sqrt(variance[columns])]
    given = mean, variance
    mean, variance = mean.copy(), variance.copy()
    bounds = np.zeros((2, len(mean)))  # of what is left out, for each column
    for _ in range(_MOST_PASSES):
        if not len(columns):
            break
        centre, width = mean[columns], _REACH * np.sqrt(variance[columns])
        sums = np.zeros((4, len(columns)))
        for block in shard.read():
            sums += _inner_sums(block.X, block.weights(), columns, centre, width)
        total, inner, first, second = allreduce(group, sums)
        with np.errstate(invalid="ignore", divide="ignore"):
            shift = first / inner
            rest = second / inner - shift**2
        is_alike = rest > np.finfo(np.float64).eps * variance[columns]
        is_drowned = is_alike & (rest * _DROWNED <= variance[columns])
        is_drowned &= total - inner <= _MOST * total
        columns = columns[is_drowned]
        bounds[:, columns] = centre[is_drowned], width[is_drowned]
        mean[columns] += shift[is_drowned]
        variance[columns] = rest[is_drowned]
    if _are_few(group, shard, bounds):
        return mean, variance
    return given


def _are_few(group: Group, shard: Shard, bounds: np.ndarray) -> bool:
    """Whether few rows have a value out of bounds; a collective call."""
    columns = np.flatnonzero(bounds[1])
    if not len(columns):
        return True
    centre, width = bounds[:, columns]
    sums = np.zeros(2)
    for block in shard.read():
        weight = block.weights()
        sums += (
            weight.sum(),
            weight[_have_outliers(block.X, columns, centre, width)].sum(),
        )
    total, without = allreduce(group, sums)
    return bool(without <= _MOST * total)


def _have_outliers(
    X: Any, columns: np.ndarray, centre: np.ndarray, width: np.ndarray
) -> np.ndarray:
    """Which rows have a value far from the centre of its column."""
    if not sparse.issparse(X):
        pieces = _pieces(X, np.empty(len(X)), columns)
        far = [(np.abs(rows - centre) > width).any(axis=1) for rows, _ in pieces]
        return np.concatenate([np.zeros(0, dtype=bool), *far])
    own = X[:, columns].tocoo()
    is_far = np.abs(own.data - centre[own.col]) > width[own.col]
    # Rows that store less have zeros there.
    zeros_far = np.abs(centre) > width
    stored = np.bincount(own.row, zeros_far[own.col], minlength=X.shape[0])
    found = stored < zeros_far.sum()
    found[own.row[is_far]] = True
    return np.asarray(found)


def outliers_note(columns: np.ndarray, variance: np.ndarray, inner: np.ndarray) -> str:
    """What to tell the user of columns that are scaled with their outliers.

    Parameters
    ----------
    columns : ndarray of int
        Their numbers, at least one.
    variance, inner : ndarray of shape (n_features,)
        With the outliers and without.

    Returns
    -------
    note : str
    """
    first, n_others = columns[0], len(columns) - 1
    others = "" if not n_others else f", and {n_others} more,"
    some, all_rows = np.sqrt([inner[first], variance[first]])
    return (
        f"column {first} of X{others} holds a few values so far from the rest (the "
        f"standard deviation is {all_rows:.3g} with them and {some:.3g} without) that "
        "the network sees little of the other ones; leave these rows out, clip the "
        "values, or use sklearn.preprocessing.QuantileTransformer"
    )


def _ends(shard: Shard, columns: np.ndarray) -> np.ndarray:
    """Largest values of columns, and of what is below 0 of them its size."""
    ends = np.full((2, len(columns)), -np.inf)
    for block in shard.read():
        for row, values in zip(ends, _ends_of(block.X), strict=True):
            np.maximum(row, values[columns], out=row)
    return ends


def _ends_of(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Largest values of all columns, and minus the smallest ones."""
    highest, lowest = X.max(axis=0), X.min(axis=0)
    if sparse.issparse(X):
        highest, lowest = (
            np.asarray(ends.todense()).ravel() for ends in (highest, lowest)
        )
    return highest.astype(np.float64), -lowest.astype(np.float64)


def _inner_sums(
    X: Any,
    weight: np.ndarray,
    columns: np.ndarray,
    centre: np.ndarray,
    width: np.ndarray,
) -> np.ndarray:
    """Weights of all rows, and of those near the centre; how far they are, squares."""
    sums = np.zeros((4, len(columns)))
    sums[0] = weight.sum()
    if not sparse.issparse(X):
        for rows, own in _pieces(X, weight, columns):
            far = rows - centre
            near = np.where(np.abs(far) <= width, own[:, np.newaxis], 0.0)
            parts = near, near * far, near * far**2
            sums[1:] += [part.sum(axis=0) for part in parts]
        return sums
    own = X[:, columns].tocoo()
    weights, column = weight[own.row], own.col
    far = own.data - centre[column]
    near = np.where(np.abs(far) <= width[column], weights, 0.0)
    size = len(columns)
    # What is not stored is zero, which may be far from the centre, too.
    zeros = sums[0] - np.bincount(column, weights, minlength=size)
    zeros[np.abs(centre) > width] = 0.0
    sums[1] = np.bincount(column, near, minlength=size) + zeros
    sums[2] = np.bincount(column, near * far, minlength=size) - zeros * centre
    sums[3] = np.bincount(column, near * far**2, minlength=size) + zeros * centre**2
    return sums


def _pieces(
    X: np.ndarray, weight: np.ndarray, columns: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Some rows at a time, of some columns, and their weights."""
    step = max(1, _CHUNK // len(columns))
    for start in range(0, len(X), step):
        rows = row_slice(X, start, min(start + step, len(X)))
        yield rows[:, columns].astype(np.float64), weight[start : start + step]
