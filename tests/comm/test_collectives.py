"""Collective operations on threads, against NumPy and against each other.

A rank of these tests is a thread; `per_node` of them count as one process.
"""

import threading
from itertools import cycle

import numpy as np
import pytest

from dask_ma.comm import (
    allgather,
    allreduce,
    barrier,
    broadcast,
    gather,
    reduce_scatter,
    reduce_scatter_parts,
    sendrecv,
    weighted_mean,
)
from dask_ma.comm._allreduce import _has_subtrees
from dask_ma.comm._topology import Layout, split_bounds
from dask_ma.exceptions import GroupClosedError

SIZES = [1, 2, 3, 4, 5, 8, 11]
PER_NODE = [None, 1, 2, 3, 4]
SHAPES = [(), (0,), (0, 3), (2,), (31,), (5, 13), (48,)]
DTYPES = [np.float32, np.float64, np.int64]
# They do not act together, and take turns.
ARRAYS = [*zip(SHAPES, cycle(DTYPES))]

every_layout = pytest.mark.parametrize(
    ("size", "per_node"),
    [(s, p) for s in SIZES for p in PER_NODE if p is None or p <= s],
)
some_layouts = pytest.mark.parametrize(
    ("size", "per_node"), [(1, 1), (2, 1), (4, None), (5, 2), (7, 3), (8, 4), (8, 1)]
)


@pytest.fixture(params=["whole", "halves", "parts"])
def way(request, monkeypatch):
    """Each of the ways to an allreduce, where the processes allow it."""

    def choose(layout, nbytes, overhead):
        if request.param == "halves" and not _has_subtrees(layout):
            return "parts"
        return request.param

    monkeypatch.setattr("dask_ma.comm._allreduce.quickest_way", choose)


def vector(rank, shape, dtype):
    """Values of a rank; sums of floats among them depend on the order."""
    rng = np.random.default_rng([rank, *shape])
    if np.issubdtype(dtype, np.integer):
        return np.asarray(rng.integers(-(10**12), 10**12, shape), dtype=dtype)
    scale = 10.0 ** rng.integers(-4, 5, shape)
    return np.asarray(rng.normal(size=shape) * scale, dtype=dtype)


def pairwise_sum(values):
    """Sum of neighbours, then of neighbouring sums, and so on."""
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [p[0] + p[1] if len(p) == 2 else p[0] for p in pairs]
    return values[0]


def assert_same_bits(got, expected):
    """Equal in type, shape and every bit."""
    assert isinstance(got, np.ndarray)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert got.tobytes() == expected.tobytes()


# allreduce --------------------------------------------------------------------------


@pytest.mark.each
@every_layout
def test_allreduce_sums(run_ranks, way, size, per_node):
    def program(group):
        return [allreduce(group, vector(group.rank, *array)) for array in ARRAYS]

    results = run_ranks(program, size, per_node)
    for which, array in enumerate(ARRAYS):
        inputs = [vector(rank, *array) for rank in range(size)]
        expected = np.asarray(pairwise_sum(inputs))
        exact = np.sum(inputs, axis=0, dtype=np.float64)
        scale = np.sum(np.abs(inputs), axis=0, dtype=np.float64)
        precision = 8 * np.finfo(np.float32).eps * scale.max(initial=0)
        np.testing.assert_allclose(expected, exact, atol=precision, rtol=0)
        for result in results:
            assert_same_bits(result[which], expected)


@pytest.mark.pairs
@pytest.mark.parametrize(("op", "reference"), [("max", np.max), ("min", np.min)])
@some_layouts
def test_allreduce_of_extremes(run_ranks, way, size, per_node, op, reference):
    def program(group):
        return allreduce(group, vector(group.rank, (5, 13), np.float64), op)

    inputs = [vector(rank, (5, 13), np.float64) for rank in range(size)]
    for result in run_ranks(program, size, per_node):
        assert_same_bits(result, reference(inputs, axis=0))


@some_layouts
def test_allreduce_of_several_arrays(run_ranks, way, size, per_node):
    cases = [((3, 2), np.float64), ((), np.int64), ((0,), np.float64), ((), np.float64)]

    def program(group):
        arrays = [vector(group.rank, *case) for case in cases]
        return allreduce(group, arrays), allreduce(group, tuple(arrays[:1]))

    for several, one in run_ranks(program, size, per_node):
        assert isinstance(several, list) and isinstance(one, list)
        assert len(several) == len(cases) and len(one) == 1
        assert_same_bits(one[0], several[0])
        for got, case in zip(several, cases, strict=True):
            inputs = [vector(rank, *case) for rank in range(size)]
            assert_same_bits(got, np.asarray(pairwise_sum(inputs)))


