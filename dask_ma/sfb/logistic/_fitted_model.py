"""The linear model that a fit has found."""

from __future__ import annotations

import numpy as np

from dask_ma.linear import LinearModel
from dask_ma.sfb._engine import BroadcastEngine
from dask_ma.sfb.logistic._span import Span
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.model._matrix import ParameterMatrix


def linear_model(
    engine: BroadcastEngine,
    totals: Totals,
    span: Span | None,
    *,
    is_first: bool,
    everywhere: bool = False,
    by_parts: bool = False,
    is_last: bool = False,
) -> LinearModel:
    """The model as all linear estimators have it; a collective call.

    Parameters
    ----------
    engine : BroadcastEngine
        It has the matrix.
    totals : Totals
        With the centre of the rows.
    span : Span or None
        Of rows in whose coordinates the matrix is.
    is_first : bool
        Whether this is rank 0.
    everywhere : bool, default=False
        Whether all ranks want the whole model.
    by_parts : bool, default=False
        Whether all ranks want what they have of it.
    is_last : bool, default=False
        Whether the engine is not used any more, so that its matrix need not be copied.

    Returns
    -------
    model : LinearModel
        On ranks that have not asked for it, nothing to be looked at.
    """
    # Where outputs are shared out, only rank 0 has all, unless that is asked for.
    is_asked = everywhere or by_parts
    if engine.matrix.is_worked_out and span is None:
        return _worked_out(engine.matrix, totals, is_wanted=is_asked or is_first)
    if is_asked:
        found = engine.matrix if by_parts else engine.whole()
        values, intercept = found.whole(), found.intercept
    else:
        values, intercept = engine.collect()
    if intercept is None:
        intercept = np.zeros(values.shape[1], dtype=values.dtype)
    intercept = totals.from_centred(values, intercept)
    # Models of other ranks go nowhere, what was put together here is nobody else's.
    if span is not None and (is_asked or is_first):
        coef = span.coef_of(values)
        return LinearModel(coef, np.array(intercept, dtype=coef.dtype))
    # The engine may go on with its own; of parts the client makes the whole.
    if not is_last and (everywhere or (is_first and not engine.is_shared)):
        values = np.array(values)
    return LinearModel(values.T, np.array(intercept))


def _worked_out(
    matrix: ParameterMatrix, totals: Totals, *, is_wanted: bool
) -> LinearModel:
    """The model of a matrix with a dual operator, without any other copy of it."""
    # Where nobody looks at it, coefficients are the dual sums, which are there.
    intercept, values = matrix.intercept, matrix.values
    if is_wanted:
        values = matrix.copy_of_whole()
    if intercept is None:
        intercept = np.zeros(values.shape[1], dtype=values.dtype)
    intercept = totals.from_centred(values, intercept)
    return LinearModel(values.T, np.array(intercept))
