"""The cost model, by hand and against the counters of groups."""

import math

import numpy as np
import pytest
from scipy import sparse

from dask_ma.comm import allgather, allreduce
from dask_ma.sfb import _cost
from dask_ma.sfb._cost import (
    Costs,
    Update,
    choose,
    factor_bytes,
    full_matrix_bytes,
    iteration_bytes,
    measure_bandwidth,
    n_transmissions,
    predict_costs,
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
def test_bytes_that_groups_count(run_ranks, size):
    # 60 x 100 numbers, above the limit for a single step, divisible by all sizes
    u, v, matrix = np.ones((10, 60)), np.ones((10, 100)), np.ones((60, 100))

    def program(group):
        allgather(group, [u, v])
        factors = group.counters.bytes_sent
        allreduce(group, matrix)
        return factors, group.counters.bytes_sent - factors

    factors, whole = np.sum(run_ranks(program, size, 1), axis=0)
    assert factors == iteration_bytes(factor_bytes(10, 60, 100), size)
    assert whole == full_matrix_bytes(size, 60, 100)


def test_seconds_by_hand():
    costs = predict_costs(DENSE, n_ranks=4, bandwidth=1000.0, rate=500.0)
    own, matrix = 10 * 30 * 50, 30 * 50
    assert costs.factors == pytest.approx(3 * 6400 / 1000 + 4 * own / 500)
    sent = 2 * 3 / 4 * matrix * 8
    added = own + 1.5 * matrix + matrix
    assert costs.full_matrix == pytest.approx(sent / 1000 + added / 500)


def test_seconds_with_peers():
    arguments = dict(n_ranks=4, bandwidth=1000.0, rate=500.0, n_peers=2)
    partial = predict_costs(DENSE, **arguments)
    assert partial.factors == pytest.approx(2 * 6400 / 1000 + 3 * 15000 / 500)
    everyone = predict_costs(DENSE, n_ranks=4, bandwidth=1000.0, rate=500.0)
    assert partial.full_matrix == everyone.full_matrix
    assert predict_costs(DENSE, **arguments, relayed=True) == everyone


def test_seconds_of_sparse_rows():
    update = DENSE._replace(entries_per_row=2, is_sparse=True, itemsize=4)
    costs = predict_costs(update, n_ranks=2, bandwidth=100.0, rate=10.0)
    message = 10 * 30 * 4 + 20 * 8 + 11 * 4
    own = 10 * 30 * 2
    assert costs.factors == pytest.approx(message / 100 + 2 * own / 10)
    assert costs.full_matrix == pytest.approx(1500 * 4 / 100 + (own + 1500 + 1500) / 10)


def test_one_rank_sends_nothing():
    costs = predict_costs(DENSE, n_ranks=1, bandwidth=math.inf, rate=500.0)
    assert costs == (15000 / 500, (15000 + 1500) / 500)
    assert choose(costs) == "factors"


def test_the_cheaper_way_is_chosen():
    assert choose(Costs(1.0, 2.0)) == choose(Costs(1.0, 1.0)) == "factors"
    assert choose(Costs(2.0, 1.0)) == "full_matrix"
    # Where computing is free, bytes decide: 3 messages against 2 * 3 / 4 matrices.
    free = dict(n_ranks=4, bandwidth=1.0, rate=math.inf)
    equal = 1.5 * 30 * 50 / (3 * 80)  # pairs at which both send as much
    for n_pairs, expected in [
        (math.floor(equal), "factors"),
        (math.ceil(equal), "full_matrix"),
    ]:
        costs = predict_costs(DENSE._replace(n_pairs=n_pairs), **free)
        assert choose(costs) == expected


@pytest.mark.parametrize("name", ["bandwidth", "rate"])
@pytest.mark.parametrize("number", [0.0, -1.0, math.nan])
def test_wrong_speeds_are_refused(name, number):
    speeds = {"bandwidth": 1.0, "rate": 1.0, name: number}
    with pytest.raises(ValueError, match=f"{name} must be above 0"):
        predict_costs(DENSE, n_ranks=2, **speeds)


@pytest.mark.parametrize("per_node", [1, 3])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_ranks_measure_the_same_bandwidth(run_ranks, size, per_node):
    found = run_ranks(measure_bandwidth, size, per_node)
    assert len(set(found)) == 1
    assert 0 < found[0] < math.inf


def test_bandwidth_is_measured_by_a_ring(run_ranks):
    def program(group):
        measure_bandwidth(group, 10_000)
        return group.counters.bytes_sent

    # Each sends 4 messages, and one number to the 2 others in the end.
    assert run_ranks(program, 3, 1) == [4 * 10_000 + 2 * 8] * 3


def test_bandwidth_is_that_of_the_fastest_time_of_the_slowest_rank(
    run_ranks, monkeypatch
):
    seconds = {0: [0.01, 0.5, 0.2, 0.4], 1: [9.0, 0.3, 0.1, 0.1]}
    now = [0.0]

    def own(group, array, op):
        assert op == "min"
        return array

    monkeypatch.setattr(_cost, "perf_counter", lambda: now[0])
    monkeypatch.setattr(_cost, "barrier", lambda group: None)
    monkeypatch.setattr(_cost, "allreduce", own)

    class OneOfTwo:
        size = 2

        def __init__(self, rank):
            self.rank = rank

    def fake(group, payload, dest, source, tag):
        assert dest == source == 1 - group.rank
        now[0] += seconds[group.rank][tag[1]]

    monkeypatch.setattr(_cost, "sendrecv", fake)
    assert measure_bandwidth(OneOfTwo(0), 1000) == pytest.approx(5_000)
    assert measure_bandwidth(OneOfTwo(1), 1000) == pytest.approx(10_000)


def test_one_rank_has_infinite_bandwidth(run_ranks):
    assert run_ranks(measure_bandwidth, 1) == [math.inf]
