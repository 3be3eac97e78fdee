"""Exchange of whole update matrices, to compare with and where factors are larger."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import Group, allreduce, broadcast_direct, reduce
from dask_ma.kernels import subtract_product
from dask_ma.sfb.model._factors import Factors
from dask_ma.sfb.model._matrix import ParameterMatrix


class MatrixExchange:
    """Adds up the update matrices of all ranks.

    Parameters
    ----------
    group : Group
        This rank.
    by_server : bool
        Whether rank 0 adds up, and sends the sum to all; else each rank adds up a part,
        which takes as many bytes in all, but no rank more than another.
    wire_dtype : dtype or None
        Type that matrices are sent and added up in; None takes that of the matrix.
    """

    def __init__(
        self, group: Group, *, by_server: bool, wire_dtype: Any = None
    ) -> None:
        self._group = group
        self._by_server = by_server
        self._wire_dtype = wire_dtype

    def total(self, factors: Factors, matrix: ParameterMatrix) -> np.ndarray:
        """Sum of the updates of all ranks; a collective call.

        Parameters
        ----------
        factors : Factors
            This rank's.
        matrix : ParameterMatrix
            Says what shape and type the update has.

        Returns
        -------
        total : ndarray of shape (n_features + 1, n_outputs)
            The last row is for the intercepts.
        """
        own = self.product(factors, matrix)
        group = self._group
        if self._wire_dtype is not None:
            own = own.astype(self._wire_dtype, copy=False)
        if group.size == 1:
            return own
        if not self._by_server:
            return allreduce(group, own)
        total = reduce(group, own)
        result: np.ndarray = broadcast_direct(group, total)
        return result

    @staticmethod
    def product(factors: Factors, matrix: ParameterMatrix) -> np.ndarray:
        """Update matrix of a rank, with the update of the intercepts."""
        n_outputs, n_features = matrix.shape
        update = np.zeros((n_features + 1, n_outputs), dtype=matrix.dtype)
        subtract_product(update[:-1], *factors, -1.0)
        update[-1] = factors.u.sum(axis=0)
        return update
