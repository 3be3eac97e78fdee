"""The cost of a fit by working sets on some ranks, by times measured once."""

from __future__ import annotations

import math

from dask_ma.data import InputSize

# Of the processor, for a stored element of sparse rows and of dense ones, in all rounds
# of a fit: what ranks share out. Rank 0 solves its small problems in any case.
_SECONDS_PER_STORED = {True: 40e-9, False: 8e-9}
_ROUNDS, _COLLECTIVES = 7, 5  # of a fit with default parameters, and of a round
_SECONDS_OF_COLLECTIVE = 1.5e-3  # for each doubling of the ranks


def seconds_shared(size: InputSize, n_ranks: int, link_bandwidth: float) -> float:
    """Seconds of a fit, without those that do not depend on the number of ranks.

    Parameters
    ----------
    size : InputSize
        How large X is.
    n_ranks : int
        Number of ranks.
    link_bandwidth : float
        Bytes a second between two of them.
    """
    is_sparse = size.n_stored < size.n_rows * size.n_features
    work = size.n_stored * _SECONDS_PER_STORED[is_sparse] / n_ranks
    messages = _ROUNDS * _COLLECTIVES * _SECONDS_OF_COLLECTIVE * math.log2(n_ranks)
    gradients = _ROUNDS * 8 * size.n_features * (n_ranks - 1) / n_ranks
    return work + messages + (gradients + size.moved(n_ranks)) / link_bandwidth
