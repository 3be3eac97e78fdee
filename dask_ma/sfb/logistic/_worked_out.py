"""The linear model that dual sums stand for."""

from __future__ import annotations

import numpy as np

from dask_ma.linear import LinearModel
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.model._matrix import ParameterMatrix


def worked_out(
    matrix: ParameterMatrix, totals: Totals, *, is_wanted: bool
) -> LinearModel:
    """The model of a matrix with a dual operator, beside which there is no other copy.

    Parameters
    ----------
    matrix : ParameterMatrix
    totals : Totals
        With the centre of the rows.
    is_wanted : bool
        Whether somebody looks at the model; else its coefficients are the dual sums,
        which are there.

    Returns
    -------
    model : LinearModel
    """
    intercept, values = matrix.intercept, matrix.values
    if is_wanted:
        values = matrix.copy_of_whole().T
    if intercept is None:
        intercept = np.zeros(values.shape[1], dtype=values.dtype)
    intercept = totals.from_centred(values, intercept)
    return LinearModel(values.T, np.array(intercept))
