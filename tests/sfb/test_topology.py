"""Topologies of partial broadcasting: short ways, proofs, routes and errors."""

import os
import pickle
from itertools import combinations, product

import numpy as np
import pytest
from scipy.sparse.csgraph import floyd_warshall

from dask_ma.sfb.topology import Topology
from dask_ma.sfb.topology._graphs import (
    imase_itoh,
    is_simple,
    lower_bound,
    partial_line,
    sum_of_distances,
)
from dask_ma.sfb.topology._search import (
    ExactSearch,
    balance,
    improve,
    start_links,
)

SIZES = [(1, 1), (2, 1), (5, 1), (6, 2), (7, 2), (8, 2), (12, 4), (16, 2)]


def adjacency(topology):
    matrix = np.zeros((topology.n_ranks, topology.n_ranks), dtype=bool)
    for rank, peers in enumerate(topology.peers):
        matrix[rank, list(peers)] = True
    return matrix


def least_total(n_ranks, n_peers):
    """Of all networks; rank 0's peers may be the first ones, by symmetry."""
    choices = [
        list(combinations([q for q in range(n_ranks) if q != rank], n_peers))
        for rank in range(1, n_ranks)
    ]
    first = tuple(range(1, n_peers + 1))
    return sum_of_distances(
        np.array([(first, *rest) for rest in product(*choices)])
    ).min()


@pytest.mark.parametrize(("n_ranks", "n_peers"), SIZES)
def test_numbers_of_a_topology(n_ranks, n_peers):
    topology = Topology.optimal(n_ranks, n_peers)
    assert topology.n_ranks == n_ranks
    assert {len(peers) for peers in topology.peers} == {min(n_peers, n_ranks - 1)}
    matrix = adjacency(topology)
    expected = floyd_warshall(np.where(matrix, 1.0, 0.0))
    np.testing.assert_array_equal(topology.distances, expected)
    assert topology.distances.dtype == np.int64
    assert topology.diameter == expected.max()
    assert topology.total_distance == expected.sum()
    assert topology.lower_bound <= topology.total_distance
    for rank in range(n_ranks):
        assert topology.sources(rank) == tuple(np.flatnonzero(matrix[:, rank]))


def test_distances_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        Topology.complete(3).distances[0, 0] = 1


@pytest.mark.parametrize(
    ("n_ranks", "n_peers", "bound"),
    [
        (7, 2, 2 + 4 * 2),
        (8, 2, 2 + 4 * 2 + 3),
        (12, 4, 4 + 7 * 2),
        (4, 3, 3),
        (1, 1, 0),
    ],
)
def test_lower_bound(n_ranks, n_peers, bound):
    assert lower_bound(n_ranks, n_peers) == bound
    assert Topology.optimal(n_ranks, n_peers).lower_bound == n_ranks * bound


def test_lower_bound_of_unequal_numbers_of_peers():
    star = Topology([[1, 2, 3], [0], [0], [0]])
    assert star.lower_bound == 3 + 3 * (1 + 2 + 2)
    assert star.total_distance == star.lower_bound
    assert star.is_optimal


@pytest.mark.parametrize(
    ("n_ranks", "n_peers"), [(3, 1), (4, 1), (4, 2), (5, 2), (5, 3)]
)
def test_nothing_is_better(n_ranks, n_peers):
    least = least_total(n_ranks, n_peers)
    found = ExactSearch(n_ranks, n_peers, 10**6).run()
    assert is_simple(found)
    assert sum_of_distances(found[None])[0] == least
    assert ExactSearch(n_ranks, n_peers, int(least)).run() is None
    topology = Topology.optimal(n_ranks, n_peers)
    assert topology.total_distance == least
    assert topology.is_optimal


@pytest.mark.parametrize("n_ranks", range(3, 9))
def test_few_ranks_are_always_proven(n_ranks):
    for n_peers in range(1, n_ranks):
        assert Topology.optimal(n_ranks, n_peers).is_optimal


@pytest.mark.parametrize(("n_ranks", "total"), [(7, 74), (8, 106)])
def test_search_proves_where_the_bound_is_not_reached(n_ranks, total):
    # 74 was also found by going through all 15^6 networks of seven ranks.
    topology = Topology.optimal(n_ranks, 2)
    assert topology.total_distance == total
    assert topology.gap == total / topology.lower_bound - 1 > 0
    assert topology.is_optimal
    assert not Topology(topology.peers).is_optimal  # nothing is known of it
    found = ExactSearch(n_ranks, 2, 10**6).run()
    assert sum_of_distances(found[None])[0] == total


