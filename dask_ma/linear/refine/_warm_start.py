"""Warm starts by what they are worth: models of about these rows, or of others."""

from __future__ import annotations

import math

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.linear._model import (
    LinearModel,
    RefineParams,
    initial_model,
    loss_sums_of,
    penalty_of,
)
from dask_ma.linear.refine._constant import constant_objective
from dask_ma.supervised._problem import Problem

#: Part of the objective of the best model of one value. Fits of half of the rows, or
#: with ten times the penalty, have far less, and models of other rows mostly more.
NEAR = 0.9


@np.errstate(over="ignore", invalid="ignore")
def start_ratio(group: Group, problem: Problem, params: RefineParams) -> float:
    """How much of the best value for all rows the model of a warm start leaves.

    Below :data:`NEAR` steps of SGD, whose first ones are long, would only lead away
    from the model. From 1 on it says less of the rows than no model does. A collective
    call.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        What is to be trained.
    params : RefineParams
        Parameters of the fit, with the model.

    Returns
    -------
    ratio : float
        Of two objectives, the same on all ranks; infinite where that of the model is
        not finite, NEAR where there is no warm start or nothing to compare with.
    """
    if not params.is_warm or params.coef is None:
        return NEAR
    level = _level(group, problem, params)
    start = initial_model(problem, params)
    # An intercept that is not fitted is that of the rows, whatever the model.
    value = np.full_like(start.intercept, level)
    value = value if params.fit_intercept else start.intercept
    none = LinearModel(np.zeros_like(start.coef), value)
    own = [loss_sums_of(model, problem, params) for model in (start, none)]
    losses, losses_of_none = allreduce(group, own)
    mean = losses.mean() / problem.total_weight
    mean += params.alpha * penalty_of(start, params) / len(losses)
    best = losses_of_none.mean() / problem.total_weight
    best = min(best, constant_objective(params, problem))
    if not np.isfinite(mean):
        return math.inf
    return float(mean / best) if best > 0 else NEAR


def _level(group: Group, problem: Problem, params: RefineParams) -> float:
    """The mean of targets that are values, if models may have it; a collective call."""
    if params.is_classifier or not params.fit_intercept:
        return 0.0
    own = math.fsum(float(block.weights() @ block.y) for block in problem.shard.read())
    (total,) = allreduce(group, [np.array([own])])
    return float(total[0] / problem.total_weight)
