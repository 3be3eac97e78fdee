"""Sums from which the score of a linear model follows."""

from __future__ import annotations

import numpy as np

from dask_ma.data import Shard
from dask_ma.kernels import chunked_predictions
from dask_ma.linear._params import LinearModel
from dask_ma.supervised import N_SCORE_SUMS


def score_sums(shard: Shard, model: LinearModel, *, is_classifier: bool) -> np.ndarray:
    """Weighted sums from which the score over all ranks follows.

    Returns
    -------
    sums : ndarray of shape (4,)
        Sum of the weights; of correct predictions or of squared errors; of y; of the
        squares of y.
    """
    sums = np.zeros(N_SCORE_SUMS)
    for block in shard.blocks:
        all_weights = block.weights()
        for rows, p in chunked_predictions(block.X, model.coef, model.intercept):
            y, weight = block.y[rows], all_weights[rows]
            if is_classifier:
                codes = p > 0 if p.ndim == 1 else p.argmax(axis=1)
                hit = codes == y
            else:
                hit = (p - y) ** 2
            sums += weight.sum(), weight @ hit, weight @ y, weight @ y**2
    return sums
