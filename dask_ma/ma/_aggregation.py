"""Ways to add up what the ranks have computed (Figures 1 and 3 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dask_ma.comm import Group, allreduce, broadcast, broadcast_direct, reduce

AGGREGATIONS = ("allreduce", "tree", "driver")


def aggregate(
    group: Group, arrays: Sequence[np.ndarray], aggregation: str
) -> list[np.ndarray]:
    """Sum the arrays of all ranks; everybody gets the sums.

    Parameters
    ----------
    group : Group
        This rank.
    arrays : sequence of ndarray
        Same shapes and dtypes on every rank.
    aggregation : {"allreduce", "tree", "driver"}
        "allreduce" cuts the arrays into parts, and each rank adds up one of them.
        "driver" has every rank send to rank 0, which stands for Spark's driver, adds up
        alone and answers each rank in turn. "tree" has intermediate ranks add up first,
        as Spark's treeAggregate does, and rank 0 broadcasts down a tree.

    Returns
    -------
    sums : list of ndarray
        New arrays, with the same bits whichever way is taken. Only those of
        "allreduce" are sure to be writeable.
    """
    arrays = list(arrays)
    if aggregation == "allreduce":
        return allreduce(group, arrays)
    if aggregation == "tree":
        sums = reduce(group, arrays, algorithm="tree")
        return list(broadcast(group, sums))
    sums = reduce(group, arrays, algorithm="direct")
    return list(broadcast_direct(group, sums))
