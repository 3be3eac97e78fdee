"""The state of a rank's training, as callbacks get to see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class TrainingState:
    """The training of a rank, as its callbacks see it.

    Attributes
    ----------
    module : torch.nn.Module
        The rank's own module; what a callback changes in it is trained on.
    optimizer : torch.optim.Optimizer
        The rank's own optimiser.
    rank, n_ranks : int
        Which rank it is, and of how many.
    n_steps : int
        Steps that the rank has made.
    n_epochs : int
        Epochs that all ranks together have made.
    loss : float
        Of the last batch; in ``on_epoch_end`` the mean over all batches of all ranks
        in the epoch; NaN before the first one.
    """

    module: Any
    optimizer: Any
    rank: int
    n_ranks: int
    n_steps: int = 0
    n_epochs: int = 0
    loss: float = float("nan")
