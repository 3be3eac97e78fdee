"""How much the collective operations send, by the counters."""

import numpy as np
import pytest

from dask_ma.comm import allgather, allreduce, barrier, reduce_scatter
from dask_ma.comm._allreduce import quickest_way
from dask_ma.comm._topology import Layout


def bytes_sent(run_ranks, size, per_node, collective=allreduce, length=24_000):
    """Bytes that each rank sends to other processes in one collective."""

    def program(group):
        collective(group, np.ones(length))
        return group.counters.bytes_sent

    return run_ranks(program, size, per_node)


@pytest.fixture
def in_parts(configured):
    """Messages cost nothing by themselves."""
    with configured({"dask-ma.comm.message-overhead": 0}):
        yield


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 12])
def test_allreduce_sends_no_more_than_it_must(run_ranks, in_parts, size):
    nbytes = 24_000 * 8
    expected = 2 * (size - 1) * nbytes // size
    assert bytes_sent(run_ranks, size, per_node=1) == [expected] * size


@pytest.mark.parametrize("collective", [allreduce, reduce_scatter])
@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_of_a_process_add_no_traffic(
    run_ranks, in_parts, collective, nodes, threads
):
    alone = bytes_sent(run_ranks, nodes, 1, collective)
    shared = bytes_sent(run_ranks, nodes * threads, threads, collective)
    assert sum(shared) == sum(alone)
    assert len(set(shared)) == 1  # and all threads take the same part in it


@pytest.mark.parametrize(
    ("size", "per_node", "n_steps"), [(8, 1, 3), (5, 1, 3), (12, 4, 2), (6, 6, 0)]
)
def test_one_rank_of_a_process_takes_part_in_a_barrier(
    run_ranks, size, per_node, n_steps
):
    def program(group):
        barrier(group)
        return group.counters.messages_sent

    expected = [0 if rank % per_node else n_steps for rank in range(size)]
    assert run_ranks(program, size, per_node) == expected


def test_ranks_of_one_process_send_nothing(run_ranks):
    assert bytes_sent(run_ranks, 4, 4) == [0] * 4


def test_what_is_sent_is_received(run_ranks):
    def program(group):
        allreduce(group, np.ones(5000))
        allgather(group, np.ones(group.rank))
        return group.counters

    counters = run_ranks(program, 6, 2)
    for kind in ("bytes", "messages"):
        sent = sum(getattr(c, f"{kind}_sent") for c in counters)
        received = sum(getattr(c, f"{kind}_received") for c in counters)
        assert sent == received > 0


@pytest.mark.parametrize("collective", [allreduce, allgather])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 13, 16])
@pytest.mark.parametrize("per_node", [1, 3])
def test_no_rank_sends_to_all(run_ranks, collective, size, per_node):
    """A message for each doubling of what the processes know."""

    def program(group):
        collective(group, np.ones(100))
        return group.counters.messages_sent

    n_nodes = -(-size // per_node)
    n_steps = int(np.ceil(np.log2(n_nodes)))
    sent = run_ranks(program, size, per_node)
    assert sent == [n_steps * (rank % per_node == 0) for rank in range(size)]


@pytest.mark.parametrize(
    ("size", "overhead", "expected"),
    [
        (
            4,
            "200 B",
            2,
        ),  # the whole twice; or 4 halves, quarters of 1.5 times the array
        (4, "199 B", 4),
        (5, "704 B", 3),  # the sums of six subtrees in three steps; or 8 fifths
        (5, "703 B", 8),
    ],
)
def test_arrays_go_whole_as_long_as_messages_are_dear(
    run_ranks, configured, size, overhead, expected
):
    def program(group):
        allreduce(group, np.ones(100))
        return group.counters.messages_sent

    with configured({"dask-ma.comm.message-overhead": overhead}):
        assert run_ranks(program, size, 1) == [expected] * size


@pytest.mark.parametrize("size", [4, 8, 16])
def test_large_arrays_go_in_few_messages(run_ranks, in_parts, size):
    """And in the bits of ranks that share processes, which go another way."""

    def program(group):
        rng = np.random.default_rng(group.rank)
        values = [rng.normal(size=n) for n in (3, 1000, 1024)]
        found = [allreduce(group, value).tobytes() for value in values]
        values[1][:] = 0  # the others have what they need
        least = allreduce(group, values[2], "min").tobytes()
        return group.counters.messages_sent, (*found, least)

    results = run_ranks(program, size, 1)
    assert [sent for sent, _ in results] == [8 * (size.bit_length() - 1)] * size
    there = run_ranks(program, size, 2)
    assert {found for _, found in results} == {found for _, found in there}
    assert len({found for _, found in results}) == 1


@pytest.mark.parametrize(
    ("size", "per_node", "expected"),
    [
        (6, 1, [6, 6, 4, 4, 2, 2]),  # a team of four, and one of two
        (7, 1, [6, 6, 5, 4, 3, 2, 1]),
        (12, 2, [6, 0, 6, 0, 4, 0, 4, 0, 2, 0, 2, 0]),
        (11, 2, [6, 0, 6, 0, 4, 0, 4, 0, 2, 0, 2]),  # alone in its process
    ],
)
def test_messages_by_halves(run_ranks, monkeypatch, size, per_node, expected):
    """Of processes that are no power of two; every rank has the bits of the others."""
    monkeypatch.setattr("dask_ma.comm._allreduce.quickest_way", lambda *args: "halves")

    def program(group):
        values = np.random.default_rng(group.rank).normal(size=1003)
        total = allreduce(group, values)
        values[:] = 0  # the others have what they need
        found = total.tobytes()
        total[:] = 0
        return group.counters.messages_sent, found, allreduce(group, values).any()

    results = run_ranks(program, size, per_node)
    assert [sent for sent, _, _ in results] == expected
    [found] = {found for _, found, _ in results}
    rows = [np.random.default_rng(rank).normal(size=1003) for rank in range(size)]
    np.testing.assert_allclose(np.frombuffer(found), np.sum(rows, axis=0), atol=1e-12)
    assert not any(left for _, _, left in results)


@pytest.mark.parametrize(
    ("nodes", "nbytes", "way"),
    [
        (range(1000), 1 << 14, "whole"),
        (range(1000), 1 << 20, "halves"),
        (range(3), 1 << 20, "parts"),
        (np.arange(1000) // 2, 1 << 20, "halves"),
        (np.arange(1999) // 2, 1 << 20, "halves"),
        (np.arange(3000) // 3, 1 << 22, "whole"),  # three ranks are no subtree
        (np.arange(1000) % 500, 1 << 22, "whole"),  # no neighbours in a process
        ([0, 1, 1, *range(2, 500)], 1 << 22, "whole"),
        ([0, 0], 1 << 30, "parts"),
        ([0, 0, 1, 1], 1 << 18, "whole"),
        ([0, 0, 1, 1], 1 << 19, "parts"),
        ([0, 1], 1 << 30, "whole"),
    ],
)
def test_the_way_of_an_allreduce(nodes, nbytes, way):
    layout = Layout.from_nodes(list(nodes))
    assert quickest_way(layout, nbytes, 1 << 18) == way


def test_bytes_of_whole_arrays(run_ranks):
    """A power of two of processes sends the array in each step, and no more."""
    for size in (2, 4, 8):
        sent = bytes_sent(run_ranks, size, 1, length=50)
        assert sent == [400 * size.bit_length() - 400] * size
