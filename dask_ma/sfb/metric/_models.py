"""Factors of distances: of all pairs in a batch, and of single pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather, alltoall
from dask_ma.data import Shard
from dask_ma.kernels import (
    batch_weights,
    distance_gradient,
    pair_losses,
    squared_distances,
    triplet_losses,
)
from dask_ma.kernels.prox import NoPenalty
from dask_ma.sfb.metric._params import MetricParams
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import Batch, FactorModel


class MetricModel(FactorModel):
    """What is learnt from labels and from pairs alike: components, by short steps.

    Parameters
    ----------
    params : MetricParams
        Parameters of the fit.
    components : ndarray of shape (n_components, n_features)
        Where to start from.
    eta0 : float
        Length of the first step.
    n_iterations : int
        Of the whole fit.

    Attributes
    ----------
    seen : ndarray of shape (2,)
        Sum of the losses that this rank has met, and of how many rows or pairs.
    """

    def __init__(
        self,
        params: MetricParams,
        components: np.ndarray,
        eta0: float,
        n_iterations: int,
    ) -> None:
        self._penalty = params.prox
        # Adam has the gradient of the only penalty that goes with it.
        self.prox = NoPenalty() if params.optimizer == "adam" else params.prox
        self._loss = params.metric_loss
        self._components = components
        self._eta0 = eta0
        self._is_cosine = params.learning_rate == "cosine"
        self._n_iterations = n_iterations
        self.seen = np.zeros(2)

    def initial_matrix(self, n_features: int) -> np.ndarray:
        return self._components

    def step_size(self, iteration: int) -> float:
        if not self._is_cosine:
            return self._eta0
        done = min(1.0, iteration / self._n_iterations)
        return float(self._eta0 * (1 + np.cos(np.pi * done)) / 2)

    def penalty(self, matrix: ParameterMatrix) -> float:
        return float(self._penalty.value(matrix.whole().T))

    def take_seen(self) -> np.ndarray:
        """Losses that have been met since they were last asked for."""
        seen, self.seen = self.seen, np.zeros(2)
        return seen

    def _note(self, value: float, n_units: int) -> None:
        """Add the losses of a batch."""
        self.seen += value, n_units


class LabelModel(MetricModel):
    """Distances of all pairs of rows in a batch, which are told by their classes.

    Rows of a batch are on all ranks. Each works out the weights of its rows with all
    others, from their projections, which it gets; what that means for the others goes
    back to them. So the factors of a rank are those of its rows, and stand for pairs
    with the rows of all.

    Parameters
    ----------
    params, components, eta0, n_iterations
        As in :class:`MetricModel`.
    is_collective : bool
        Whether batches are those of all ranks; else each rank has pairs of its rows.
    """

    def __init__(
        self,
        params: MetricParams,
        components: np.ndarray,
        eta0: float,
        n_iterations: int,
        *,
        is_collective: bool,
    ) -> None:
        super().__init__(params, components, eta0, n_iterations)
        self.is_collective = is_collective

    def prepare(self, shard: Shard, group: Group) -> None:
        self._group = group

    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        own = matrix.product(batch.X)
        if not self.is_collective or self._group.size == 1:
            parts, rank = [(own, batch.y)], 0
        else:
            parts, rank = allgather(self._group, [own, batch.y]), self._group.rank
        Z = np.concatenate([part[0] for part in parts])
        codes = np.concatenate([part[1] for part in parts])
        ends = np.cumsum([0, *(len(part[0]) for part in parts)])
        # Distances do not see a shift, but their rounding does.
        Z = Z - Z.mean(axis=0, dtype=np.float64).astype(Z.dtype)
        own = Z[ends[rank] : ends[rank + 1]]
        weights, value = batch_weights(
            squared_distances(own, Z),
            batch.y[:, np.newaxis] == codes,
            np.arange(ends[rank], ends[rank + 1]),
            self._loss,
        )
        self._note(value, batch.n_rows)
        u, of_all = distance_gradient(weights, own, Z)
        of_ranks = [of_all[ends[r] : ends[r + 1]] for r in range(len(parts))]
        if len(of_ranks) > 1:
            of_ranks = alltoall(self._group, of_ranks)
        for part in of_ranks:
            u += part
        return u, batch.X


class PairModel(MetricModel):
    """Distances of pairs that are similar or not, or the two distances of triplets."""

    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        differences = [batch.X - other for other in batch.others]
        projected = [matrix.product(difference) for difference in differences]
        values, slopes = tuple_losses(projected, batch.y, self._loss)
        self._note(float(values.sum(dtype=np.float64)), batch.n_rows)
        signs = (1, -1) if len(projected) > 1 else (1,)
        u = [
            (2 * sign * slopes)[:, np.newaxis] * part
            for sign, part in zip(signs, projected, strict=True)
        ]
        if sparse.issparse(differences[0]):
            return np.concatenate(u), sparse.vstack(differences, format="csr")
        return np.concatenate(u), np.concatenate(differences)


def tuple_losses(
    projected: list[np.ndarray], labels: np.ndarray | None, loss: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Losses of pairs or triplets, and their derivatives by the first distances."""
    distances = [np.einsum("ik,ik->i", part, part) for part in projected]
    if len(distances) > 1:
        return triplet_losses(distances[0], distances[1], loss.margin)
    assert labels is not None
    return pair_losses(distances[0], labels > 0, loss)
