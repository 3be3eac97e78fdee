"""All-to-all: what comes from whom, what it costs, and who may change what."""

import numpy as np
import pytest

from dask_ma import run_spmd
from dask_ma.comm import allreduce, alltoall, alltoall_steps
from dask_ma.exceptions import GroupClosedError

LAYOUTS = [(1, 1), (2, None), (2, 1), (3, None), (5, 2), (7, 1), (7, 3), (8, 4)]
DTYPES = [np.float64, np.float32, np.int64]


def make_payload(source, dest):
    """Arrays of another shape and dtype for each pair, some of them empty."""
    rng = np.random.default_rng([source, dest])
    shape = (source % 3, dest)
    array = rng.integers(-9, 9, shape).astype(DTYPES[(source + dest) % 3])
    return {"pair": (source, dest), "arrays": (array, [np.array(dest)])}


@pytest.mark.parametrize(("size", "per_node"), LAYOUTS)
def test_everybody_gets_what_is_for_him(run_ranks, size, per_node):
    def program(group):
        return [
            alltoall(group, [make_payload(group.rank, dest) for dest in range(size)])
            for _ in range(2)
        ]

    for rank, rounds in enumerate(run_ranks(program, size, per_node)):
        expected = [make_payload(source, rank) for source in range(size)]
        for got in rounds:
            np.testing.assert_equal(got, expected)
            for one, other in zip(got, expected, strict=True):
                assert one["arrays"][0].dtype == other["arrays"][0].dtype


@pytest.mark.parametrize("cluster", ["inproc", "process", "wide"])
@pytest.mark.parametrize("size", [3, 7])
def test_on_a_cluster(request, cluster, size):
    def make(source, dest):
        return np.arange(10.0 * dest + source), [f"{source} to {dest}"]

    def program(group):
        both = alltoall(group, [make(group.rank, dest) for dest in range(group.size)])
        # What is around an array moves it to another place in the message.
        alone = alltoall(group, [make(group.rank, d)[0] for d in range(group.size)])
        arrays = [array for array, _ in both] + alone
        del arrays[group.rank], arrays[group.size + group.rank - 1]
        return both, alone, {(a.flags.aligned, a.flags.writeable) for a in arrays}

    client = request.getfixturevalue(f"{cluster}_client")
    results = run_spmd(program, client=client, n_ranks=size)
    for rank, (both, alone, flags) in enumerate(results):
        expected = [make(source, rank) for source in range(size)]
        np.testing.assert_equal(both, expected)
        np.testing.assert_equal(alone, [array for array, _ in expected])
        assert flags == {(True, False)}


@pytest.mark.parametrize("per_node", [None, 1, 2])
def test_payloads_may_be_changed_at_once_and_results_not(run_ranks, per_node):
    def program(group):
        arrays, wrong = np.empty((4, 50)), []
        for number in range(40):
            arrays[:] = (10 * number + np.arange(4.0))[:, np.newaxis]
            received = alltoall(group, list(arrays))
            own = received[group.rank].copy()
            arrays[:] = np.nan
            received[group.rank] = own
            expected = 10 * number + group.rank
            wrong.append(any(np.any(array != expected) for array in received))
            received.pop(group.rank)
            wrong.append(any(array.flags.writeable for array in received))
        return any(wrong)

    assert run_ranks(program, 4, per_node) == [False] * 4


def test_own_payload_is_the_same_object(run_ranks):
    def program(group):
        payloads = [np.ones(3) for _ in range(group.size)]
        own = alltoall(group, payloads)[group.rank]
        return own is payloads[group.rank] and own.flags.writeable

    assert run_ranks(program, 3, 2) == [True] * 3


def test_each_payload_travels_once(run_ranks):
    def program(group):
        alltoall(group, [np.ones(10 * group.rank + dest) for dest in range(6)])
        return group.counters

    for rank, counters in enumerate(run_ranks(program, 6, 2)):
        home = {rank, rank ^ 1}  # ranks 2 k and 2 k + 1 share a process
        away = [dest for dest in range(6) if dest not in home]
        assert counters.messages_sent == len(away)
        assert counters.bytes_sent == sum(8 * (10 * rank + dest) for dest in away)
        assert counters.bytes_received == sum(8 * (10 * s + rank) for s in away)
        assert counters.bytes_shared == 8 * (10 * rank + (rank ^ 1))


def test_one_sender_at_a_time(run_ranks):
    """Payloads are looked at when their turn comes, in another order on each rank."""

    def program(group):
        order = []

        class Payloads(list):
            def __getitem__(self, index):
                order.append(index)
                return super().__getitem__(index)

        alltoall(group, Payloads(range(5)))
        return order[1:]

    orders = np.array(run_ranks(program, 5))
    for step in orders.T:
        assert sorted(step) == list(range(5))


def test_no_more_than_one_long_message_is_under_way(process_client):
    def program(group):
        deliver, counts = group._deliver, []

        def count(*message):
            counts.append(len(group._under_way))
            deliver(*message)

        group._deliver = count
        alltoall(group, [np.ones(80_000)] * group.size)
        return counts, len(group._under_way)

    expected = ([0, 0, 0], 0)
    assert run_spmd(program, client=process_client, n_ranks=4) == [expected] * 4


def test_step_by_step(run_ranks):
    """What comes can be used before the rest is sent."""

    def program(group):
        payloads, order = [np.full(2, 10 * group.rank + d) for d in range(4)], []
        for source, payload in alltoall_steps(group, payloads):
            assert (payload == 10 * source + group.rank).all()
            payloads[(group.rank + len(order)) % 4][:] = -1  # has been sent
            order.append((group.rank - source) % 4)
        return order

    assert run_ranks(program, 4, 2) == [[0, 1, 2, 3]] * 4


def test_other_messages_are_left_alone(run_ranks):
    def program(group):
        after, before = (group.rank + 1) % 3, (group.rank - 1) % 3
        group.push("own", after, 1)  # a collective's number as the tag
        got = alltoall(group, [f"{group.rank} to {dest}" for dest in range(3)])
        total = allreduce(group, np.array(1.0))
        return got, float(total), group.recv(before, 1)

    for rank, result in enumerate(run_ranks(program, 3, 2)):
        assert result == ([f"{s} to {rank}" for s in range(3)], 3.0, "own")


@pytest.mark.parametrize("length", [0, 2, 4])
def test_wrong_number_of_payloads(run_ranks, length):
    message = f"payloads must have one element for each of the 3 ranks, got {length} on"
    with pytest.raises(ValueError, match=message):
        run_ranks(lambda group: alltoall(group, [None] * length), 3)


@pytest.mark.parametrize("size", [1, 3])
def test_closed_group(run_ranks, size):
    def program(group):
        group.close()
        alltoall(group, [None] * size)

    with pytest.raises(GroupClosedError, match="has left its group"):
        run_ranks(program, size)
