"""Collectives with a root, on threads: against allreduce, bit for bit."""

import dask
import numpy as np
import pytest

from dask_ma.comm import (
    _rooted,
    allreduce,
    broadcast_direct,
    reduce,
    reduce_and_gather,
)

ALGORITHMS = ["direct", "tree"]
LAYOUTS = [(1, 1), (2, 1), (3, None), (4, 2), (5, 2), (7, 3), (8, 1), (9, 4), (13, 5)]


def vector(rank, shape, dtype=np.float64):
    """Values of a rank; their sum depends on the order."""
    rng = np.random.default_rng([rank, *shape])
    return np.asarray(
        rng.normal(size=shape) * 10.0 ** rng.integers(-4, 5, shape), dtype=dtype
    )


@pytest.mark.pairs
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("size", "per_node"), LAYOUTS)
@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_same_bits_as_allreduce(run_ranks, algorithm, size, per_node, op):
    shapes = [(), (0,), (5, 13), (31,)]

    def program(group):
        arrays = [vector(group.rank, s) for s in shapes]
        arrays += [vector(group.rank, s, np.float32) for s in shapes]
        roots = {0, size // 2, size - 1}
        return [
            (root, reduce(group, arrays, op, root, algorithm)) for root in roots
        ], allreduce(group, arrays, op)

    for rank, (reduced, expected) in enumerate(run_ranks(program, size, per_node)):
        for root, got in reduced:
            if rank != root:
                assert got is None
                continue
            for a, b in zip(got, expected, strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_array_and_no_alias(run_ranks, algorithm):
    def program(group):
        own = np.full((2, 3), group.rank + 1.0)
        result = reduce(group, own, algorithm=algorithm)
        own[:] = -1  # the caller's array may be changed at once
        if result is not None:
            result += 0  # and the result is the caller's
        return result

    total, *rest = run_ranks(program, 4, 2)
    np.testing.assert_array_equal(total, np.full((2, 3), 10.0))
    assert rest == [None] * 3


@pytest.mark.pairs
@pytest.mark.parametrize(("size", "per_node"), LAYOUTS)
@pytest.mark.parametrize("overhead", [0, "1 MiB"])
def test_sums_with_a_word_of_each(run_ranks, size, per_node, overhead):
    """The bits of allreduce, in parts or whole; and the arrays are the caller's."""
    shapes = [(5, 13), (0,), (31,)]

    def program(group):
        arrays = [vector(group.rank, s) for s in shapes]
        arrays += [vector(group.rank, s, np.float32) for s in shapes]
        expected = allreduce(group, arrays)
        root = size // 2
        found = reduce_and_gather(group, arrays, {"word": np.full(2, group.rank)}, root)
        for array in arrays:
            array[...] = -1
        return found, expected

    with dask.config.set({"dask-ma.comm.message-overhead": overhead}):
        results = run_ranks(program, size, per_node)
    for rank, (found, expected) in enumerate(results):
        if rank != size // 2:
            assert found is None
            continue
        sums, payloads = found
        for a, b in zip(sums, expected, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.tobytes() == b.tobytes()
        assert [p["word"].tolist() for p in payloads] == [[r, r] for r in range(size)]


def test_large_sums_reach_the_root_in_parts(run_ranks):
    """About twice their bytes, where whole arrays of each rank are many times."""

    def program(group):
        reduce_and_gather(group, [np.ones(8_000)])
        return group.counters.bytes_received

    for overhead, expected in [(0, 2 * 64_000 * 7 // 8), ("1 MiB", 7 * 64_000)]:
        with dask.config.set({"dask-ma.comm.message-overhead": overhead}):
            assert run_ranks(program, 8, 1)[0] == expected


@pytest.mark.parametrize(
    ("size", "length"), [(1, 1), (2, 2), (4, 2), (5, 4), (8, 4), (16, 4), (17, 8)]
)
def test_run_length(size, length):
    """Eight ranks have two aggregators, as in the paper's figure."""
    assert _rooted.run_length(size) == length


def received(run_ranks, algorithm, size):
    """Bytes that each rank of its own process receives for 800 bytes per rank."""

    def program(group):
        reduce(group, np.ones(100), algorithm=algorithm)
        return group.counters.bytes_received

    return run_ranks(program, size, 1)


def test_traffic_follows_the_algorithm(run_ranks):
    assert received(run_ranks, "direct", 16) == [15 * 800, *[0] * 15]
    tree = received(run_ranks, "tree", 16)
    # Rank 0 leads a run of four and takes the sums of three others.
    assert tree == [6 * 800, 0, 0, 0, *[3 * 800, 0, 0, 0] * 3]


@pytest.mark.parametrize(("size", "per_node"), LAYOUTS)
def test_broadcast_direct(run_ranks, size, per_node):
    def program(group):
        root = group.size - 1
        payload = {"model": np.arange(3.0)} if group.rank == root else None
        got = broadcast_direct(group, payload, root)
        return got["model"].tolist(), group.counters.messages_sent

    results = run_ranks(program, size, per_node)
    assert [values for values, _ in results] == [[0, 1, 2]] * size
    assert [sent for _, sent in results[:-1]] == [0] * (size - 1)
    if per_node == 1:
        assert results[-1][1] == size - 1


def test_what_was_sent_may_be_changed_by_the_root(run_ranks):
    def program(group):
        payload = np.zeros(3)
        got = broadcast_direct(group, payload)
        if group.rank == 0:
            payload += 1
        return got.tolist()

    assert run_ranks(program, 4)[1:] == [[0, 0, 0]] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": "mean"}, "op must be one of .* got 'mean'"),
        ({"root": 2}, "root must be a rank from 0 to 1, got 2"),
        ({"algorithm": "ring"}, "algorithm must be one of .* got 'ring'"),
    ],
)
def test_bad_arguments(run_ranks, options, message):
    def program(group):
        return reduce(group, np.ones(2), **options)

    with pytest.raises(ValueError, match=message):
        run_ranks(program, 2)
