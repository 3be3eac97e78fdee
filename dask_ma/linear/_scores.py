"""Sums from which the score of a linear model follows."""

from __future__ import annotations

import numpy as np

from dask_ma.data import Shard
from dask_ma.kernels import chunked_predictions
from dask_ma.linear._params import LinearModel
from dask_ma.supervised import score_sums as sums_of_shard


def score_sums(shard: Shard, model: LinearModel, *, is_classifier: bool) -> np.ndarray:
    """Weighted sums from which the score over all ranks follows.

    Parameters
    ----------
    shard : Shard
        Rows, y encoded.
    model : LinearModel
        The model to score.
    is_classifier : bool
        Whether y holds class codes.

    Returns
    -------
    sums : ndarray of shape (4,)
        As :func:`dask_ma.supervised.score_sums` gives them.
    """
    return sums_of_shard(
        shard,
        lambda X: chunked_predictions(X, model.coef, model.intercept),
        is_classifier=is_classifier,
    )
