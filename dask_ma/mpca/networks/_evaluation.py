"""Scores of a network on rows held out, and means over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dask_ma.comm import Group, allgather, allreduce
from dask_ma.data import Shard
from dask_ma.mpca.networks._network import Network
from dask_ma.supervised import Spread
from dask_ma.supervised import score_sums as sums_of_shard

_CHUNK_ROWS = 4096


def score_sums(
    network: Network,
    vector: np.ndarray,
    shard: Shard,
    *,
    is_classifier: bool,
    spread: Spread | None = None,
    no_code: int | None = None,
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
        Whether y holds class codes, or labels in several columns.
    spread : Spread or None, default=None
        Of the targets, where there are several and they are no labels.
    no_code : int or None, default=None
        Where y holds numbers of classes in several columns: what it holds in places
        that do not count.

    Returns
    -------
    sums : ndarray of shape (4,)
        As :func:`dask_ma.supervised.score_sums` gives them.
    """
    own = network.read(0, network.n_values)
    network.write(0, vector)
    try:
        return sums_of_shard(
            shard,
            lambda X: _outputs(network, X),
            is_classifier=is_classifier,
            spread=spread,
            no_code=no_code,
        )
    finally:
        network.write(0, own)


def _outputs(network: Network, X: Any) -> Iterator[tuple[slice, np.ndarray]]:
    """Outputs for some rows at a time."""
    for start in range(0, X.shape[0], _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        yield rows, network.outputs(X[rows])


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
