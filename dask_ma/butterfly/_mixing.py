"""The four ways to mix the weights of the ranks (section 5.1 of the paper)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_ma.comm import (
    ButterflyAverage,
    Group,
    butterfly_allreduce,
    butterfly_depth,
)

#: Gives the mixed weights once they are there.
Pending = Callable[[], np.ndarray]


def start_mixing(group: Group, weights: np.ndarray, step: int, mixing: str) -> Pending:
    """Mix the ranks' weights after a step; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    weights : ndarray
        Weights of this rank. They must not change until they are mixed.
    step : int
        Number of the step, from 0, the same on all ranks.
    mixing : {"butterfly", "allreduce", "periodic", "none"}
        Average with a partner in each step; over all ranks in each step; over all ranks
        in every ``ceil(log2(size))``-th step; not at all.

    Returns
    -------
    finish : callable
        Waits for what the others have sent and returns the mixed weights. They may be
        written to, the array given only if it is the one returned.
    """
    if mixing == "butterfly":
        return ButterflyAverage(group, weights, step).finish
    if _is_due(step, group.size, mixing):
        return lambda: _mean_over_ranks(group, weights)
    return lambda: weights


def _is_due(step: int, size: int, mixing: str) -> bool:
    """Whether the weights of all ranks are averaged after a step."""
    if size == 1 or mixing == "none":
        return False
    return mixing == "allreduce" or (step + 1) % butterfly_depth(size) == 0


def _mean_over_ranks(group: Group, weights: np.ndarray) -> np.ndarray:
    """Mean of the weights of all ranks, a new array with the same bits on each."""
    mean = butterfly_allreduce(group, weights)
    mean /= group.size
    return mean
