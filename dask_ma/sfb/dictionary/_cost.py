"""The cost of learning a dictionary on some ranks, by times measured once."""

from __future__ import annotations

import math

from dask_ma.data import InputSize
from dask_ma.sfb.dictionary._merging import batches_apart
from dask_ma.sfb.dictionary._params import DictionaryParams

# Of the processor, for a row, for each of its atoms, and for each product of one of its
# elements with one of an atom.
_SECONDS_OF_ROW, _SECONDS_OF_ATOM, _SECONDS_OF_PRODUCT = 4e-6, 7e-8, 1.2e-10
# For each doubling of the ranks: until they have begun, and of an exchange.
_SECONDS_OF_LAUNCH, _SECONDS_OF_EXCHANGE = 0.05, 4e-3
_ITEM_BYTES = 4
_PASSES = 2  # of a fit, for which rows are moved once


def seconds_shared(
    params: DictionaryParams, size: InputSize, n_ranks: int, link_bandwidth: float
) -> float:
    """Seconds of a fit, without those that do not depend on the number of ranks.

    Parameters
    ----------
    params : DictionaryParams
        Parameters of the fit.
    size : InputSize
        How large X is.
    n_ranks : int
        Number of ranks.
    link_bandwidth : float
        Bytes a second between two of them.
    """
    n_atoms, per_row = params.n_components, size.n_stored / size.n_rows
    work = _SECONDS_OF_ROW + n_atoms * (
        _SECONDS_OF_ATOM + per_row * _SECONDS_OF_PRODUCT
    )
    n_passes = min(params.max_iter, _PASSES)
    seconds = size.n_rows * work / n_ranks
    if n_ranks > 1:
        seconds += _n_exchanges(params, size.n_rows, n_ranks) * (
            _SECONDS_OF_EXCHANGE * math.log2(n_ranks)
            + _bytes_of_exchange(params, size, n_ranks) / link_bandwidth
        )
    seconds = n_passes * seconds + _SECONDS_OF_LAUNCH * math.log2(n_ranks)
    return seconds + size.moved(n_ranks) / link_bandwidth


def _n_exchanges(params: DictionaryParams, n_rows: int, n_ranks: int) -> int:
    """Exchanges of a pass."""
    n_apart, batch_size = 1, params.batch_of(n_rows)
    if params.communication == "statistics":
        n_apart = batches_apart(
            params.merge_every, n_rows=n_rows, batch_size=batch_size, n_ranks=n_ranks
        )
    return -(-n_rows // (batch_size * (n_apart * n_ranks if n_apart > 1 else 1)))


def _bytes_of_exchange(
    params: DictionaryParams, size: InputSize, n_ranks: int
) -> float:
    """Bytes that a rank gets in one."""
    n_atoms = params.n_components
    if params.communication == "factors":
        others = params.batch_of(size.n_rows) * (n_ranks - 1) / n_ranks
        return _ITEM_BYTES * others * (n_atoms + size.n_stored / size.n_rows)
    n_values = n_atoms * (n_atoms + 2 * size.n_features)
    return 2 * _ITEM_BYTES * n_values * (n_ranks - 1) / n_ranks