@pytest.mark.parametrize("n_peers", [2, 3])
def test_two_steps_wherever_that_can_be(n_peers):
    """All ranks are within two steps of each other, so nothing is better."""
    for n_ranks in range(n_peers + 2, n_peers * (n_peers + 1) + 1):
        topology = Topology.optimal(n_ranks, n_peers)
        assert topology.diameter == 2
        assert topology.is_optimal
        assert topology.gap == 0.0


@pytest.mark.parametrize(
    ("n_ranks", "n_peers", "gap"), [(12, 2, 0.0), (16, 2, 0.03), (24, 4, 0.03)]
)
def test_gap_is_small(n_ranks, n_peers, gap):
    assert Topology.optimal(n_ranks, n_peers).gap <= gap


@pytest.mark.parametrize(("n_ranks", "n_peers"), [(13, 3), (64, 2), (300, 7)])
def test_known_graphs(n_ranks, n_peers):
    """Both are simple, and no way is longer than that of the tree with Q branches."""
    longest = int(np.ceil(np.log(n_ranks) / np.log(n_peers)))
    for make in (imase_itoh, partial_line):
        links = make(n_ranks, n_peers)
        assert links.shape == (n_ranks, n_peers)
        assert is_simple(links)
        assert Topology(links).diameter <= longest
    assert (np.bincount(imase_itoh(n_ranks, n_peers).ravel()) == n_peers).all()


def test_start_where_one_graph_is_not_simple():
    assert not is_simple(imase_itoh(7, 4))
    assert is_simple(start_links(7, 4))


def test_changes_make_distances_shorter():
    start = start_links(20, 2)
    total = sum_of_distances(start[None])[0]
    better, less = improve(start, int(total) - 20)
    assert is_simple(better)
    assert sum_of_distances(better[None])[0] == less <= total - 20
    same, least = improve(start, int(total))
    assert same is start
    assert least == total


def test_balance_keeps_distances():
    start = partial_line(11, 5)
    total = sum_of_distances(start[None])[0]
    even = balance(start, total)
    assert is_simple(even)
    assert sum_of_distances(even[None])[0] <= total
    before, after = (
        np.bincount(links.ravel(), minlength=11) for links in (start, even)
    )
    assert before.max() - before.min() == 6
    assert (after == 5).all()
    regular = imase_itoh(12, 4)
    assert balance(regular, 10**6) is regular


@pytest.mark.parametrize("n_ranks", [2, 30, 64, 65, 130])
def test_sums_of_several_networks(n_ranks):
    rng = np.random.default_rng(0)
    networks = np.array(
        [
            [rng.choice(np.delete(np.arange(n_ranks), p), 1) for p in range(n_ranks)]
            for _ in range(4)
        ]
    )
    networks[0, :, 0] = (np.arange(n_ranks) + 1) % n_ranks
    for links, total in zip(networks, sum_of_distances(networks), strict=True):
        graph = np.zeros((n_ranks, n_ranks))
        graph[np.arange(n_ranks), links[:, 0]] = 1
        lengths = floyd_warshall(graph)
        if np.isfinite(lengths).all():
            assert total == lengths.sum()
        else:
            assert total > n_ranks**3


def test_as_many_peers_as_there_are_is_complete():
    for n_peers in (4, 5, 99):
        assert Topology.optimal(5, n_peers) == Topology.complete(5)
    complete = Topology.complete(5)
    assert complete.diameter == 1
    assert complete.is_optimal
    assert Topology.complete(1).peers == ((),)
    assert Topology.optimal(1, 0) == Topology.optimal(1, 3) == Topology.complete(1)
    assert Topology.complete(1).gap == 0.0
    assert Topology.complete(1).routes(0) == ((),)


def test_one_peer_is_the_ring():
    ring = Topology.optimal(5, 1)
    assert ring.peers == ((1,), (2,), (3,), (4,), (0,))
    assert ring.is_optimal
    assert ring.diameter == 4
    assert ring.routes(0) == ((1,), (), (1,), (1,), (1,))


