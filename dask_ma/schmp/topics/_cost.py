"""The cost of a fit by rotations, and the ranks that pay, by times measured once."""

from __future__ import annotations

from dask_ma import _config
from dask_ma.data import InputSize
from dask_ma.engine import worthwhile_ranks
from dask_ma.schmp.topics._exact import has_sparse_rows
from dask_ma.schmp.topics._params import GibbsParams

# Of a rotation, for the tokens of a count, of which there are somewhat more than one:
# what all topics or proposals have in common, and each of them.
_SECONDS_PER_COUNT = {"exact": (110e-9, 1.25e-9), "metropolis": (140e-9, 60e-9)}
_EXCHANGES = 11  # collective operations of a rotation, and messages that take as long
_COUNT_BYTES = 4
# Of sparse rows, for the tokens of a count, of which there are at least as many as
# elements: these take 2 to 8.
_SPARSE_BYTES = 8


def ranks_for_topics(params: GibbsParams, size: InputSize, n_threads: int) -> int:
    """As many ranks as gain more by sharing the tokens than rotations take.

    Parameters
    ----------
    params : GibbsParams
        Parameters of the fit.
    size : InputSize
        How large X is.
    n_threads : int
        Ranks that there may be.

    Returns
    -------
    n_ranks : int
        All, too, where the counts of words take more than rows that may be moved: they
        are to be shared out.
    """
    nbytes = _COUNT_BYTES * params.n_components * params.n_features
    if params.sampler == "metropolis" or has_sparse_rows(params.n_components):
        nbytes = min(nbytes, _SPARSE_BYTES * size.n_stored)
    seconds = size.n_stored * seconds_per_count(params)
    if nbytes > _config.get_bytes("data.moved-rows"):
        return n_threads
    return worthwhile_ranks(
        size,
        n_threads,
        shared=params.n_rotations * seconds,
        exchanges=params.n_rotations * _EXCHANGES,
        nbytes=params.n_rotations * nbytes,
    )


def seconds_per_count(params: GibbsParams) -> float:
    """Seconds of a rotation for the tokens of a count, on one processor.

    Parameters
    ----------
    params : GibbsParams
        Parameters of the fit.

    Returns
    -------
    seconds : float
    """
    common, of_each = _SECONDS_PER_COUNT[params.sampler]
    is_exact = params.sampler == "exact"
    return common + of_each * (params.n_components if is_exact else params.n_proposals)
