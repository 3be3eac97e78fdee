"""Bytes of an iteration, by hand and against the counters of groups."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.comm import allgather, allreduce
from dask_ma.sfb.exchange._cost import (
    Update,
    factor_bytes,
    full_matrix_bytes,
    iteration_bytes,
    n_transmissions,
)

DENSE = Update(n_pairs=10, n_outputs=30, n_features=50, entries_per_row=50)


def test_bytes_of_factors():
    assert factor_bytes(10, 30, 50) == 10 * (30 + 50) * 8
    assert factor_bytes(10, 30, 50, itemsize=4) == 10 * 80 * 4
    by_hand = 10 * 30 * 8 + 25 * (8 + 4) + 11 * 4
    assert factor_bytes(10, 30, 2.5, 8, 4, is_sparse=True) == by_hand
    assert DENSE.message_bytes == 6400
    sparse_update = DENSE._replace(entries_per_row=2.5, is_sparse=True)
    assert sparse_update.message_bytes == by_hand


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_bytes_of_csr(dtype, index_dtype):
    rng = np.random.default_rng(0)
    v = sparse.random_array((7, 90), density=0.1, format="csr", dtype=dtype, rng=rng)
    indices, starts = v.indices.astype(index_dtype), v.indptr.astype(index_dtype)
    u = np.ones((7, 3), dtype)
    n_bytes = sum(array.nbytes for array in (u, v.data, indices, starts))
    sizes = u.itemsize, indices.itemsize
    assert factor_bytes(7, 3, v.nnz / 7, *sizes, is_sparse=True) == n_bytes


def test_bytes_of_an_iteration():
    # The formulas of figure 4: P = 5, Q = 2.
    assert iteration_bytes(1000, 5) == 5 * 4 * 1000
    assert iteration_bytes(1000, 5, n_peers=2) == 5 * 2 * 1000
    assert iteration_bytes(1000, 5, n_peers=4) == iteration_bytes(1000, 5)
    assert iteration_bytes(1000, 5, n_peers=2, relayed=True) == 5 * 4 * 1000
    assert iteration_bytes(1000, 1) == n_transmissions(1, 0) == 0
    assert full_matrix_bytes(5, 30, 50) == 2 * 4 * 30 * 50 * 8
    assert full_matrix_bytes(1, 30, 50) == 0


@pytest.mark.parametrize("n_peers", [-1, 5])
def test_wrong_numbers_of_peers_are_refused(n_peers):
    with pytest.raises(ValueError, match="n_peers must be from 0 to 4 with 5 ranks"):
        iteration_bytes(1000, 5, n_peers)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_bytes_that_groups_count(run_ranks, configured, size):
    # 60 x 100 numbers, divisible by all sizes
    u, v, matrix = np.ones((10, 60)), np.ones((10, 100)), np.ones((60, 100))

    def program(group):
        allgather(group, [u, v])
        factors = group.counters.bytes_sent
        allreduce(group, matrix)
        return factors, group.counters.bytes_sent - factors

    with configured({"dask-ma.comm.message-overhead": 0}):
        factors, whole = np.sum(run_ranks(program, size, 1), axis=0)
    # An allgather packs what it hands on.
    expected = iteration_bytes(factor_bytes(10, 60, 100), size)
    assert expected <= factors <= 1.05 * expected
    assert whole == full_matrix_bytes(size, 60, 100)
