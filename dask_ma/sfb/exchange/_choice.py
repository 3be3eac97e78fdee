"""Choice between factors and matrices, by timing an iteration of each."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather, allreduce, barrier
from dask_ma.data import Shard
from dask_ma.kernels import row_slice
from dask_ma.sfb.exchange._exchange import FactorExchange
from dask_ma.sfb.exchange._full_matrix import MatrixExchange
from dask_ma.sfb.exchange._outputs import OutputShares
from dask_ma.sfb.exchange._settings import RunSettings
from dask_ma.sfb.exchange._staleness import Staleness
from dask_ma.sfb.model._factors import Factors, stack
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import Batch, FactorModel

_N_PROBES = 3  # after a first one, which opens connections
# Elements of a matrix for each of the factors of all ranks, above which matrices of
# sparse rows are not even tried: adding them up takes far longer, and is sent as well.
_HOPELESS = 8


def choose_communication(
    group: Group,
    shard: Shard,
    matrix: ParameterMatrix,
    settings: RunSettings,
    model: FactorModel,
    *,
    can_share: bool,
) -> str:
    """What takes less time in an iteration, factors or matrices; a collective call.

    Both ways are gone a few times with factors as large as those of a batch, of which
    `u` is zero: the matrix stays as it is. What counts is the fastest time of the
    slowest rank. Messages, adding up and the memory that each way goes through are all
    in it, on the machines of the run. Finding the factors costs the same in both ways.
    Matrices that are much larger than factors of sparse rows are not sent for that.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        The rank's rows.
    matrix : ParameterMatrix
        The matrix; its values are not changed.
    settings : RunSettings
        How the ranks exchange; all get all factors. The batches are those of a rank.
    model : FactorModel
        What is learnt.
    can_share : bool
        Whether outputs can be shared out; then that is tried, too. Finding slopes costs
        the same as factors.

    Returns
    -------
    communication : {"factors", "full_matrix", "outputs"}
        The same on all ranks.
    """
    ways = iterations(group, shard, matrix, settings, model.n_exchanges)
    if are_hopeless(group, shard, matrix, settings.batch_size):
        del ways["full_matrix"]
    if len(ways) == 1 and not can_share:
        return "factors"
    seconds = {name: fastest(group, way) for name, way in ways.items()}
    if can_share:  # made last: it has a matrix of its own
        way = sharing(group, shard, matrix, settings, model)
        seconds["outputs"] = fastest(group, way)
    slowest = allreduce(group, np.array(list(seconds.values())), "max").tolist()
    return min(zip(slowest, seconds, strict=True))[1]


def are_hopeless(
    group: Group, shard: Shard, matrix: ParameterMatrix, n_pairs: int
) -> bool:
    """Whether whole matrices are far too large to be sent; a collective call.

    Parameters
    ----------
    group, shard, matrix
        As in :func:`choose_communication`.
    n_pairs : int
        Pairs of factors of a rank.

    Returns
    -------
    are_hopeless : bool
        The same on all ranks; never, if one has dense rows.
    """
    v = _zero_factors(shard, matrix, n_pairs).v
    n_elements = v.shape[0] * matrix.shape[0]
    n_elements += v.nnz if sparse.issparse(v) else v.size
    of_factors = float(allreduce(group, np.array(float(n_elements))))
    is_dense = v.shape[0] > 0 and not sparse.issparse(v)
    has_dense = allreduce(group, np.array(float(is_dense)), "max") > 0
    n_outputs, n_features = matrix.shape
    return bool(not has_dense and n_outputs * n_features > _HOPELESS * of_factors)


def iterations(
    group: Group,
    shard: Shard,
    matrix: ParameterMatrix,
    settings: RunSettings,
    n_exchanges: int = 0,
) -> dict[str, Callable[[], None]]:
    """An iteration of each way, without what it takes to find the factors.

    Parameters
    ----------
    group, shard, matrix, settings
        As in :func:`choose_communication`.
    n_exchanges : int, default=0
        Exchanges by which ranks find factors.

    Returns
    -------
    ways : dict of callable
        "factors" and "full_matrix".
    """
    factors = _zero_factors(shard, matrix, settings.batch_size)
    wire_dtype = settings.exchange.wire_dtype
    exchange = FactorExchange(
        group,
        settings.exchange._topology(group.size),
        Staleness(0),
        relays=True,
        wire_dtype=wire_dtype,
        tolerance=None,
    )
    whole = MatrixExchange(group, by_server=False, wire_dtype=wire_dtype)

    def find_factors() -> None:
        for _ in range(n_exchanges):
            allgather(group, factors.u)

    def send_factors() -> None:
        find_factors()
        packets = exchange.exchange(factors, 0)
        matrix.subtract(stack([packet.opened() for packet in packets]), 1.0)

    def add_matrices() -> None:
        find_factors()
        whole.subtract(factors, matrix, 1.0)

    return {"factors": send_factors, "full_matrix": add_matrices}


def sharing(
    group: Group,
    shard: Shard,
    matrix: ParameterMatrix,
    settings: RunSettings,
    model: FactorModel,
) -> Callable[[], None]:
    """An iteration with outputs shared out, without finding slopes.

    Parameters
    ----------
    group, shard, matrix, settings, model
        As in :func:`choose_communication`.

    Returns
    -------
    way : callable
    """
    v = _zero_factors(shard, matrix, settings.batch_size).v
    shares = OutputShares(group, matrix.shape[0])
    part = ParameterMatrix(matrix.whole().T[shares.outputs], None, model.prox)
    own = Batch(v, None, None, np.arange(v.shape[0]))

    def share_outputs() -> None:
        for batch in shares.stream(iter([own])):
            u = np.zeros((batch.n_rows, part.shape[0]), dtype=matrix.dtype)
            sums = model.share_sums(u)
            if sums.shape[1]:
                allgather(group, sums)
            part.subtract(Factors(u, batch.X), 1.0)

    return share_outputs


def fastest(group: Group, way: Callable[[], None], n_probes: int = _N_PROBES) -> float:
    """Seconds of the fastest of some calls on this rank; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    way : callable
        A collective call.
    n_probes : int, default=3
        Calls that count, after one that does not.

    Returns
    -------
    seconds : float
    """
    seconds = np.inf
    for probe in range(1 + n_probes):
        barrier(group)
        start = perf_counter()
        way()
        if probe:
            seconds = min(seconds, perf_counter() - start)
    return seconds


def _zero_factors(shard: Shard, matrix: ParameterMatrix, n_pairs: int) -> Factors:
    """Rows of the largest block, as many as a batch has, with `u` of zeros."""
    v: Any = np.zeros((0, matrix.shape[1]), dtype=matrix.dtype)
    # A matrix with columns of its own tells nothing of what `v` will be.
    if shard.blocks and shard.n_features != matrix.shape[1]:
        v = np.zeros((n_pairs, matrix.shape[1]), dtype=matrix.dtype)
    elif shard.blocks:
        X = max((block.X for block in shard.blocks), key=lambda X: X.shape[0])
        v = row_slice(X, 0, min(n_pairs, X.shape[0]))
    return Factors(np.zeros((v.shape[0], matrix.shape[0]), dtype=matrix.dtype), v)
