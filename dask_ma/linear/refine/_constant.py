"""The objective of the best model of one value, which features have to improve on."""

from __future__ import annotations

import numpy as np

from dask_ma.kernels import make_loss
from dask_ma.linear._model import RefineParams
from dask_ma.supervised._problem import Problem

# Values of all rows lie between, as far as a loss tells: odds of 1e17 to 1.
_MOST = 40.0
_N_CUTS = 60  # each leaves two thirds of the range


def constant_objective(params: RefineParams, problem: Problem) -> float:
    """Mean over problems of what the best intercept costs where no feature counts.

    Parameters
    ----------
    params : RefineParams
        Parameters of the fit.
    problem : Problem
        With the shares of the classes.

    Returns
    -------
    objective : float
        Infinite where there are no classes or no intercepts, or the loss has no name.
    """
    # A loss of the user's own may have no value so far from zero.
    is_known = isinstance(params.loss, str) and params.fit_intercept
    if problem.shares is None or not is_known:
        return np.inf
    loss, own = make_loss(params.loss, params.epsilon), np.ones(problem.n_problems)
    shares = problem.shares[-problem.n_problems :]  # of two classes the second
    factors = own if problem.positive_weight is None else problem.positive_weight

    def cost(values: np.ndarray) -> np.ndarray:
        right, wrong = loss.value(own, values), loss.value(-own, values)
        total: np.ndarray = factors * shares * right + (1 - shares) * wrong
        return total

    low, high = -_MOST * own, _MOST * own
    for _ in range(_N_CUTS):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        is_first = cost(first) <= cost(second)
        low, high = np.where(is_first, low, first), np.where(is_first, second, high)
    return float(cost((low + high) / 2).mean())
