"""Steps that a rank makes by itself, from one exchange to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from dask_ma.kernels import square_sum
from dask_ma.sfb.model._factors import Factors, stack
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import Batch, FactorModel, view_of


class StepsApart:
    """Steps on a copy of the matrix, which all ranks then make together.

    Fewer messages are sent than with an exchange after each batch, and a rank sees at
    once what its own rows have changed. What ranks do at the same time is made safe by
    the common length of their steps.

    Parameters
    ----------
    model : FactorModel
        With more than a batch, one with a common length of steps.
    n_batches : int
        Batches from one exchange to the next.
    """

    def __init__(self, model: FactorModel, n_batches: int) -> None:
        self._model = model
        self._n_batches = n_batches
        self._copy: ParameterMatrix | None = None

    def factors(
        self,
        matrix: ParameterMatrix,
        batches: Iterator[Batch],
        scale: float,
        find: Callable[[ParameterMatrix, Batch], Factors],
    ) -> Factors:
        """Factors of the next batches, each found after the steps of those before.

        Parameters
        ----------
        matrix : ParameterMatrix
            What all ranks have; not changed.
        batches : iterator of Batch
            Those of a pass that are left, at least one.
        scale : float
            What products of factors are multiplied by.
        find : callable
            ``find(matrix, batch)`` gives the factors of a batch. It is not kept: who
            owns this would be kept by it.

        Returns
        -------
        factors : Factors
            Of all their rows. The model's common step knows of what they bring.
        """
        if self._n_batches == 1:
            return find(matrix, next(batches))
        local, common = self._copy_of(matrix), self._model.common_step
        assert common is not None
        is_view = view_of(self._model) is not None
        parts: list[Factors] = []
        change = 0.0
        for batch in islice(batches, self._n_batches):
            before = common.products
            factors = find(local, batch)
            local.subtract(factors, scale, self._model.intercept_scale)
            if is_view and parts:  # else it follows from the squares
                products = np.vdot(factors.u, matrix.product(factors.v))
                change += float(products) - (common.products - before)
            parts.append(factors)
        found = stack(parts)
        if is_view:
            common.gain += change
        elif len(parts) > 1:
            square = square_sum(matrix.values, local.values) / scale**2
            common.add_up(square, found.u.sum(axis=0))
        return found

    def _copy_of(self, matrix: ParameterMatrix) -> ParameterMatrix:
        """The matrix as it is, to be changed."""
        values, intercept = matrix.stored(), matrix.intercept
        if self._copy is None:
            view = view_of(self._model)
            self._copy = ParameterMatrix(values.T, intercept, matrix.prox, view)
        else:
            self._copy.replace(values, intercept)
        return self._copy
