"""Learning a dictionary as each rank carries it out."""

from __future__ import annotations

from typing import Any

from dask_ma.engine import RankContext, fit_rounds
from dask_ma.sfb.dictionary._columns import ColumnsFit
from dask_ma.sfb.dictionary._fit import DictionaryFit
from dask_ma.sfb.dictionary._params import DictionaryParams, DictionaryResult
from dask_ma.sfb.dictionary._rows import agree_on_rows


def train(
    context: RankContext, arguments: Any, params: DictionaryParams
) -> DictionaryResult:
    """Learn a dictionary from the rows of all ranks.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : DictionaryParams
        Parameters of the fit.

    Returns
    -------
    result : DictionaryResult
        The same on every rank, but for the times in the history, the timeline, and
        atoms of which each rank has some columns: rank 0 has all.
    """
    are_columns = params.communication == "outputs"
    state = context.restore_state(whole=are_columns)
    rows = agree_on_rows(context, arguments)
    kind = ColumnsFit if are_columns else DictionaryFit
    fit = kind(context, rows, params)
    fit_rounds(context, fit, state)
    return DictionaryResult(
        fit.model(), context.history, context.timeline(), fit.notes()
    )
