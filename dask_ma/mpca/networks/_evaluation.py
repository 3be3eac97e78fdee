"""Scores of a network on rows held out, and means over ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group, allgather, allreduce
from dask_ma.data import Shard
from dask_ma.mpca.networks._network import Network

_CHUNK_ROWS = 4096


class Spread(NamedTuple):
    """How far several targets vary over all rows that a score is made of.

    Attributes
    ----------
    weight : float
        Of all rows.
    variation : ndarray of shape (n_targets,)
        Weighted sum of the squared deviations of each target from its mean.
    """

    weight: float
    variation: np.ndarray

    def parts_of(self, outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Squared errors of rows as parts of the variation, the mean over targets.

        A target that does not vary at all counts as one that is predicted no better
        than by its mean.
        """
        varies = self.variation > 0
        scale = np.where(varies, self.variation, 1.0)
        parts = np.where(varies, (outputs - y) ** 2 / scale, 1 / self.weight)
        return parts.mean(axis=1)


def spread_of(group: Group, shard: Shard, n_targets: int) -> Spread:
    """How far the targets of all ranks vary; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        Rows to score the model on.
    n_targets : int
        Columns of y.

    Returns
    -------
    spread : Spread
    """
    sums = np.zeros((3, n_targets))
    for block in shard.blocks:
        weight = block.weights()
        sums[0] += weight.sum()
        sums[1] += weight @ block.y
        sums[2] += weight @ block.y**2
    total, first, second = allreduce(group, sums)
    variation = second - first**2 / total
    # What is left of a constant is rounding.
    variation[variation <= 1e-12 * second] = 0
    return Spread(float(total[0]), variation)


def score_sums(
    network: Network,
    vector: np.ndarray,
    shard: Shard,
    *,
    is_classifier: bool,
    spread: Spread | None = None,
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

    Returns
    -------
    sums : ndarray of shape (4,)
        Sum of the weights; of correct predictions or of squared errors; of y; of the
        squares of y. The errors of several targets are means of parts of their
        variation, and in place of y stands what makes the variation of all rows 1.
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
                outputs = network.outputs(block.X[rows])
                total = weight.sum()
                if spread is not None:
                    errors = spread.parts_of(outputs, y)
                    sums += total, weight @ errors, 0.0, total / spread.weight
                    continue
                hits = _hits(outputs, y, is_classifier)
                sums += total, weight @ hits, 0.0, 0.0
                if not is_classifier:
                    sums[2:] += weight @ y, weight @ y**2
        return sums
    finally:
        network.write(0, own)


def _hits(outputs: np.ndarray, y: np.ndarray, is_classifier: bool) -> np.ndarray:
    """Whether each row is right, or its squared error."""
    if not is_classifier:
        return (outputs - y) ** 2
    if y.ndim == 2:
        return ((outputs > 0) == y).all(axis=1)
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
