"""The values that a fit starts from."""

from __future__ import annotations

import numpy as np

from dask_ma.mpca.networks._network import Network
from dask_ma.mpca.training._params import MPCAParams


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
