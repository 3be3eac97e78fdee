"""The cost of an epoch, and the ranks that pay, by times measured once."""

from __future__ import annotations

import math
from itertools import pairwise

from dask_ma import _config
from dask_ma.data import InputSize
from dask_ma.engine import quickest_of
from dask_ma.mpca.networks._mlp import MLPSpec
from dask_ma.mpca.training._batches import rows_of_batch
from dask_ma.mpca.training._choice import FEW_STEPS
from dask_ma.mpca.training._params import MPCAParams

_STEP = 3e-4  # seconds of a step, whatever its rows
_SECONDS_PER_WEIGHT = 4.5e-11  # of a step, for a row
# For an element of sparse rows and a unit, with the optimiser's step; and for a weight
# of an input, where a batch has so many of them that the step goes through all.
_SECONDS_PER_ELEMENT, _SECONDS_PER_INPUT = 3.6e-9, 4.5e-9
_EXCHANGES = 3e-2  # seconds of an epoch, for each doubling of the ranks
_EPOCHS = 10  # of a fit, over which the cost of moving rows is spread


def ranks_for_network(params: MPCAParams, size: InputSize, n_threads: int) -> int:
    """As many ranks as gain more by smaller batches than exchanges take.

    Parameters
    ----------
    params : MPCAParams
        Parameters of the fit.
    size : InputSize
        How large X is.
    n_threads : int
        Ranks that there may be; a module has them all, as nobody knows what it takes,
        and so has a strategy that was chosen.

    Returns
    -------
    n_ranks : int
    """
    spec = params.spec
    if not isinstance(spec, MLPSpec) or params.strategy != "auto":
        return n_threads
    per_row = size.n_stored / size.n_rows
    sizes = [per_row, *spec.hidden_layer_sizes, params.n_targets or 1]
    n_weights = sum(a * b for a, b in pairwise(sizes))
    n_units = sizes[1]
    is_number = not isinstance(params.batch_size, str)
    share = _config.get_fraction("mpca.exchange-share")
    bandwidth = _config.get_bytes("comm.link-bandwidth")

    def seconds(n_ranks: int) -> float:
        n_rows = rows_of_batch(params.batch_size, n_ranks)
        step = _STEP + n_rows * n_weights * _SECONDS_PER_WEIGHT
        if size.is_sparse:
            # Where gradients are added up, each rank makes the step for all rows.
            is_sum = size.n_rows <= n_rows * n_ranks * FEW_STEPS
            n_seen = n_rows * n_ranks if is_sum else n_rows
            # Of all inputs, or of those that the rows have, where that is less.
            of_all = size.n_features * _SECONDS_PER_INPUT
            of_these = n_seen * per_row * _SECONDS_PER_ELEMENT
            skips = spec.skips_inputs
            step += n_units * (min(of_these, of_all) if skips else of_all)
        together = n_rows * n_ranks if is_number else rows_of_batch("auto", 1)
        epoch = size.n_rows / together * step
        if n_ranks > 1:
            epoch *= 1 + share
        moved = size.moved(n_ranks) / bandwidth / _EPOCHS
        return epoch + _EXCHANGES * math.log2(n_ranks) + moved

    return quickest_of(n_threads, seconds)