@pytest.mark.parametrize(("n_ranks", "n_peers"), [*SIZES, (9, 8)])
def test_routes_deliver_everything_once_on_shortest_ways(n_ranks, n_peers):
    topology = Topology.optimal(n_ranks, n_peers)
    routes = [topology.routes(rank) for rank in range(n_ranks)]
    for origin in range(n_ranks):
        assert routes[origin][origin] == topology.peers[origin]
        arrivals, front = {origin: 0}, [origin]
        while front:
            sent = [(q, peer) for q in front for peer in routes[q][origin]]
            front = [peer for _, peer in sent]
            for rank, peer in sent:
                assert peer in topology.peers[rank]
                assert peer not in arrivals
                arrivals[peer] = arrivals[rank] + 1
        assert [arrivals[q] for q in range(n_ranks)] == list(topology.distances[origin])


@pytest.mark.parametrize(("n_ranks", "n_peers"), [(12, 4), (30, 4)])
def test_ranks_relay_about_equally_much(n_ranks, n_peers):
    topology = Topology.optimal(n_ranks, n_peers)
    loads = [
        sum(len(peers) for peers in topology.routes(rank)) for rank in range(n_ranks)
    ]
    assert sum(loads) == n_ranks * (n_ranks - 1)
    assert max(loads) <= 1.1 * (n_ranks - 1)


def test_every_process_finds_the_same(process_client):
    def find():
        topology = Topology.optimal(16, 2)
        return os.getpid(), [topology.peers, topology.routes(5)]

    process, found = process_client.submit(find, pure=False).result(timeout=60)
    assert process != os.getpid()
    assert found == find()[1]


def test_matrix_of_a_user():
    matrix = [[0, 1, 0], [0, 0, 1], [1, 1, 0]]
    topology = Topology.from_matrix(matrix, n_ranks=3)
    assert topology.peers == ((1,), (2,), (0, 1))
    assert topology.distances.tolist() == [[0, 1, 2], [2, 0, 1], [1, 1, 0]]
    assert topology == Topology.from_matrix(np.array(matrix, dtype=bool))
    assert hash(topology) == hash(Topology([[1], [2], [1, 0]]))
    assert topology != Topology.complete(3)
    best = Topology.optimal(12, 4)
    assert Topology.from_matrix(adjacency(best)) == best


def test_travels_without_what_can_be_found_again():
    topology = Topology.optimal(8, 2)
    topology.routes(0)
    copy = pickle.loads(pickle.dumps(topology))
    assert set(vars(copy)) == {"peers", "is_proven"}
    assert copy == topology
    assert copy.is_optimal
    assert copy.routes(3) == topology.routes(3)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0, 1, 1], [1, 0, 1]], r"must be square, .* got shape \(2, 3\)"),
        ([0, 1], r"must be square, .* got shape \(2,\)"),
        ([[0, 1], [1, 0]], "has 2 rows and columns, but there are 3 ranks"),
        ([[0, 2, 0], [0, 0, 1], [1, 0, 0]], "only True and False"),
        ([[0, 1, 0], [0, 1, 1], [1, 0, 0]], "rank 1 sends to itself"),
        (
            [[0, 1, 0], [1, 0, 0], [1, 1, 0]],
            "rank 2 cannot be reached from rank 0: each rank must have a way",
        ),
        ([[0, 1, 0], [0, 0, 1], [0, 1, 0]], "rank 0 cannot be reached from rank 1"),
    ],
)
def test_bad_matrix(matrix, message):
    with pytest.raises(ValueError, match=message):
        Topology.from_matrix(matrix, n_ranks=3)


@pytest.mark.parametrize(
    ("peers", "message"),
    [
        ([], "n_ranks must be at least 1, got 0"),
        ([[1, 1], [0]], r"rank 0 sends twice to one rank: \(1, 1\)"),
        ([[2], [0]], r"rank 0 sends to \(2,\), but the ranks are 0 to 1"),
        ([[1], [-1]], r"rank 1 sends to \(-1,\), but the ranks are 0 to 1"),
        ([[1], []], "rank 0 cannot be reached from rank 1"),
    ],
)
def test_bad_peers(peers, message):
    with pytest.raises(ValueError, match=message):
        Topology(peers)


def test_bad_numbers():
    with pytest.raises(ValueError, match="n_ranks must be at least 1, got 0"):
        Topology.optimal(0, 1)
    with pytest.raises(ValueError, match="n_ranks must be at least 1, got -1"):
        Topology.complete(-1)
    with pytest.raises(ValueError, match="n_peers must be at least 1, got 0"):
        Topology.optimal(3, 0)
