"""Levels: multiples of the penalty that a working set is solved for on its way down.

Where far more coefficients violate optimality than a working set takes in, those that
come first have to stand in for all others, and very many of them become other than
zero: the optimum needs few of these, but the Hessian of the next set has them all.
Under a penalty so much larger that the others would not violate it, few are needed. So
the first sets are solved for multiples of the penalty, each a small part of the one
before, as a regularisation path is gone down.
"""

from __future__ import annotations

import numpy as np

from dask_ma.schmp.l1._problem import Objective, Penalty

_FEWEST = 2**12  # coefficients, below which Hessians of all of them cost little
_STEP = 0.05  # of the level that a model is at: the lowest next one
# Of the objective, which a Newton step is to gain, or the last one of a level is made.
TARGET = 0.05


def next_level(
    objective: Objective, ratios: np.ndarray, reach: float, size: int
) -> float:
    """What to multiply the penalty by in the next round.

    Parameters
    ----------
    objective : Objective
        What is minimised.
    ratios : ndarray of float64
        Gradient over its bound, of the worst coefficients that the model lacks.
    reach : float
        The largest one of all coefficients.
    size : int
        How many may come into the next working set.

    Returns
    -------
    level : float
        At least 1, where nothing changes.
    """
    n_coefficients = objective.design.n_features * objective.n_outputs
    # A quadratic loss has one Hessian, which is kept.
    if objective.loss.is_quadratic or n_coefficients < _FEWEST or len(ratios) < size:
        return 1.0
    least = float(-np.partition(-ratios, size - 1)[size - 1])
    return max(1.0, min(least, _STEP * reach))


def raised(penalty: Penalty, level: float) -> Penalty:
    """A multiple of a penalty."""
    if level == 1:
        return penalty
    return penalty._replace(l1=level * penalty.l1, l2=level * penalty.l2)
