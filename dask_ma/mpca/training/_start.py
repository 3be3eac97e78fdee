"""The start of a fit: values of the network, and what it knows beforehand."""

from __future__ import annotations

import numpy as np

from dask_ma.engine import RankContext
from dask_ma.mpca.networks._network import FitOutlook, Network
from dask_ma.mpca.training._params import MPCAParams
from dask_ma.supervised import Problem


def checked_start(
    vector: np.ndarray, network: Network, params: MPCAParams
) -> np.ndarray:
    """The values to start from, if they are those of such a network.

    Parameters
    ----------
    vector : ndarray of shape (n_values,)
        The values.
    network : Network
        What they are for.
    params : MPCAParams
        Parameters of the fit, which tell where the values come from.

    Returns
    -------
    vector : ndarray of shape (n_values,)
        In the dtype of the network.

    Raises
    ------
    ValueError
        If there are more or fewer.
    """
    if vector.shape == (network.n_values,):
        return vector.astype(network.dtype, copy=False)
    expected = f"{network.n_values} for these data and parameters"
    if params.is_warm:
        raise ValueError(
            f"the fitted model has another shape than the data or the parameters ask "
            f"for: {len(vector)} values, expected {expected}; set warm_start=False"
        )
    raise ValueError(
        f"the model to go on from has {len(vector)} values, expected {expected}"
    )


def outlook_of(
    context: RankContext, params: MPCAParams, problem: Problem, n_steps: int
) -> FitOutlook:
    """What a network may know of the fit that it is part of.

    Parameters
    ----------
    context : RankContext
        This rank.
    params : MPCAParams
        Parameters of the fit.
    problem : Problem
        The rows.
    n_steps : int
        Steps of a rank in an epoch, where all ranks are alike.

    Returns
    -------
    outlook : FitOutlook
        With a seed where no other rank of the fit is in this process.
    """
    group = context.group
    is_alone = len(group.local_ranks) == 1
    return FitOutlook(
        group.rank,
        group.size,
        params.max_iter,
        n_steps,
        problem.class_weight,
        int(context.seed.generate_state(1)[0]) if is_alone else None,
    )
