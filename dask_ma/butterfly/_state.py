"""State of a rank between batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_ma.linear import LinearModel


class RankState(NamedTuple):
    """State of a rank after a step.

    Together with the seed of the fit and the rows of the rank it decides all that
    follows: the random numbers of a pass depend on seed, rank and pass alone.

    Attributes
    ----------
    weights : ndarray of shape (n_features + 1, n_problems), C-contiguous
        Coefficients and, in the last row, intercepts.
    t : int
        Number of the next step, from 1.
    eta : float
        Length of the steps, times ``sqrt(t)``; the same on all ranks.
    n_passes : int
        Passes completed.
    batch_size : int
        Rows of a batch on the rank that has most rows.
    preconditioner : ndarray of shape (n_features,) or None
        Diagonal of the preconditioner, the same on all ranks.
    mean : ndarray of the shape of `weights`, or None
        Mean of the weights after the steps averaged; None before the first one.
    n_averaged : int
        Steps that `mean` is the mean of.
    n_exchanges : int
        Number of the next exchange, from 0, the same on all ranks.
    merged : ndarray of the shape of `weights`, or None
        Mean of all ranks' weights where the steps of a pass have found it on the way;
        `weights` itself where all ranks have the same.
    base : ndarray of the shape of `weights`, or None
        The model that a pass begins with, on all ranks, from which `weights` differ in
        few rows; None where the model is a mean over steps. Nothing changes it.
    is_base : bool
        Whether `weights` are known to have the values of `base`.
    """

    weights: np.ndarray
    t: int
    eta: float
    n_passes: int = 0
    batch_size: int = 0
    preconditioner: np.ndarray | None = None
    mean: np.ndarray | None = None
    n_averaged: int = 0
    n_exchanges: int = 0
    merged: np.ndarray | None = None
    base: np.ndarray | None = None
    is_base: bool = False

    def at(self, model: LinearModel) -> RankState:
        """The state of a rank that goes on from a model, its mean begun anew."""
        base = stack(model)
        return self._replace(
            weights=base.copy(), mean=None, n_averaged=0, base=base, is_base=True
        )

    def after_steps(
        self, weights: np.ndarray, merged: np.ndarray | None, **changed: Any
    ) -> RankState:
        """The state after the steps of a pass, before its model is known."""
        return self._replace(
            weights=weights, merged=merged, base=None, is_base=False, **changed
        )


def stack(model: LinearModel) -> np.ndarray:
    """A model as the weights of a state, a new array."""
    return np.vstack([model.coef.T, model.intercept])


def unstack(weights: np.ndarray) -> LinearModel:
    """The model of some weights; it shares no memory with them."""
    return LinearModel(np.array(weights[:-1].T, order="C"), weights[-1].copy())
