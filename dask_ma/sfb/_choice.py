"""Whether a run sends factors or matrices: the cost model with measured speeds."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard
from dask_ma.kernels import row_slice, subtract_product
from dask_ma.sfb._cost import Update, choose, measure_bandwidth, predict_costs
from dask_ma.sfb._matrix import ParameterMatrix
from dask_ma.sfb._settings import Settings

_SHORTEST = 1e-9  # seconds


def choose_communication(
    group: Group, shard: Shard, matrix: ParameterMatrix, settings: Settings
) -> str:
    """What costs less time in an iteration, factors or matrices; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        The rank's rows.
    matrix : ParameterMatrix
        The matrix; not changed.
    settings : Settings
        How the ranks exchange.

    Returns
    -------
    communication : {"factors", "full_matrix"}
        The same on all ranks.
    """
    own = [shard.n_rows, _n_stored(shard), shard.is_sparse]
    n_rows, n_stored, n_sparse = allreduce(group, np.array(own, dtype=np.float64))
    n_outputs, n_features = matrix.shape
    dtype = np.dtype(settings.wire_dtype or matrix.dtype)
    update = Update(
        n_pairs=settings.batch_size,
        n_outputs=n_outputs,
        n_features=n_features,
        entries_per_row=n_stored / max(1.0, n_rows),
        is_sparse=bool(n_sparse),
        itemsize=dtype.itemsize,
    )
    bandwidth = measure_bandwidth(group)
    rate = _measure_rate(group, shard, matrix, settings.batch_size)
    return choose(predict_costs(update, group.size, bandwidth, rate))


def _n_stored(shard: Shard) -> int:
    """Elements of X that a rank has stored."""
    return sum(b.X.nnz if sparse.issparse(b.X) else b.X.size for b in shard.blocks)


def _measure_rate(
    group: Group, shard: Shard, matrix: ParameterMatrix, n_pairs: int
) -> float:
    """Multiply-adds per second of the slowest rank that rebuilds an update."""
    rate = np.inf
    if shard.blocks:
        X = shard.blocks[0].X
        v = row_slice(X, 0, min(n_pairs, X.shape[0]))
        u = np.zeros((v.shape[0], matrix.shape[0]), dtype=matrix.dtype)
        n_stored = v.nnz if sparse.issparse(v) else v.size
        times = []
        for _ in range(2):  # the first one finds nothing in the cache
            start = perf_counter()
            # Zeros leave the matrix as it is.
            subtract_product(matrix.values, u, v, 1.0)
            times.append(perf_counter() - start)
        rate = max(1, n_stored) * matrix.shape[0] / max(min(times), _SHORTEST)
    return float(allreduce(group, np.array(rate), "min"))
