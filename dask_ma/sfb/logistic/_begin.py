"""The model that a fit begins with, if that is better than none."""

from __future__ import annotations

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.kernels import log_loss_sum
from dask_ma.linear import LinearModel, initial_model
from dask_ma.sfb.logistic._params import SFBParams
from dask_ma.sfb.model._rows import row_batches
from dask_ma.supervised import Problem


def model_to_begin_with(
    problem: Problem, params: SFBParams, group: Group
) -> LinearModel | None:
    """The model given, unless it is that of a fit before and worse than none.

    Where rows are wrong by far, as those of another scale than before are, losses have
    next to no second derivatives to step by. A collective call.

    Parameters
    ----------
    problem : Problem
        What is to be trained.
    params : SFBParams
        Parameters of the fit.
    group : Group
        This rank.

    Returns
    -------
    model : LinearModel or None
        None without one; the same on all ranks.
    """
    if params.coef is None and params.intercept is None:
        return None
    first = initial_model(problem, params)
    # Partial fits go on from any model: what they leave is for others to say.
    if params.is_warm and _is_worse_than_none(problem, first, group):
        return None
    return first


def _is_worse_than_none(problem: Problem, model: LinearModel, group: Group) -> bool:
    """Whether classes that are all as likely have less loss; a collective call."""
    losses = np.zeros(2)
    with np.errstate(over="ignore", invalid="ignore"):
        for _, batch in row_batches(problem.shard, problem.n_problems):
            margins = np.asarray(batch.X @ model.coef.T) + model.intercept
            for i, values in enumerate((margins, np.zeros_like(margins))):
                losses[i] += log_loss_sum(values, batch.y, batch.sample_weight)
        begun, none = allreduce(group, losses)
    return not begun <= none
