"""Who gets which factors, how often, and in which form."""

import threading
from collections import Counter

import numpy as np
import pytest
from scipy import sparse

from dask_ma.sfb.exchange._compression import Compressed
from dask_ma.sfb.exchange._exchange import (
    FactorExchange,
    contiguous,
    scaled,
    with_short_indices,
)
from dask_ma.sfb.exchange._packets import Packet
from dask_ma.sfb.exchange._staleness import Staleness
from dask_ma.sfb.model._factors import Factors
from dask_ma.sfb.topology import Topology

RING_AND_BACK = [[0, 1, 0, 0], [0, 0, 1, 0], [0, 1, 0, 1], [1, 0, 0, 0]]
TOPOLOGIES = [
    Topology.complete(1),
    Topology.complete(2),
    Topology.complete(5),
    Topology.optimal(2, 1),
    Topology.optimal(5, 1),
    Topology.optimal(5, 2),
    Topology.optimal(7, 2),
    Topology.from_matrix(RING_AND_BACK),
]
every_topology = pytest.mark.parametrize("topology", TOPOLOGIES, ids=repr)


def make_exchange(group, topology, staleness=0, **options):
    options = {"relays": True, "wire_dtype": None, "tolerance": None, **options}
    return FactorExchange(group, topology, Staleness(staleness), **options)


def counting(rank, iteration):
    """Factors that name where and when they were made."""
    return Factors(np.full((1, 1), float(rank)), np.full((1, 1), float(iteration)))


def collect(run_ranks, topology, n_passes=2, n_iterations=4, **options):
    """For each rank the packets of each call; the last one of a pass is `finish`."""

    def agent(group):
        exchange = make_exchange(group, topology, **options)
        calls = []
        for start in range(0, n_passes * n_iterations, n_iterations):
            for iteration in range(start, start + n_iterations):
                own = counting(group.rank, iteration)
                calls.append(exchange.exchange(own, iteration))
            calls.append(exchange.finish())
        return exchange.gain, calls

    return run_ranks(agent, topology.n_ranks)


def names(packets):
    for packet in packets:
        u, v = packet.opened()
        assert (packet.origin, packet.iteration) == (u[0, 0], v[0, 0])
    return [packet[:2] for packet in packets]


@every_topology
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_every_update_comes_exactly_once(run_ranks, topology, staleness):
    n_ranks = topology.n_ranks
    for gain, calls in collect(run_ranks, topology, staleness=staleness):
        assert gain == 1
        for number in range(2):  # a pass leaves nothing behind
            packets = sum(calls[5 * number : 5 * number + 5], [])
            expected = np.ndindex(n_ranks, 4)
            assert Counter(names(packets)) == Counter(
                (rank, 4 * number + iteration) for rank, iteration in expected
            )


@every_topology
def test_synchronous_ranks_take_the_same_in_the_same_order(run_ranks, topology):
    for rank, (_, calls) in enumerate(collect(run_ranks, topology)):
        distances = topology.distances[:, rank]
        for iteration in range(4):
            expected = [
                (origin, iteration - max(0, distance - 1))
                for origin, distance in enumerate(distances)
                if iteration >= distance - 1
            ]
            assert names(calls[iteration]) == expected
        assert names(calls[4]) == sorted(names(calls[4]))


@every_topology
def test_without_relay_only_neighbours_are_heard(run_ranks, topology):
    results = collect(run_ranks, topology, relays=False)
    for rank, (gain, calls) in enumerate(results):
        heard = sorted([rank, *topology.sources(rank)])
        assert gain == topology.n_ranks / len(heard)
        assert names(calls[2]) == [(origin, 2) for origin in heard]
        assert calls[4] == calls[9] == []


@pytest.mark.parametrize("staleness", [1, 3])
def test_nobody_is_too_far_ahead(run_ranks, staleness):
    """The others go on while rank 1 stands still, and stop at the bound."""
    n_iterations, made = 12, [0, 0, 0]
    blocked, stuck_at = threading.Event(), []

    def agent(group):
        exchange = make_exchange(group, Topology.complete(3), staleness)
        taken = []
        for iteration in range(n_iterations):
            if group.rank == 1 and iteration == 4:
                blocked.wait(0.5)  # nobody sets it: time for the others to run away
                stuck_at.extend(made)
            taken += names(
                exchange.exchange(counting(group.rank, iteration), iteration)
            )
            made[group.rank] += 1
            # What comes early waits until this rank has made that iteration, too.
            assert max(i for _, i in taken) <= iteration
            for other in range(3):
                known = sum(origin == other for origin, _ in taken)
                assert iteration + 1 - known <= staleness
        return taken + names(exchange.finish())

    for taken in run_ranks(agent, 3):
        assert Counter(taken) == Counter(np.ndindex(3, n_iterations))
    # In exchange after `4 + staleness` they wait for the factors of iteration 4.
    assert stuck_at == [4 + staleness, 4, 4 + staleness]


