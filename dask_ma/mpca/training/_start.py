"""The start of a fit: values of the network, and what it knows beforehand."""

from __future__ import annotations

import numpy as np

from dask_ma.engine import RankContext
from dask_ma.linear import UsedColumns
from dask_ma.mpca.networks._network import FitOutlook, Network, Scaling
from dask_ma.mpca.training._params import MPCAParams
from dask_ma.supervised import Problem


def build_network(
    params: MPCAParams,
    problem: Problem,
    n_classes: int | None,
    first_outputs: np.ndarray,
    scaling: Scaling | None,
    columns: UsedColumns,
    random_state: np.random.RandomState,
) -> Network:
    """The network with the values that it begins with.

    Parameters
    ----------
    params : MPCAParams
        Parameters of the fit.
    problem : Problem
        The rows.
    n_classes : int or None
        Number of classes; None for regression.
    first_outputs : ndarray of shape (n_outputs,)
        What a regression is to begin with.
    scaling : Scaling or None
        Of all columns of the rows, and of the outputs.
    columns : UsedColumns
        Those that the network is to know.
    random_state : RandomState
        Where first values come from.

    Returns
    -------
    network : Network

    Raises
    ------
    ValueError
        If there are more or fewer values to start from than such a network has.
    """
    numbers = columns.numbers
    n_inputs = columns.n_features if numbers is None else len(numbers)
    network = params.spec.build(n_inputs, n_classes, problem.dtype, random_state)
    if numbers is not None:
        network.set_columns(columns)
    if scaling is not None:
        center, scale = columns.taken(np.stack(scaling[:2]))
        network.set_scaling(scaling._replace(center=center, scale=scale))
    if params.vector is None and not params.is_classifier:
        network.shift_outputs(first_outputs)
    if params.vector is not None:
        start = network.taken(_checked_start(params.vector, network, params))
        network.write(0, network.unscaled(start, -1))
    if params.optimizer_state is not None:
        network.set_optimizer_state(params.optimizer_state)
    return network


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


def _checked_start(
    vector: np.ndarray, network: Network, params: MPCAParams
) -> np.ndarray:
    """The values to start from, if they are those of such a network."""
    if vector.shape == (network.n_widened,):
        return vector.astype(network.dtype, copy=False)
    expected = f"{network.n_widened} for these data and parameters"
    if params.is_warm:
        raise ValueError(
            f"the fitted model has another shape than the data or the parameters ask "
            f"for: {len(vector)} values, expected {expected}; set warm_start=False"
        )
    raise ValueError(
        f"the model to go on from has {len(vector)} values, expected {expected}"
    )
