"""Features of all ranks that lie far from zero, and what is taken from them."""

from __future__ import annotations

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard
from dask_ma.kernels import column_squares, column_sums

_FAR = 5.0  # standard deviations


def agree_on_center(group: Group, shard: Shard) -> np.ndarray | None:
    """Means of the features that are far from zero; a collective call.

    The gradient of a network by the weights of such a feature is nearly the same in
    each row, whatever the feature says, and large: steps move the hidden units as a
    whole, out of the range in which they tell rows apart.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        Its rows; the weights of all ranks have a sum above 0.

    Returns
    -------
    center : ndarray of float64, shape (n_features,), or None
        Weighted mean of each feature that is more than five standard deviations, and
        0 of any other; None if there are no such features. The same on every rank.
    """
    n_features = shard.n_features
    sums = np.zeros(1 + 2 * n_features)
    with np.errstate(over="ignore", invalid="ignore"):
        for block in shard.read():
            weight = block.weights()
            sums[0] += weight.sum()
            sums[1 : 1 + n_features] += column_sums(block.X, weight)
            sums[1 + n_features :] += column_squares(block.X, weight)
        sums = allreduce(group, sums)
        mean, square = sums[1:].reshape(2, n_features) / sums[0]
        # What a square is more than that of the mean may be rounding, below 0 even.
        is_far = mean**2 > _FAR**2 * (square - mean**2)
    is_far &= np.isfinite(square) & (mean != 0)
    return np.where(is_far, mean, 0.0) if is_far.any() else None
