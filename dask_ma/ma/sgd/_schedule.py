"""Local epochs: how long a rank works alone between two merges."""

from __future__ import annotations

import math
from typing import NamedTuple

# What the choice rests on was measured with asv_bench/studies/local_epochs.py, on
# generated text, imdb and newsgroups20, from 2 to 16 ranks.
#
# Against merging all the time, passes of length `e` over `n` rows per rank need about
# 1 + (24,000 / n) sqrt(e) times as many passes for the same objective.
_DRIFT_ROWS = 24_000
# A pass over a rank's rows comes with one evaluation of the objective, which costs a
# tenth of it. A merge costs as much as SGD over 300,000 non-zeros, at 7 ns each, and
# the time of a link for 16 bytes of each weight but one part in `n_ranks`.
_EVALUATION = 0.1
_MERGE = 300_000
_SECONDS_PER_STORED = 7e-9
_BYTES_PER_WEIGHT = 16
# Longer rounds leave a bias: with the hinge loss that of 10 passes is plain to see.
# More than one is for ranks with so many rows that they lose less than a pass by it.
_CHOICES = (4.0, 2.0, 1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)


class Sizes(NamedTuple):
    """Sizes that decide how often to merge; the same on all ranks.

    Attributes
    ----------
    n_ranks : int
        Number of ranks.
    n_rows : int
        Rows of all ranks.
    n_stored : int
        Stored elements of X on all ranks: non-zeros, or all elements if dense.
    n_problems : int
        Linear functions to train.
    n_features : int
        Columns of X.
    link_bandwidth : float
        Bytes a second from one worker to another.
    """

    n_ranks: int
    n_rows: int
    n_stored: int
    n_problems: int
    n_features: int
    link_bandwidth: float


def local_epochs(setting: float | str, sizes: Sizes) -> float:
    """How often each rank goes over its rows before the models are merged.

    Parameters
    ----------
    setting : float or "auto"
        The estimator's parameter. "auto" takes the passes, from 1/16 to 4, for which
        passes needed times cost of a pass is least.
    sizes : Sizes
        Sizes of the problem. The clock plays no part, so a seed gives one result.

    Returns
    -------
    epochs : float
    """
    if setting != "auto":
        return float(setting)
    if sizes.n_ranks == 1:
        return 1.0
    choices = [e for e in _CHOICES if e <= 1 or _drift(sizes) * math.sqrt(e) <= 1]
    return min(choices, key=lambda epochs: relative_cost(epochs, sizes))


def relative_cost(epochs: float, sizes: Sizes) -> float:
    """Cost of reaching an objective with merges every `epochs` passes.

    In units of what the passes alone would cost if merging were free.
    """
    work = max(1.0, sizes.n_stored * sizes.n_problems / sizes.n_ranks)
    n_weights = sizes.n_problems * sizes.n_features
    n_bytes = _BYTES_PER_WEIGHT * n_weights * (1 - 1 / sizes.n_ranks)
    merge = _MERGE + n_bytes / sizes.link_bandwidth / _SECONDS_PER_STORED
    cost_of_pass = 1 + _EVALUATION + merge / work / epochs
    return (1 + _drift(sizes) * math.sqrt(epochs)) * cost_of_pass


def _drift(sizes: Sizes) -> float:
    """Part of a pass that ranks lose by working alone for as long."""
    return _DRIFT_ROWS * sizes.n_ranks / sizes.n_rows
