"""The start of a fit: at what a fit before has kept, or at a model.

A model to begin with has to be better than none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.engine import State
from dask_ma.exceptions import CheckpointError
from dask_ma.kernels import log_loss_sum
from dask_ma.linear import LinearModel, initial_model
from dask_ma.sfb._start import Start
from dask_ma.sfb.logistic._dual_model import DualModel
from dask_ma.sfb.logistic._params import SFBParams
from dask_ma.sfb.logistic._softmax_model import LogisticModel
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.model._rows import row_batches
from dask_ma.supervised import Problem


def first_start(
    problem: Problem,
    params: SFBParams,
    totals: Totals,
    model: LogisticModel,
    group: Group,
) -> Start | None:
    """Where a fit begins of which nothing has been kept; a collective call.

    Parameters
    ----------
    problem : Problem
        What is to be trained.
    params : SFBParams
        Parameters of the fit.
    totals : Totals
        Sums over all ranks.
    model : LogisticModel
        What is asked for dual variables, if it has any.
    group : Group
        This rank.

    Returns
    -------
    start : Start or None
        None without a model to begin with.
    """
    first = model_to_begin_with(problem, params, group)
    if first is None:
        return None
    values, intercept = first.coef.T, None
    if params.fit_intercept:
        intercept = totals.to_centred(values, first.intercept)
    if isinstance(model, DualModel):
        values = model.start_from(values, intercept, None, is_kept=False)
    return Start(values, intercept, int(params.t) - 1, 0)


def start_again(
    state: State, kept: dict[str, Any], problem: Problem, model: LogisticModel
) -> Start:
    """Where a fit goes on that has been kept; a collective call.

    Parameters
    ----------
    state : State
    kept : dict
        Its arrays, as :func:`~dask_ma.sfb._start.arrays_of` finds them.
    problem, model
        As in :func:`first_start`.

    Returns
    -------
    start : Start

    Raises
    ------
    CheckpointError
        If it is of other data.
    """
    shared, own = state.shared, state.own
    values, intercept = kept["values"], kept["intercept"]
    n_outputs = kept.get("n_outputs")
    found = len(values), n_outputs or values.shape[1]
    shape = problem.shard.n_features, problem.n_problems
    if found != shape:
        raise CheckpointError(
            f"the model to go on from has a matrix of shape {found}, "
            f"expected {shape} for these data"
        )
    if isinstance(model, DualModel):
        dual = None if own is None else own["dual"]
        if dual is not None:
            model.check_kept(dual)
        values = model.start_from(values, intercept, dual, is_kept=True)
    place = shared["iteration"], shared["n_passes"], n_outputs
    return Start(values, intercept, *place, is_plain=bool(shared["is_refining"]))


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
