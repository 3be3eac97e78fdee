"""Factors of distances: of all pairs in a batch, and of single pairs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather, alltoall
from dask_ma.data import Shard
from dask_ma.kernels import (
    batch_weights,
    distance_gradient,
    pair_losses,
    square_lengths,
    squared_distances,
    triplet_losses,
)
from dask_ma.kernels.prox import NoPenalty
from dask_ma.sfb.metric._params import MetricParams
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import Batch, FactorModel

# Pairs of a batch from which on it is quicker to send slopes than to find all of them.
_SHARED_PAIRS = 2**19
_LATER = 120  # steps of parts of the data after which they are shorter by a root of two


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
        self._is_partial = params.is_partial
        self._n_iterations = n_iterations
        self.seen = np.zeros(2)

    def initial_matrix(self, n_features: int) -> np.ndarray:
        return self._components

    def step_size(self, iteration: int) -> float:
        if not self._is_cosine:
            return self._eta0
        if self._is_partial:  # nobody knows how many steps will follow
            return float(self._eta0 / np.sqrt(1 + iteration / _LATER))
        done = min(1.0, iteration / self._n_iterations)
        return float(self._eta0 * (1 + np.cos(np.pi * done)) / 2)

    def project(self, matrix: ParameterMatrix, X: Any) -> Any:
        """Rows between which Euclidean distances are the learnt ones."""
        return matrix.product(X)

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
    n_classes : int
        Labels of batches count groups as well; see :class:`LabelSource`.
    is_collective : bool
        Whether batches are those of all ranks; else each rank has pairs of its rows,
        within groups.
    """

    shares_outputs = True

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
        self.n_exchanges = 2 if is_collective else 0

    def prepare(self, shard: Shard, group: Group) -> None:
        self._group = group

    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        own = matrix.product(batch.X)
        if not self.is_collective or self._group.size == 1:
            return self._slopes_of_groups(own, batch, slice(None)), batch.X
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
            batch.sample_weight,
        )
        self._note(value, batch.n_rows)
        u, of_all = distance_gradient(weights, own, Z)
        of_ranks = [of_all[ends[r] : ends[r + 1]] for r in range(len(parts))]
        for part in alltoall(self._group, of_ranks):
            u += part
        return u, batch.X

    def _slopes_of_groups(
        self, Z: np.ndarray, batch: Batch, outputs: slice
    ) -> np.ndarray:
        """First factors of all pairs within the groups of a batch, for some outputs."""
        u = np.zeros_like(Z[:, outputs], order="C")
        for rows in groups_of(batch.y, self._n_classes):
            # Distances do not see a shift, but their rounding does.
            part, labels = Z[rows], batch.y[rows]
            part = part - part.mean(axis=0, dtype=np.float64).astype(Z.dtype)
            row_weights = batch.sample_weight
            weights, value = batch_weights(
                squared_distances(part, part),
                labels[:, np.newaxis] == labels,
                np.arange(len(part)),
                self._loss,
                None if row_weights is None else row_weights[rows],
            )
            self._note(value, len(part))
            part = np.ascontiguousarray(part[:, outputs])
            u[rows] = sum(distance_gradient(weights, part, part))
        return u

    def share_sums(self, values: np.ndarray) -> np.ndarray:
        return values

    def share_slopes(
        self, values: np.ndarray, sums: list[np.ndarray], batch: Batch, outputs: slice
    ) -> np.ndarray:
        Z = np.concatenate(sums, axis=1)
        group, n_rows = self._group, len(Z)
        if group.size == 1 or n_rows**2 < _SHARED_PAIRS or self._n_groups(batch) > 1:
            # Each finds what all pairs mean for its outputs.
            return self._slopes_of_groups(Z, batch, outputs)
        Z -= Z.mean(axis=0, dtype=np.float64).astype(Z.dtype)
        ends = [n_rows * r // group.size for r in range(group.size + 1)]
        first, last = ends[group.rank : group.rank + 2]
        row_weights = batch.sample_weight
        weights, value = batch_weights(
            squared_distances(Z[first:last], Z),
            batch.y[first:last, np.newaxis] == batch.y,
            np.arange(first, last),
            self._loss,
            None if row_weights is None else row_weights[first:last],
        )
        self._note(value, last - first)
        of_own, of_all = distance_gradient(weights, Z[first:last], Z)
        of_all[first:last] += of_own
        widths = np.cumsum([0, *(part.shape[1] for part in sums)])
        parts = [
            np.ascontiguousarray(of_all[:, start:stop])
            for start, stop in itertools.pairwise(widths)
        ]
        found = alltoall(group, parts)
        return np.asarray(sum(found[1:], found[0]))

    def _n_groups(self, batch: Batch) -> int:
        """Groups of a batch."""
        return len(groups_of(batch.y, self._n_classes))


class PairModel(MetricModel):
    """Distances of pairs that are similar or not, or the two distances of triplets.

    The factors of a triplet are next to each other.
    """

    shares_outputs = True

    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        v = differences(batch)
        projected = matrix.product(v)
        return self._slopes(projected, square_lengths(projected), batch), v

    def share_rows(self, batch: Batch) -> Any:
        return differences(batch)

    def share_sums(self, values: np.ndarray) -> np.ndarray:
        return square_lengths(values)[:, np.newaxis]

    def share_slopes(
        self, values: np.ndarray, sums: list[np.ndarray], batch: Batch, outputs: slice
    ) -> np.ndarray:
        return self._slopes(values, sum(sums[1:], sums[0]).ravel(), batch)

    def _slopes(
        self, projected: np.ndarray, squares: np.ndarray, batch: Batch
    ) -> np.ndarray:
        """First factors, of some components, from squared distances by all of them."""
        return (2 * self._weights(squares, batch))[:, np.newaxis] * projected

    def _weights(self, squares: np.ndarray, batch: Batch) -> np.ndarray:
        """Derivatives of the losses by the squared distances, which are noted."""
        distances = squares.reshape(batch.n_rows, -1).T
        if len(distances) > 1:
            near, far = distances
            values, slopes = triplet_losses(near, far, self._loss.margin)
        else:
            values, slopes = pair_losses(distances[0], batch.y > 0, self._loss)
        if batch.sample_weight is not None:
            values, slopes = (part * batch.sample_weight for part in (values, slopes))
        if len(distances) > 1:
            slopes = np.stack([slopes, -slopes], axis=1).ravel()
        self._note(float(values.sum(dtype=np.float64)), batch.n_rows)
        return slopes


def groups_of(labels: np.ndarray, n_classes: int) -> list[slice]:
    """Rows of each group of a batch, in which they lie together."""
    ends = np.flatnonzero(np.diff(labels // n_classes)) + 1
    bounds = [0, *ends.tolist(), len(labels)]
    return [slice(*ends) for ends in itertools.pairwise(bounds) if ends[0] < ends[1]]


def differences(batch: Batch) -> Any:
    """The first rows less the others, those of a triplet next to each other."""
    parts = [batch.X - other for other in batch.others]
    if len(parts) == 1:
        return parts[0]
    if not sparse.issparse(parts[0]):
        return np.stack(parts, axis=1).reshape(-1, batch.X.shape[1])
    order = np.arange(2 * batch.n_rows).reshape(2, -1).T.ravel()
    return sparse.vstack(parts, format="csr")[order]