def test_arrays_of_one_dtype_travel_together(run_ranks):
    def program(group):
        allreduce(group, [np.ones(3), np.ones((2, 2)), np.array(1.0)])
        return group.counters.messages_sent

    assert run_ranks(program, 2, 1) == [1, 1]


def test_allreduce_of_an_array_that_is_not_contiguous(run_ranks, way):
    array = np.arange(24.0).reshape(4, 6)

    def program(group):
        return allreduce(group, array.T[::2])

    for result in run_ranks(program, 3):
        assert_same_bits(result, np.ascontiguousarray(3 * array.T[::2]))


def test_allreduce_without_arrays(run_ranks):
    assert run_ranks(lambda group: allreduce(group, []), 2) == [[], []]


@pytest.mark.parametrize("collective", [allreduce, reduce_scatter])
def test_unknown_operation(run_ranks, collective):
    with pytest.raises(ValueError, match=r"op must be one of .*'sum'.*got 'mean'"):
        run_ranks(lambda group: collective(group, np.ones(2), "mean"), 1)


@pytest.mark.pairs
@pytest.mark.parametrize("per_node", [None, 1, 2])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_results_are_everyones_own(run_ranks, way, size, per_node):
    def program(group):
        array = np.ones(40)
        result = allreduce(group, array)
        result += group.rank  # writeable, and nobody else's
        barrier(group)
        return array, result

    for rank, (array, result) in enumerate(run_ranks(program, size, per_node)):
        np.testing.assert_array_equal(array, np.ones(40))
        np.testing.assert_array_equal(result, np.full(40, size + rank))


@pytest.mark.parametrize("per_node", [None, 1, 2, 3])
def test_arrays_may_be_changed_as_soon_as_a_collective_returns(
    run_ranks, way, per_node
):
    size, rounds = 6, 8
    whole = np.arange(24.0)

    def program(group):
        array, wrong = np.empty(24), []
        bounds = split_bounds(24, size)
        own = slice(bounds[group.rank], bounds[group.rank + 1])
        for number in range(rounds):
            base = size * number + sum(range(size))
            array[:] = whole + number + group.rank
            total = allreduce(group, array)
            array[:] = np.nan
            wrong.append(np.any(total != size * whole + base))
            total[:] = np.nan
            array[:] = whole + number + group.rank
            part = reduce_scatter(group, array)
            array[:] = np.nan
            wrong.append(np.any(part != (size * whole + base)[own]))
            part[:] = np.nan
            array[:] = number + group.rank
            gathered = allgather(group, array)
            array[:] = np.nan
            wrong.append([g[0] for g in gathered] != [number + r for r in range(size)])
            array[:] = number
            shared = broadcast(group, array, root=number % size)
            if group.rank == number % size:
                array[:] = np.nan
            else:
                wrong.append(np.any(shared != number))
        return any(wrong)

    assert run_ranks(program, size, per_node) == [False] * size


# weighted_mean ----------------------------------------------------------------------


@some_layouts
def test_weighted_mean(run_ranks, way, size, per_node):
    weights = [(rank % 3) + (rank == 0) for rank in range(size)]  # some are 0

    def program(group):
        array = vector(group.rank, (7,), np.float64)
        weight = weights[group.rank]
        found = weighted_mean(group, array, weight)
        known = weighted_mean(group, array, weight, total=sum(weights))
        return found, known

    inputs = [vector(rank, (7,), np.float64) for rank in range(size)]
    expected = np.average(inputs, axis=0, weights=weights)
    results = run_ranks(program, size, per_node)
    for found, known in results:
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-9)
        assert_same_bits(found, results[0][0])
        assert_same_bits(known, found)


def test_weighted_mean_keeps_dtypes_and_shapes(run_ranks):
    def program(group):
        arrays = [np.ones((2, 3), np.float32), np.array(2.0), np.empty(0)]
        return weighted_mean(group, arrays, 1 + group.rank)

    for result in run_ranks(program, 3):
        assert [array.dtype.name for array in result] == ["float32"] + ["float64"] * 2
        assert [array.shape for array in result] == [(2, 3), (), (0,)]


def test_weighted_mean_of_one_rank_is_its_input(run_ranks):
    array = vector(0, (9,), np.float64)
    (result,) = run_ranks(lambda group: weighted_mean(group, array, 0.3), 1)
    assert_same_bits(result, array)
    assert not np.shares_memory(result, array)


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_weights_that_cannot_be(run_ranks, weight):
    with pytest.raises(ValueError, match="weight must be finite and not negative, got"):
        run_ranks(lambda group: weighted_mean(group, np.ones(2), weight), 1)


