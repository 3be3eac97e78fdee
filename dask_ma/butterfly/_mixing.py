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


def start_mixing(
    group: Group, weights: np.ndarray, number: int, mixing: str
) -> Pending:
    """Mix the ranks' weights; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    weights : ndarray
        Weights of this rank. They must not change until they are mixed.
    number : int
        Number of the exchange, from 0, the same on all ranks.
    mixing : {"butterfly", "allreduce", "periodic", "none"}
        Average with a partner in each exchange; over all ranks in each; over all ranks
        in every ``ceil(log2(size))``-th; not at all.

    Returns
    -------
    finish : callable
        Waits for what the others have sent and returns the mixed weights. They may be
        written to, the array given only if it is the one returned.
    """
    if mixing == "butterfly":
        return ButterflyAverage(group, weights, number).finish
    if _is_due(number, group.size, mixing):
        return lambda: _mean_over_ranks(group, weights)
    return lambda: weights


def agree_after(number: int, size: int, mixing: str) -> bool:
    """Whether all ranks have the same weights after an exchange.

    Parameters
    ----------
    number : int
        Number of the exchange, from 0.
    size : int
        Number of ranks.
    mixing : {"butterfly", "allreduce", "periodic", "none"}
        As :func:`start_mixing` has it.

    Returns
    -------
    agree : bool
        The same to the last bit.
    """
    if mixing == "butterfly":
        return size <= 2
    return size == 1 or _is_due(number, size, mixing)


def _is_due(number: int, size: int, mixing: str) -> bool:
    """Whether the weights of all ranks are averaged in an exchange."""
    if size == 1 or mixing == "none":
        return False
    return mixing == "allreduce" or (number + 1) % butterfly_depth(size) == 0


def _mean_over_ranks(group: Group, weights: np.ndarray) -> np.ndarray:
    """Mean of the weights of all ranks, a new array with the same bits on each."""
    mean = butterfly_allreduce(group, weights)
    mean /= group.size
    return mean
