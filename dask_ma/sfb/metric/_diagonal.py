"""Factors of distances that weigh features: one vector stands for a whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group
from dask_ma.data import Shard
from dask_ma.kernels import (
    batch_weights,
    feature_slopes,
    scale_columns,
    squared_distances,
    used_columns,
)
from dask_ma.sfb.metric._models import (
    MetricModel,
    PairModel,
    differences,
    groups_of,
)
from dask_ma.sfb.metric._params import MetricParams
from dask_ma.sfb.metric._plan import gather_batch
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import Batch


class DiagonalLabelModel(MetricModel):
    """Weights of features, from all pairs of rows in a batch.

    The matrix is one row, the square roots of the weights. Ranks get the rows of a
    batch that the others have, and each works out what the pairs of its rows with all
    say of every weight: nothing has to go back.

    Parameters
    ----------
    params, components, eta0, n_iterations
        As in :class:`MetricModel`, with components of shape (1, n_features).
    n_classes, is_collective
        As in :class:`LabelModel`.
    """

    n_pairs = 1

    def __init__(
        self,
        params: MetricParams,
        components: np.ndarray,
        eta0: float,
        n_iterations: int,
        n_classes: int,
        *,
        is_collective: bool,
    ) -> None:
        super().__init__(params, components, eta0, n_iterations)
        self._n_classes = n_classes
        self.is_collective = is_collective
        self.n_exchanges = 1 if is_collective else 0

    def prepare(self, shard: Shard, group: Group) -> None:
        self._group = group

    def project(self, matrix: ParameterMatrix, X: Any) -> Any:
        return scale_columns(X, matrix.whole()[:, 0])

    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        whole, first = batch, 0
        if self.is_collective:
            whole, first = gather_batch(self._group, batch)
        X, columns = compact(whole.X)
        roots = matrix.whole()[columns, 0].astype(X.dtype, copy=False)
        Z = scale_columns(X, roots)
        slopes = np.zeros_like(roots)
        for rows in groups_of(whole.y, self._n_classes):
            start, stop = rows.start, rows.stop
            if self.is_collective:  # one group, in which others have rows as well
                start, stop = first, first + batch.n_rows
            weights = batch.sample_weight
            own = slice(start, stop)
            weights, value = batch_weights(
                squared_distances(Z[own], Z[rows]),
                whole.y[own, np.newaxis] == whole.y[rows],
                np.arange(start, stop) - rows.start,
                self._loss,
                None if weights is None else weights[start - first : stop - first],
            )
            self._note(value, stop - start)
            slopes += feature_slopes(weights, X[own], X[rows])
        return as_factors(2 * roots * slopes, columns, matrix)


class DiagonalPairModel(PairModel):
    """Weights of features, from single pairs or triplets."""

    shares_outputs = False
    n_pairs = 1

    def project(self, matrix: ParameterMatrix, X: Any) -> Any:
        return scale_columns(X, matrix.whole()[:, 0])

    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        D, columns = compact(differences(batch), is_centred=False)
        squares = D.power(2) if sparse.issparse(D) else D**2
        roots = matrix.whole()[columns, 0].astype(D.dtype, copy=False)
        slopes = self._weights(squares @ roots**2, batch) @ squares
        return as_factors(2 * roots * slopes, columns, matrix)


def compact(X: Any, *, is_centred: bool = True) -> tuple[Any, Any]:
    """Rows as distances are worked out from them, and which columns they have.

    Distances do not see a shift, but their rounding does. Sparse rows, for which that
    would mean to fill them, are in double precision, and have used columns only.
    """
    if not sparse.issparse(X):
        if is_centred:
            X = X - X.mean(axis=0, dtype=np.float64).astype(X.dtype)
        return X, slice(None)
    columns = used_columns(X)
    indices = np.searchsorted(columns, X.indices)
    parts = X.data.astype(np.float64), indices, X.indptr
    return sparse.csr_array(parts, shape=(X.shape[0], len(columns))), columns


def as_factors(
    slopes: np.ndarray, columns: Any, matrix: ParameterMatrix
) -> tuple[np.ndarray, Any]:
    """The one pair of factors of a batch, sparse if its rows are."""
    values = slopes.astype(matrix.dtype, copy=False)[np.newaxis]
    u = np.ones((1, 1), dtype=matrix.dtype)
    if isinstance(columns, slice):
        return u, values
    parts = values[0], columns, np.array([0, len(columns)])
    return u, sparse.csr_array(parts, shape=(1, matrix.shape[1]))
