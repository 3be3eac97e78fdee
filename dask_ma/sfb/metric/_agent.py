"""A metric learner as each rank fits it."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.data import build_shard
from dask_ma.engine import RankContext, fit_rounds
from dask_ma.sfb.metric._cost import row_bytes
from dask_ma.sfb.metric._fit import MetricFit
from dask_ma.sfb.metric._params import MetricParams
from dask_ma.sfb.metric._plan import LabelSource, PlannedPairs
from dask_ma.supervised import FitResult, agree_on_problem, restore_state


def train(context: RankContext, arguments: Any, params: MetricParams) -> FitResult:
    """Fit components to the rows of all ranks.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : MetricParams
        Parameters of the fit.

    Returns
    -------
    result : FitResult
        The same on every rank, but for the history, which rank 0 keeps.
    """
    keeps_parts = params.settings.exchange.content == "outputs"
    state, params = restore_state(context, params, whole=keeps_parts)
    classes, group = None, context.group
    source: LabelSource | PlannedPairs
    if params.tuples is not None:
        shard = build_shard(arguments, dtype=(np.float32,), require_labels=False)
        source = PlannedPairs(context, shard, params.tuples, params.held_out)
        if state is None:  # else rows may have been lost
            source.check_all(group)
    else:
        problem = agree_on_problem(group, arguments, params, dtypes=(np.float32,))
        shard, classes = problem.shard, problem.classes
        assert classes is not None
        _check_classes(group, shard, classes)
        nbytes = float(allreduce(context.group, np.array(row_bytes(shard))))
        is_grouped = params.is_grouped and nbytes <= params.most_moved
        source = LabelSource(context, shard, params.held_out, is_grouped=is_grouped)
    fit = MetricFit(context, shard, source, params, classes)
    ended = fit_rounds(context, fit, state)
    return FitResult(fit.finish(), ended.stop, context.history, context.timeline())


def _check_classes(group: Group, shard: Any, classes: np.ndarray) -> None:
    """Refuse labels of which no two are equal; a collective call."""
    counts = np.zeros(len(classes), dtype=np.int64)
    for block in shard.blocks:
        counts += np.bincount(block.y, minlength=len(classes))
    if allreduce(group, counts).max() < 2:
        raise ValueError(
            "no two rows of X have the same label, so none is similar to another; "
            "there is no distance to learn"
        )
