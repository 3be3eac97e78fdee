"""The cost of a fit by rotations, and the ranks that pay, by times measured once."""

from __future__ import annotations

from dask_ma import _config
from dask_ma.data import InputSize
from dask_ma.engine import worthwhile_ranks
from dask_ma.schmp.topics._exact import has_sparse_rows
from dask_ma.schmp.topics._params import GibbsParams

# Of a rotation, for the tokens of a count: there are somewhat more than one.
_SECONDS_PER_COUNT = {"exact": 130e-9, "metropolis": 270e-9}
_EXCHANGES = 11  # collective operations of a rotation, and messages that take as long
_COUNT_BYTES = 4
# Of sparse rows, for the tokens of a count, of which there are at least as many as
# elements: these take 5 to 8.
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
    seconds = size.n_stored * _SECONDS_PER_COUNT[params.sampler]
    if nbytes > _config.get_bytes("data.moved-rows"):
        return n_threads
    return worthwhile_ranks(
        size,
        n_threads,
        shared=params.n_rotations * seconds,
        exchanges=params.n_rotations * _EXCHANGES,
        nbytes=params.n_rotations * nbytes,
    )
