"""Features of all ranks far from zero or of large scale, and what helps with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard
from dask_ma.kernels import column_squares, column_sums
from dask_ma.mpca.networks._network import Scaling

_FAR = 5.0  # standard deviations
_LARGE = 10.0  # a standard deviation


def agree_on_scaling(
    group: Group, shard: Shard, *, is_classifier: bool
) -> Scaling | None:
    """Center and scale of the features, if they need them; a collective call.

    The gradient of a network by the weights of a feature far from zero is nearly the
    same in each row, whatever the feature says, and large: steps move the hidden units
    as a whole, out of the range in which they tell rows apart. A feature of a large
    scale drowns the others, and a step that suits them throws the outputs about.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        Its rows; the weights of all ranks have a sum above 0.
    is_classifier : bool
        Whether outputs are scores of labels, near 1. In a regression large features are
        left as they are: outputs as large as its targets may be made of them.

    Returns
    -------
    scaling : Scaling or None
        None if no feature is more than five standard deviations from zero nor, of a
        classifier, has one above 10. Otherwise the center of a classifier is the
        weighted mean of each feature, and the scale its standard deviation, but 1 where
        that is less; of a regression the means of the far features, and 1. The same on
        every rank.
    """
    mean, variance, is_known = _moments(group, shard)
    with np.errstate(over="ignore", invalid="ignore"):
        # What a square is more than that of the mean may be rounding, below 0 even.
        is_far = is_known & (mean != 0) & (mean**2 > _FAR**2 * variance)
        is_large = is_known & (variance > _LARGE**2)
    ones = np.ones(len(mean))
    if not is_classifier:
        return Scaling(np.where(is_far, mean, 0.0), ones) if is_far.any() else None
    if not (is_far.any() or is_large.any()):
        return None
    scale = np.sqrt(np.maximum(1.0, variance, where=is_known, out=ones))
    return Scaling(np.where(is_known, mean, 0.0), scale)


def kept_scaling(shared: Mapping[str, Any]) -> Scaling | None:
    """The scaling in the state of a fit, if it has one.

    Parameters
    ----------
    shared : mapping
        What all ranks have kept.

    Returns
    -------
    scaling : Scaling or None
    """
    if "scale" not in shared:
        return None
    return Scaling(shared["center"], shared["scale"])


def _moments(group: Group, shard: Shard) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and variance of each feature over all ranks, and whether they are finite."""
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
        return mean, square - mean**2, np.isfinite(square)
