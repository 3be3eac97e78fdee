"""Processors and devices that a rank trains on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from dask_ma.comm import allgather
from dask_ma.engine import RankContext, State
from dask_ma.mpca.training._params import MPCAParams
from dask_ma.supervised import restore_state


def restore_and_place(
    context: RankContext, params: MPCAParams
) -> tuple[State | None, MPCAParams]:
    """What the rank goes on from, and how, where it is; a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    params : MPCAParams
        Parameters of the fit.

    Returns
    -------
    kept : State or None
    params : MPCAParams
    """
    kept, params = restore_state(context, params)
    gather = partial(allgather, context.group)
    spec = params.spec.placed(gather, context.group.rank, context.n_threads)
    return kept, replace(params, spec=spec)
