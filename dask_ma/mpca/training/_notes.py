"""Notes for users on a fit that went wrong."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dask_ma.comm import allgather
from dask_ma.engine import RankContext
from dask_ma.mpca.training._params import Baseline

# Times the loss of a constant model. A network that goes on with labels dealt out anew,
# of which it has learned nothing, begins at seven times that.
_STRANGE = 10.0


def tell_of_divergence(context: RankContext, n_steps: int, n_epochs: int) -> None:
    """Have the user told which ranks have diverged; a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    n_steps : int
        In which of its steps the rank has diverged; below 0 if it has not.
    n_epochs : int
        Epochs that have been made.

    Raises
    ------
    ValueError
        If there is no model of before.
    """
    steps = allgather(context.group, n_steps)
    where = [f"rank {r} in its step {n}" for r, n in enumerate(steps) if n >= 0]
    if not n_epochs:
        raise ValueError(
            f"the loss became infinite or NaN on {', '.join(where)}, before an "
            "epoch was made, so there is no model; lower learning_rate_init, or "
            "scale the features and y"
        )
    context.note(
        f"the loss became infinite or NaN on {', '.join(where)}; the fit has ended "
        f"with the joint model of before, after {n_epochs} epochs; lower "
        "learning_rate_init, or scale the features"
    )


def notes_on_start(
    baseline: Baseline, curve: np.ndarray, *, is_warm: bool
) -> Iterator[str]:
    """What the user is to know of a network to go on from.

    Parameters
    ----------
    baseline : Baseline
        What models lose that look at no features.
    curve : ndarray
        Losses of the epochs.
    is_warm : bool
        Whether `warm_start` has given the network.

    Yields
    ------
    note : str
    """
    constant = baseline.constant
    if is_warm and constant > 0 and len(curve) and curve[0] > _STRANGE * constant:
        yield (
            f"the network that warm_start goes on from had a loss of {curve[0]:.3g} in "
            f"the first epoch, and it takes {constant:.3g} to know no features: these "
            "rows are unlike those before. If their features have another scale, bring "
            "them to that of before; else set warm_start=False"
        )