@pytest.mark.parametrize("total", [None, 0.0])
def test_weights_that_are_all_zero(run_ranks, total):
    with pytest.raises(ValueError, match=r"sum to more than 0, got 0\.0"):
        run_ranks(lambda g: weighted_mean(g, np.ones(2), 0, total=total), 3)


# The other collectives --------------------------------------------------------------


@every_layout
def test_reduce_scatter(run_ranks, size, per_node):
    def program(group):
        return [reduce_scatter(group, vector(group.rank, *array)) for array in ARRAYS]

    results = run_ranks(program, size, per_node)
    for which, array in enumerate(ARRAYS):
        inputs = [vector(rank, *array) for rank in range(size)]
        expected = np.ravel(pairwise_sum(inputs))
        bounds = split_bounds(expected.size, size)
        for rank, result in enumerate(results):
            assert_same_bits(result[which], expected[bounds[rank] : bounds[rank + 1]])


@pytest.mark.parametrize(
    ("size", "per_node", "n_elements", "n_messages"),
    [
        (2, 1, 100, 1),
        (4, 1, 100, 2),
        (8, 1, 100, 3),
        (16, 1, 1000, 4),
        (4, 1, 10**6, 3),  # a copy would cost more than a message
        (6, 1, 100, 5),
        (8, 2, 100, 3),  # each rank its part of what both have added up
    ],
)
def test_messages_of_reduce_scatter(run_ranks, size, per_node, n_elements, n_messages):
    def program(group):
        own = np.arange(n_elements) * (1.0 + group.rank)
        part = reduce_scatter(group, own)
        return part, group.counters.messages_sent

    total = np.arange(n_elements) * (size * (size + 1) / 2)
    parts, counts = zip(*run_ranks(program, size, per_node), strict=True)
    np.testing.assert_array_equal(np.concatenate(parts), total)
    assert set(counts) == {n_messages}


@pytest.mark.each
@every_layout
@pytest.mark.parametrize("op", ["sum", "max"])
def test_reduce_scatter_of_parts_made_in_turn(run_ranks, size, per_node, op):
    """They have the bits of those that are there at once, and are each made once."""

    def program(group):
        whole = vector(group.rank, (size, 31), np.float64)
        made = []

        def part_of(rank):
            made.append(rank)
            return whole[rank].copy()

        found = reduce_scatter_parts(group, part_of, op)
        assert sorted(made) == list(range(size))
        return found, reduce_scatter(group, whole, op)

    for found, expected in run_ranks(program, size, per_node):
        assert_same_bits(found, expected)


@pytest.mark.parametrize(("size", "per_node"), [(2, 1), (5, 1), (4, 2), (3, None)])
def test_parts_are_sent_while_others_are_made(run_ranks, size, per_node):
    """Where ranks share no process; elsewhere all are made before any is sent."""

    def program(group):
        sent = []

        def part_of(rank):
            sent.append(group.counters.messages_sent)
            return np.ones(3)

        reduce_scatter_parts(group, part_of)
        return sent

    expected = list(range(size)) if per_node == 1 else [0] * size
    assert run_ranks(program, size, per_node) == [expected] * size


@every_layout
def test_allgather_of_unequal_payloads(run_ranks, size, per_node):
    def payload(rank):
        return {"rank": rank, "w": vector(rank, (rank % 3, rank), np.float32)}

    def program(group):
        return allgather(group, payload(group.rank))

    for result in run_ranks(program, size, per_node):
        np.testing.assert_equal(result, [payload(rank) for rank in range(size)])


@pytest.mark.parametrize("per_node", [None, 1, 2])
def test_what_is_gathered_cannot_be_changed_under_other_ranks(run_ranks, per_node):
    def program(group):
        return [
            array.flags.writeable for array in allgather(group, np.ones(group.rank))
        ]

    assert run_ranks(program, 4, per_node) == [[False] * 4] * 4


@every_layout
def test_broadcast_from_every_root(run_ranks, size, per_node):
    def program(group):
        return [
            broadcast(group, np.array([group.rank, 7]), root) for root in range(size)
        ]

    for result in run_ranks(program, size, per_node):
        np.testing.assert_equal(result, [np.array([root, 7]) for root in range(size)])


@pytest.mark.parametrize("root", [0, 3])
def test_broadcast_without_copies(run_ranks, root):
    """Ranks of a process have the same array, which is theirs to read."""

    def program(group):
        found = broadcast(group, np.arange(9) + group.rank, root, copy=False)
        np.testing.assert_array_equal(found, np.arange(9) + root)
        return found

    found = run_ranks(program, 4, 2)
    for process in (found[:2], found[2:]):
        assert np.shares_memory(*process)
        assert sum(array.flags.writeable for array in process) <= 1
    assert not np.shares_memory(found[0], found[2])


