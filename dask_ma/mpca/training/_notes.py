"""Notes for users on a fit that went wrong."""

from __future__ import annotations

from dask_ma.comm import allgather
from dask_ma.engine import RankContext


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
