"""Scores from sums over all ranks, and these sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard

#: What a model says of rows, some at a time: their places, and its outputs.
Predict = Callable[[Any], Iterator[tuple[slice, np.ndarray]]]


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
    for block in shard.read():
        weight = block.weights()
        sums[0] += weight.sum()
        y = np.asarray(block.y, dtype=np.float64)  # squares of bytes are none
        sums[1] += weight @ y
        sums[2] += weight @ y**2
    total, first, second = allreduce(group, sums)
    variation = second - first**2 / total
    # What is left of a constant is rounding.
    variation[variation <= 1e-12 * second] = 0
    return Spread(float(total[0]), variation)


def score_sums(
    shard: Shard,
    predict: Predict,
    *,
    is_classifier: bool,
    spread: Spread | None = None,
    no_code: int | None = None,
) -> np.ndarray:
    """Weighted sums from which the score over all ranks follows.

    Parameters
    ----------
    shard : Shard
        Rows to score the model on, y encoded.
    predict : callable
        ``predict(X)`` yields outputs for some rows of a block at a time, float of shape
        (n_rows,) or (n_rows, n_outputs); of a classifier, those of one output are
        positive for the second class.
    is_classifier : bool
        Whether y holds class codes, or labels in several columns.
    spread : Spread or None, default=None
        Of the targets, where there are several and they are no labels.
    no_code : int or None, default=None
        Where columns of y hold numbers of classes, and outputs do: what they hold in
        places that do not count. Each of the other places counts then, not rows.

    Returns
    -------
    sums : ndarray of shape (4,)
        Sum of the weights; of correct predictions or of squared errors; of y; of the
        squares of y; the last two are 0 for a classifier. The errors of several targets
        are means of parts of their variation, and in place of y stands what makes the
        variation of all rows 1.
    """
    sums = np.zeros(4)
    for block in shard.read():
        weights = block.weights()
        for rows, outputs in predict(block.X):
            y, weight = block.y[rows], weights[rows]
            if not is_classifier:
                y = np.asarray(y, dtype=np.float64)
            total = weight.sum()
            if no_code is not None:
                right = (weight @ ((outputs == y) & (y != no_code))).sum()
                sums += (weight @ (y != no_code)).sum(), right, 0.0, 0.0
            elif is_classifier:
                sums += total, weight @ _hits(outputs, y), 0.0, 0.0
            elif spread is None:
                squares = (outputs - y) ** 2
                sums += total, weight @ squares, weight @ y, weight @ y**2
            else:
                parts = spread.parts_of(outputs, y)
                sums += total, weight @ parts, 0.0, total / spread.weight
    return sums


def _hits(outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether each row is right."""
    if y.ndim == 2:
        return ((outputs > 0) == y).all(axis=1)
    codes = outputs > 0 if outputs.ndim == 1 else outputs.argmax(axis=1)
    return codes == y


def score(sums: np.ndarray, *, is_classifier: bool) -> float:
    """Accuracy, or coefficient of determination, from the sums over all ranks."""
    weight, value, first, second = sums
    if is_classifier:
        return float(value / weight)
    variation = second - first**2 / weight
    return float(1 - value / variation) if variation > 0 else 0.0
