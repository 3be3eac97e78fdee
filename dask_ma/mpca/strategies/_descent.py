"""All ranks make each step together, with the gradient of all their rows."""

from __future__ import annotations

import numpy as np

from dask_ma.comm import Group, allgather, allreduce, broadcast
from dask_ma.mpca.networks._few_inputs import FewGradient, FewInputs
from dask_ma.mpca.networks._network import GradientPart, Network
from dask_ma.mpca.strategies._base import Batch, Strategy, Trainee, mean_of_models
from dask_ma.mpca.strategies._progress import Decision


class CommonDescent(Strategy):
    """Gradients are added up in each step, which every rank then makes by itself.

    All have the same parameters and optimisers at any time. What no gradient is for,
    such as running means, is averaged at the end of each epoch.

    Parameters
    ----------
    trainee : Trainee
        The rank.
    n_steps : int
        Steps of an epoch, the same on all ranks.
    share : float
        Batches of this rank in a pass over its rows, by `n_steps`; 0 where no row
        counts. A rank of fewer rows than steps goes over them again, and each counts
        for less.
    has_history : bool or None
        Whether the rank has the optimiser's state of a fit that goes on; None in a new
        one. Where some have it, all get that of one of them.
    is_sparse : bool, default=False
        Whether all rows of the rank are. Where those of all ranks are, gradients may
        be by the inputs that the rows of a step have.
    """

    def __init__(
        self,
        trainee: Trainee,
        n_steps: int,
        share: float,
        has_history: bool | None,
        *,
        is_sparse: bool = False,
    ) -> None:
        super().__init__(trainee)
        self._n_steps = n_steps
        self._share = share
        # Penalties of ranks that count for less, or not at all, are not to be missing.
        sums = allreduce(self._group, np.array([share, is_sparse]))
        self._shares, n_sparse = sums.tolist()
        self._few = self._network.few_inputs if n_sparse == self._group.size else None
        self._n_done = 0
        self._batch: Batch | None = None
        self._found: FewGradient | None = None
        self._part: GradientPart | None = None
        self._losses = np.zeros(2)  # of the epoch, weighted, and their weight
        self._joint = self._network.read(0, self._network.n_values)
        if has_history is not None:
            share_optimizer(self._group, self._network, has_history)

    def step(self, batch: Batch, learning_rate: float) -> float:
        """Work out what this rank adds to the gradient."""
        self._batch = batch
        few, parts = self._few, (batch.X, batch.y, batch.sample_weight, self._shares)
        self._found = None if few is None else few.gradient(*parts)
        if self._found is not None:
            return self._found.loss
        self._part = self._network.gradient_part(*parts)
        return self._part.loss

    def exchange(self, *, ends_pass: bool, idle: bool) -> list[Decision]:
        """Add the gradients up and make the step; counts, too, after an epoch."""
        self._descend(None if idle or self._counters.has_diverged else self._batch)
        self._n_done += 1
        if self._n_done < self._n_steps:
            return []
        self._n_done = 0
        self._joint = self._network.read(0, self._network.n_values)
        self._average_buffers(0.0 if idle else 1.0)
        # Means of batches whose weights differ would be noise to the stopping rule.
        loss, weight = self._losses
        self._counters.replace_loss(loss / weight if weight > 0 else 0.0)
        self._losses[:] = 0
        return [self._add_now(1.0, self._n_steps)]

    def share_score(self) -> list[Decision]:
        """Share it at once."""
        return [self._add_now(0.0)]

    def joint(self) -> np.ndarray:
        """The model after the last epoch."""
        return self._joint

    def _descend(self, batch: Batch | None) -> None:
        """Make a step with the gradients of all ranks that have a batch."""
        if self._few is not None and self._descend_by_few(self._few, batch):
            return
        network, part = self._network, None
        if batch is not None:
            parts = batch.X, batch.y, batch.sample_weight, self._shares
            # Other ranks may have more inputs.
            is_there = self._found is None
            part = self._part if is_there else network.gradient_part(*parts)
        sums = np.zeros(network.n_parameters + 2, network.dtype)
        if part is not None and part.weight > 0:
            weight = self._share * part.weight
            np.multiply(part.gradient, weight, out=sums[:-2], casting="same_kind")
            sums[-2:] = weight * part.loss, weight
        gradient, weight = self._mean(sums)
        if weight > 0:
            network.descend(gradient, self._progress.learning_rate)

    def _descend_by_few(self, few: FewInputs, batch: Batch | None) -> bool:
        """Make it by the inputs that the rows of all ranks have, if that is less."""
        own: np.ndarray | None = np.zeros(0, dtype=np.int64)
        if batch is not None:
            # A rank that has too many of them has nothing to tell.
            own = None if self._found is None else self._found.columns
        known = allgather(self._group, own)
        if any(columns is None for columns in known):
            return False
        columns = np.unique(np.concatenate(known))
        if not few.steps.is_worth_it(len(columns)):
            return False
        n_values, n_units = len(columns) * few.n_units, few.n_units
        sums = np.zeros(n_values + few.n_others + 2, self._network.dtype)
        if batch is not None and self._found is not None:
            loss, inputs, values, weight = self._found
            weight *= self._share
            here = sums[:n_values].reshape(-1, n_units)
            n_own = len(inputs) * n_units
            mine = values[:n_own].reshape(-1, n_units)
            here[np.searchsorted(columns, inputs)] = weight * mine
            sums[n_values:-2] = weight * values[n_own:]
            sums[-2:] = weight * loss, weight
        gradient, weight = self._mean(sums)
        if weight > 0:
            few.descend(columns, gradient, weight, self._progress.learning_rate)
        return True

    def _mean(self, sums: np.ndarray) -> tuple[np.ndarray, float]:
        """Weighted mean of gradients, whose losses are noted, and their weight."""
        sums = allreduce(self._group, sums)
        weight = float(sums[-1])
        if not weight > 0:  # none of these rows counts
            return sums[:-2], 0.0
        self._losses += sums[-2:]
        return sums[:-2] / sums[-1], weight

    def _average_buffers(self, weight: float) -> None:
        """Replace what is no parameter by its mean over ranks that make steps."""
        n_parameters = self._network.n_parameters
        if n_parameters < self._network.n_values:
            own = self._joint[n_parameters:]
            mean = mean_of_models(self._group, own, weight)
            self._joint[n_parameters:] = mean
            self._network.write(n_parameters, mean)


def share_optimizer(group: Group, network: Network, has_history: bool) -> None:
    """Give what one rank's optimiser remembers to all; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    network : Network
        Its network.
    has_history : bool
        Whether its optimiser remembers anything. Where none does, nothing changes.
    """
    known = allgather(group, has_history)
    # Those of ranks that went their own ways until now differ, too.
    if any(known):
        root = known.index(True)
        state = network.optimizer_state() if group.rank == root else None
        network.set_optimizer_state(broadcast(group, state, root))
