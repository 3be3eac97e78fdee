"""A linear model: parameters of its fit, weights, start, description."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dask_ma.kernels import Loss
from dask_ma.supervised._params import ValidationParams
from dask_ma.supervised._problem import Problem


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


def initial_model(problem: Problem, params: LinearParams) -> LinearModel:
    """The model to start from: the one given, or zeros.

    Parameters
    ----------
    problem : Problem
        What is to be trained.
    params : LinearParams
        Parameters of the fit.

    Returns
    -------
    model : LinearModel
        In the dtype of the problem.

    Raises
    ------
    ValueError
        If the model given has another shape.
    """
    shape = problem.n_problems, problem.shard.n_features
    coef, intercept = np.zeros(shape), np.zeros(shape[0])
    if params.coef is not None:
        coef = _shaped(params.coef, shape, "coef_init")
    if params.intercept is not None:
        intercept = _shaped(params.intercept, shape[:1], "intercept_init")
    return LinearModel(coef.astype(problem.dtype), intercept.astype(problem.dtype))


def describe(
    model: LinearModel, problem: Problem, t: float, n_iter: int
) -> dict[str, Any]:
    """The model after a round, with what else a fitted estimator has."""
    return {**model._asdict(), "classes": problem.classes, "t": t, "n_iter": n_iter}


def _shaped(array: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
    """`array` in the given shape; a one-row matrix may come as a vector."""
    array = np.asarray(array)
    if array.size != np.prod(shape) or array.shape[-1:] != shape[-1:]:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    return array.reshape(shape)
