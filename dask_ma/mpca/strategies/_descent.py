"""All ranks make each step together, with the gradient of all their rows."""

from __future__ import annotations

import numpy as np

from dask_ma.comm import Group, allgather, allreduce, broadcast
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
    """

    def __init__(
        self, trainee: Trainee, n_steps: int, share: float, has_history: bool | None
    ) -> None:
        super().__init__(trainee)
        self._n_steps = n_steps
        self._share = share
        # Penalties of ranks that count for less, or not at all, are not to be missing.
        [self._shares] = allreduce(self._group, np.array([share])).tolist()
        self._n_done = 0
        self._part: GradientPart | None = None
        self._losses = np.zeros(2)  # of the epoch, weighted, and their weight
        self._joint = self._network.read(0, self._network.n_values)
        if has_history is not None:
            share_optimizer(self._group, self._network, has_history)

    def step(self, batch: Batch, learning_rate: float) -> float:
        """Work out what this rank adds to the gradient."""
        self._part = self._network.gradient_part(
            batch.X, batch.y, batch.sample_weight, self._shares
        )
        return self._part.loss

    def exchange(self, *, ends_pass: bool, idle: bool) -> list[Decision]:
        """Add the gradients up and make the step; counts, too, after an epoch."""
        self._descend(None if idle or self._counters.has_diverged else self._part)
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

    def _descend(self, part: GradientPart | None) -> None:
        """Make a step with the gradients of all ranks that have one."""
        network = self._network
        sums = np.zeros(network.n_parameters + 2, network.dtype)
        if part is not None and part.weight > 0:
            weight = self._share * part.weight
            np.multiply(part.gradient, weight, out=sums[:-2], casting="same_kind")
            sums[-2:] = weight * part.loss, weight
        sums = allreduce(self._group, sums)
        if not sums[-1] > 0:  # none of these rows counts
            return
        self._losses += sums[-2:]
        gradient = sums[:-2] / sums[-1]
        network.descend(gradient, self._progress.learning_rate)

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
