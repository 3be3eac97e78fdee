"""Work on all weights that ranks of a process share, where theirs are the same."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dask_ma.butterfly._decay import Decay
from dask_ma.comm import Group

# With fewer weights a message takes longer than to shrink them.
_LEAST_SHARED = 1 << 16
_TAG = "shrunk weights"


def shrink_together(group: Group, weights: np.ndarray, decay: Decay) -> None:
    """Shrink weights that are the same on all ranks; a collective call.

    Ranks of one process take parts of them. Each weight has the bits that
    :meth:`Decay.shrink` gives it.

    Parameters
    ----------
    group : Group
        This rank.
    weights : ndarray of shape (n_features + 1, n_problems)
        Changed in place.
    decay : Decay
        The same on all ranks.
    """
    ranks = group.local_ranks
    if len(ranks) == 1 or len(weights) < _LEAST_SHARED:
        decay.shrink(weights)
        return
    ends = [(len(weights) - 1) * part // len(ranks) for part in range(len(ranks) + 1)]
    parts = {
        rank: slice(*of_rank)
        for rank, of_rank in zip(ranks, pairwise(ends), strict=True)
    }
    own = parts.pop(group.rank)
    decay.shrink(weights, own.start, own.stop)
    # The next steps change the weights, maybe before all others have read them.
    made = weights[own].copy()
    for rank in parts:
        group.push(made, rank, _TAG, copy=False)
    for rank, part in parts.items():
        weights[part] = group.recv(rank, _TAG)
