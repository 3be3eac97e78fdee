"""The cost of a factorization, and the ranks that pay, by times measured once."""

from __future__ import annotations

import numpy as np

from dask_ma.data import InputSize
from dask_ma.engine import worthwhile_ranks
from dask_ma.schmp.factorization._params import FactorizationParams

_EXCHANGES = 20  # collective operations of a round, and messages that take as long


def ranks_for_factors(
    params: FactorizationParams, size: InputSize, n_threads: int
) -> int:
    """As many ranks as gain more by sharing the ratings than rotations take.

    Parameters
    ----------
    params : FactorizationParams
        Parameters of the fit.
    size : InputSize
        How large the table of ratings is.
    n_threads : int
        Ranks that there may be; stochastic gradients have them all.

    Returns
    -------
    n_ranks : int
    """
    if params.method == "sgd":
        return n_threads
    n_rows = params.n_users + params.n_items
    nbytes = n_rows * params.n_columns * np.dtype(params.dtype).itemsize
    return worthwhile_ranks(
        size,
        n_threads,
        shared=params.max_iter * params.seconds_of_round(params.method),
        exchanges=params.max_iter * _EXCHANGES,
        nbytes=params.max_iter * nbytes,
    )
