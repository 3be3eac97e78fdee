"""Parameters of a linear model's fit, and its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dask_ma.kernels import Loss
from dask_ma.supervised._params import ValidationParams


@dataclass(frozen=True, kw_only=True)
class LinearParams(ValidationParams):
    """Parameters that all fits of linear models by SGD share.

    The names are those of the estimators; the rest is listed here.

    Parameters
    ----------
    coef, intercept : ndarray or None
        Model to start from, of shapes (n_problems, n_features) and (n_problems,).
        None starts from zeros.
    t : float
        Number of the first step of each rank, for the learning rate.
    """

    loss: str | Loss
    penalty: str | None
    alpha: float
    l1_ratio: float
    fit_intercept: bool
    max_iter: int
    tol: float | None
    shuffle: bool | str
    epsilon: float
    n_iter_no_change: int
    coef: np.ndarray | None = field(default=None, repr=False)
    intercept: np.ndarray | None = field(default=None, repr=False)
    t: float = 1.0


@dataclass(frozen=True, kw_only=True)
class RefineParams(LinearParams):
    """Parameters of fits that can be refined to the optimum.

    The names are those of the estimators.
    """

    refine: str | None
    refine_max_iter: int
    refine_tol: float


class LinearModel(NamedTuple):
    """Weights of one or several linear functions.

    Attributes
    ----------
    coef : ndarray of shape (n_problems, n_features)
    intercept : ndarray of shape (n_problems,)
    """

    coef: np.ndarray
    intercept: np.ndarray
