"""The cost of a fit by working sets, by times measured once."""

from __future__ import annotations

from typing import NamedTuple

from dask_ma.data import InputSize

# Of the processor, for a stored element of sparse rows and of dense ones, in all rounds
# of a fit: what ranks share out. Rank 0 solves its small problems in any case.
_LASSO = {True: 40e-9, False: 8e-9}
# That of sparse rows lies between: texts took 40e-9 with alpha=1e-3, 2e-6 with 1e-4.
_LOGISTIC = {True: 160e-9, False: 110e-9}
_ROUNDS, _COLLECTIVES = 7, 5  # of a fit with default parameters, and of a round
_NEWTON = 2.5  # collectives of a round of a logistic regression for one of a Lasso
_WARM = 3e-9  # for a stored element, of a model that begins with the one before
_OF_WARM = 8  # collectives of that
_BYTES = 8  # of a gradient, for each column


class Cost(NamedTuple):
    """What a fit takes.

    Attributes
    ----------
    shared : float
        Seconds of one rank for what several share.
    exchanges : float
        Collective operations.
    nbytes : float
        Bytes of what these add up.
    """

    shared: float
    exchanges: float
    nbytes: float


def cost_of_lasso(size: InputSize) -> Cost:
    """The cost of a Lasso or an elastic net with default parameters.

    Parameters
    ----------
    size : InputSize
        How large X is.
    """
    shared = size.n_stored * _LASSO[size.is_sparse]
    return Cost(shared, _ROUNDS * _COLLECTIVES, _ROUNDS * _BYTES * size.n_features)


def cost_of_paths(size: InputSize, n_models: int) -> Cost:
    """The cost of a Lasso for one penalty after the other, with default parameters.

    Parameters
    ----------
    size : InputSize
        How large X is.
    n_models : int
        Penalties, of all folds.
    """
    shared = n_models * size.n_stored * _WARM
    return Cost(shared, n_models * _OF_WARM, n_models * _BYTES * size.n_features)


def cost_of_logistic(size: InputSize) -> Cost:
    """The cost of a logistic regression of two classes with default parameters.

    Parameters
    ----------
    size : InputSize
        How large X is.
    """
    shared = size.n_stored * _LOGISTIC[size.is_sparse]
    exchanges = _NEWTON * _ROUNDS * _COLLECTIVES
    return Cost(shared, exchanges, _ROUNDS * _BYTES * size.n_features)
