"""How long a rank works alone between two merges."""

from __future__ import annotations


def local_epochs(
    setting: float | str, n_rows: int, n_ranks: int, n_weights: int, n_iter: int
) -> float:
    """Local epochs of a round.

    Parameters
    ----------
    setting : float or "auto"
        The estimator's parameter.
    n_rows : int
        Rows of all ranks.
    n_ranks : int
        Number of ranks.
    n_weights : int
        Weights of the model.
    n_iter : int
        Number of the round, from 1.

    Returns
    -------
    epochs : float
        How often each rank goes over its rows before the models are merged.
    """
    if setting != "auto":
        return float(setting)
    return 1.0
