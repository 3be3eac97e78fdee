"""Scores of a network on rows held out, and means over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import Group, allgather, allreduce
from dask_ma.data import Shard
from dask_ma.mpca._network import Network

_CHUNK_ROWS = 4096


def score_sums(
    network: Network, vector: np.ndarray, shard: Shard, *, is_classifier: bool
) -> np.ndarray:
    """Weighted sums from which the score over all ranks follows.

    Parameters
    ----------
    network : Network
        A network; it has its own values again afterwards.
    vector : ndarray of shape (n_values,)
        The values to score.
    shard : Shard
        Rows, y encoded.
    is_classifier : bool
        Whether y holds class codes.

    Returns
    -------
    sums : ndarray of shape (4,)
        Sum of the weights; of correct predictions or of squared errors; of y; of the
        squares of y.
    """
    own = network.read(0, network.n_values)
    network.write(0, vector)
    try:
        sums = np.zeros(4)
        for block in shard.blocks:
            weights = block.sample_weight
            for start in range(0, len(block.y), _CHUNK_ROWS):
                rows = slice(start, start + _CHUNK_ROWS)
                y = block.y[rows]
                weight = np.ones(len(y)) if weights is None else weights[rows]
                hits = _hits(network.outputs(block.X[rows]), y, is_classifier)
                sums += weight.sum(), weight @ hits, weight @ y, weight @ y**2
        return sums
    finally:
        network.write(0, own)


def _hits(outputs: np.ndarray, y: np.ndarray, is_classifier: bool) -> np.ndarray:
    """Whether each row is right, or its squared error."""
    if not is_classifier:
        return (outputs - y) ** 2
    codes = outputs > 0 if outputs.ndim == 1 else outputs.argmax(axis=1)
    return codes == y


def mean_state(group: Group, state: dict[str, Any], weight: float) -> dict[str, Any]:
    """Mean over ranks of what their optimisers remember; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    state : dict
        Arrays of floats, and numbers; arrays of one name have one shape everywhere.
    weight : float
        Weight of the rank; 0 for one that has made no step.

    Returns
    -------
    mean : dict
        Arrays as means; numbers are this rank's own.
    """
    if group.size == 1:
        return state
    reports = allgather(group, (weight, _shapes(state)))
    total = sum(report[0] for report in reports)
    # A rank that has made no step may have nothing to remember yet.
    shapes: dict[str, Any] = {}
    for of_rank, found in reports:
        if of_rank > 0:
            shapes.update(found)
    mean = dict(state)
    for name in sorted(shapes):
        shape, dtype = shapes[name]
        part = np.zeros(shape, dtype)
        if weight > 0 and name in state:
            part += state[name] * part.dtype.type(weight / total)
        mean[name] = allreduce(group, part)
    return mean


def _shapes(state: dict[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and types of the arrays."""
    return {
        name: (value.shape, value.dtype.str)
        for name, value in state.items()
        if isinstance(value, np.ndarray)
    }
