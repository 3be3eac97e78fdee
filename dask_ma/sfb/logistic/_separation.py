"""Separation of the classes, with which there is no minimum without a penalty."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.sfb.logistic._curvature import values_of
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._rows import row_batches
from dask_ma.supervised import Problem

# How far ahead of all others the linear function of a row's class has to be: as many
# times the coefficients it is as many times that, so any number proves separation that
# is more than rounding.
_CLEAR = 1.0


def separates(
    problem: Problem, totals: Totals, group: Group, matrix: ParameterMatrix
) -> bool:
    """Whether a model has each row in its class; a collective call.

    If so, its coefficients times a growing number have losses that vanish: without a
    penalty the objective falls towards 0 without end.

    Parameters
    ----------
    problem : Problem
        Rows and classes.
    totals : Totals
        With the centre of the rows.
    group : Group
        This rank.
    matrix : ParameterMatrix
        The model, the same on all ranks.

    Returns
    -------
    separates : bool
        The same on all ranks; never for classes that no linear model separates.
    """
    # Rows are taken as they are and in double precision: nothing is rounded up.
    values = matrix.whole().astype(np.float64)
    intercept = np.zeros(values.shape[1])
    if matrix.intercept is not None:
        intercept = totals.from_centred(values, matrix.intercept.astype(np.float64))
    n_wrong = 0
    for _, batch in row_batches(problem.shard, values.shape[1]):
        margins = values_of(batch.X.astype(np.float64), values) + intercept
        is_wrong = ~(_leads(margins, batch.y) >= _CLEAR)
        if batch.sample_weight is not None:
            is_wrong &= batch.sample_weight > 0
        n_wrong += int(np.count_nonzero(is_wrong))
        if n_wrong:
            break
    return not float(allreduce(group, np.array(float(n_wrong))))


def _leads(margins: np.ndarray, y: np.ndarray) -> Any:
    """How far the linear functions of the rows' own classes are ahead of all others."""
    if margins.shape[1] == 1:
        return np.where(y == 1, 1.0, -1.0) * margins[:, 0]
    rows = np.arange(len(y))
    own = margins[rows, y]
    margins[rows, y] = -np.inf
    return own - margins.max(axis=1)
