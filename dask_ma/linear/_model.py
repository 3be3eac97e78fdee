"""The model that a fit starts from, and how a fitted one is described."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.linear._params import LinearModel, LinearParams
from dask_ma.supervised._problem import Problem


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