def test_broadcast_costs_the_root_few_messages(run_ranks):
    def program(group):
        broadcast(group, np.zeros(4) if group.rank == 0 else None)
        return group.counters.messages_sent

    sent = run_ranks(program, 8, 1)
    assert (sent[0], sum(sent)) == (3, 7)


@pytest.mark.parametrize("root", [-1, 3])
def test_broadcast_from_a_rank_that_does_not_exist(run_ranks, root):
    with pytest.raises(ValueError, match=rf"root must be .* 0 to 2, got {root}"):
        run_ranks(lambda group: broadcast(group, 1, root), 3)


@some_layouts
def test_gather(run_ranks, size, per_node):
    def program(group):
        return [gather(group, np.full(2, group.rank), root) for root in range(size)]

    everything = [np.full(2, rank) for rank in range(size)]
    for rank, result in enumerate(run_ranks(program, size, per_node)):
        for root, gathered in enumerate(result):
            if rank == root:
                np.testing.assert_equal(gathered, everything)
            else:
                assert gathered is None


@some_layouts
def test_sendrecv_round_a_ring(run_ranks, size, per_node):
    def program(group):
        payload = np.full(3, group.rank)
        for _ in range(size - 1):
            payload = sendrecv(
                group, payload, (group.rank + 1) % size, (group.rank - 1) % size, "ring"
            )
        return payload

    for rank, result in enumerate(run_ranks(program, size, per_node)):
        np.testing.assert_array_equal(result, np.full(3, (rank + 1) % size))


@some_layouts
def test_barrier_waits_for_everybody(run_ranks, size, per_node):
    arrived, lock = [], threading.Lock()

    def program(group):
        missing = []
        for number in range(5):
            with lock:
                arrived.append(number)
            barrier(group)
            missing.append(size - arrived.count(number))
        return missing

    assert run_ranks(program, size, per_node) == [[0] * 5] * size


def test_barrier_holds_back_all_but_the_last(run_ranks):
    late = threading.Event()
    through = []

    def program(group):
        if group.rank == 3:
            assert not late.wait(0.1)  # time for the others to run on, if they could
            through.append("last arrives")
        barrier(group)
        through.append(group.rank)

    run_ranks(program, 5)
    assert through[0] == "last arrives"


def test_collectives_do_not_take_each_others_messages(run_ranks, way):
    def program(group):
        group.push("own", (group.rank + 1) % 4, 1)  # a collective's number as the tag
        results = [allreduce(group, np.array(float(n))) for n in range(3)]
        results += broadcast(group, [4.0, 5.0], root=2)
        barrier(group)
        return results, group.recv((group.rank - 1) % 4, 1)

    for results, message in run_ranks(program, 4, 2):
        np.testing.assert_array_equal(results, [0, 4, 8, 4, 5])
        assert message == "own"


@pytest.mark.parametrize(
    "collective", [allreduce, reduce_scatter, allgather, broadcast]
)
@pytest.mark.parametrize("size", [1, 3])
def test_collectives_of_a_closed_group(run_ranks, collective, size):
    def program(group):
        group.close()
        return collective(group, np.ones(3))

    with pytest.raises(GroupClosedError, match="has left its group"):
        run_ranks(program, size)


# Ranks of a process that are not consecutive ------------------------------------


@pytest.fixture
def scattered(monkeypatch):
    """Ranks go to processes at random, as after the loss of a worker."""
    from_nodes = Layout.from_nodes

    def in_disorder(names):
        names = list(names)
        order = np.random.default_rng(len(names)).permutation(len(names))
        return from_nodes([names[i] for i in order])

    monkeypatch.setattr(Layout, "from_nodes", staticmethod(in_disorder))


@pytest.mark.parametrize(("size", "per_node"), [(3, 2), (5, 2), (8, 3), (12, 4)])
def test_scattered_ranks_give_the_same(run_ranks, scattered, way, size, per_node):
    values = [vector(rank, (31,), np.float64) for rank in range(size)]
    total = pairwise_sum(values)

    def program(group):
        mine = values[group.rank]
        assert len(group.local_ranks) < size
        barrier(group)
        return (
            allreduce(group, mine),
            reduce_scatter(group, mine),
            allgather(group, mine),
            broadcast(group, mine, root=size - 1),
            gather(group, group.rank, root=1),
        )

    bounds = split_bounds(31, size)
    for rank, found in enumerate(run_ranks(program, size, per_node)):
        summed, part, gathered, given, ranks = found
        assert_same_bits(summed, total)
        assert_same_bits(part, total[bounds[rank] : bounds[rank + 1]])
        for got, value in zip(gathered, values, strict=True):
            assert_same_bits(got, value)
        assert_same_bits(given, values[-1])
        assert ranks == (list(range(size)) if rank == 1 else None)
