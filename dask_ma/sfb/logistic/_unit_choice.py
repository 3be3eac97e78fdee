"""Choice between uncorrelated features and second derivatives of all pairs."""

from __future__ import annotations

import numpy as np

from dask_ma.sfb.logistic._penalty import Penalty

# Features of dense rows that may be made uncorrelated, at most, and for each output:
# second moments are to take no more than some gradients.
_MOST_FEATURES, _FEATURES_PER_OUTPUT = 2048, 200
# Coefficients with second derivatives of all pairs, at most, where features may be made
# uncorrelated: the few products that steps then take are soon less.
_FEW_VARIABLES = 300
# By how many times spreads of features differ, for dual points to be mostly rounding:
# all second derivatives then bound the minimum.
_FAR = 1e9


def can_mix(shape: tuple[int, int], penalty: Penalty, is_sparse: bool) -> bool:
    """Whether features may be made uncorrelated.

    Parameters
    ----------
    shape : tuple of int
        Outputs and features.
    penalty : Penalty
    is_sparse : bool
        Whether rows are.

    Returns
    -------
    can_mix : bool
    """
    most = min(_MOST_FEATURES, _FEATURES_PER_OUTPUT * shape[0])
    return not penalty.l1 and not is_sparse and shape[1] <= most


def most_pairs(
    shape: tuple[int, int],
    penalty: Penalty,
    most: int,
    scales: np.ndarray,
    is_sparse: bool,
) -> int:
    """How many coefficients have second derivatives of all pairs at most.

    Parameters
    ----------
    shape, penalty, is_sparse
        As in :func:`can_mix`.
    most : int
        How many may have them in any case.
    scales : ndarray of shape (n_features,)
        Spreads of the features.

    Returns
    -------
    n_variables : int
    """
    is_far = scales.max() > _FAR * scales.min()
    mixes = penalty.l2 > 0 and not is_far and can_mix(shape, penalty, is_sparse)
    return min(_FEW_VARIABLES, most) if mixes else most