def test_what_has_not_arrived_is_not_waited_for(run_ranks):
    def agent(group):
        exchange = make_exchange(group, Topology.complete(2), 2)
        if group.rank == 1:
            group.recv(0, "go")
        sizes = [len(exchange.exchange(counting(group.rank, i), i)) for i in range(2)]
        if group.rank == 0:
            group.send(None, 1, "go")
        return sizes, len(exchange.finish())

    assert run_ranks(agent, 2) == [([1, 1], 2), ([2, 2], 0)]


# The form in which factors are sent ---------------------------------------------------


def send_one(run_ranks, factors, **options):
    """What each of two ranks has of rank 0."""

    def agent(group):
        exchange = make_exchange(group, Topology.complete(2), **options)
        return exchange.exchange(factors, 0)[0]

    return run_ranks(agent, 2, 1)


def check_same_bits(packets):
    first, second = (packet.factors for packet in packets)
    assert type(first) is type(second)
    arrays = []
    for packet in packets:
        u, v = packet.opened()
        parts = [v.data, v.indices, v.indptr] if sparse.issparse(v) else [v]
        arrays.append([u, *parts])
    for a, b in zip(*arrays, strict=True):
        assert a.dtype == b.dtype and a.strides == b.strides
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["dense", "csr_array", "csr_matrix", "strided"])
@pytest.mark.parametrize("wire_dtype", [None, "float32"])
@pytest.mark.parametrize("tolerance", [None, 0.0, 0.2])
def test_a_rank_uses_what_it_sends(run_ranks, kind, wire_dtype, tolerance):
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=(6, 4)), rng.normal(size=(6, 9)) * (rng.random((6, 9)) < 0.4)
    given = Factors(u, v if kind == "dense" else sparse.csr_array(v))
    if kind == "strided":
        given = Factors(np.asfortranarray(u), np.repeat(v, 2, axis=1)[:, ::2])
    elif kind == "csr_matrix":
        given = Factors(u, sparse.csr_matrix(v))
    options = {"wire_dtype": wire_dtype, "tolerance": tolerance}
    packets = send_one(run_ranks, given, **options)
    check_same_bits(packets)
    got = packets[1].opened()
    assert got.u.dtype == (wire_dtype or np.float64)
    if kind in ("dense", "strided"):  # sparse rows are often smaller than fewer dense
        assert got.n_pairs <= (6 if tolerance is None else 4)
    error = np.linalg.norm(got.u.T @ (got.v @ np.eye(9)) - u.T @ v)
    allowed = (tolerance or 0) + (1e-6 if wire_dtype else 1e-12)
    assert error <= allowed * np.linalg.norm(u.T @ v)
    if wire_dtype:
        assert error > 0


def test_compressed_sparse_factors_travel_as_such(run_ranks):
    u = np.random.default_rng(0).normal(size=(8, 2))
    v = sparse.csr_array(np.tile(np.arange(9) % 3 == 1, (8, 1)) * u[:, :1])
    packets = send_one(run_ranks, Factors(u, v), tolerance=1e-6)
    assert all(isinstance(packet.factors, Compressed) for packet in packets)
    assert packets[1].opened().n_pairs == 1


def test_short_indices():
    v = sparse.csr_array(np.eye(3))
    v.indices, v.indptr = v.indices.astype(np.int64), v.indptr.astype(np.int64)
    short = with_short_indices(Factors(np.eye(3), v))
    assert short.v.indices.dtype == short.v.indptr.dtype == np.int32
    assert abs(short.v - v).sum() == 0
    assert with_short_indices(short) is short
    wide = sparse.csr_array((v.data, v.indices, v.indptr), shape=(3, 2**31 + 1))
    assert with_short_indices(Factors(np.eye(3), wide)).v is wide


def test_contiguous():
    values = np.arange(12.0).reshape(3, 4)
    same = contiguous(Factors(values, values))
    assert same.u is values and same.v is values
    other = contiguous(Factors(values.T, values[:, ::2].T))
    assert other.u.flags.c_contiguous and other.v.flags.c_contiguous
    np.testing.assert_array_equal(other.v, values[:, ::2].T)


def test_step_sizes_of_several_iterations():
    packets = [Packet(0, i, counting(2, 3)) for i in (0, 1)]
    factors, scale = scaled(packets[:1] * 2, lambda iteration: 0.5 / (1 + iteration))
    assert scale == 0.5 and [f.u[0, 0] for f in factors] == [2, 2]
    factors, scale = scaled(packets, lambda iteration: 0.5 / (1 + iteration))
    assert scale == 1 and [f.u[0, 0] for f in factors] == [1, 0.5]
