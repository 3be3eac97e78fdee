"""Messages between ranks that are threads."""

import threading

import numpy as np
import pytest

from dask_ma.comm import LocalGroup
from dask_ma.exceptions import CommTimeoutError, GroupClosedError


@pytest.fixture(params=[None, 1], ids=["one process", "process each"])
def pair(request):
    """Two ranks, in one process or taken to be in two."""
    return LocalGroup.create(2, request.param)


def test_rank_and_size():
    groups = LocalGroup.create(5, ranks_per_node=2)
    assert [group.rank for group in groups] == list(range(5))
    assert {group.size for group in groups} == {5}
    assert [list(g.local_ranks) for g in groups] == [[0, 1]] * 2 + [[2, 3]] * 2 + [[4]]
    assert repr(groups[3]) == "<LocalGroup rank 3 of 5>"


@pytest.mark.parametrize(
    "payload",
    [
        np.arange(6.0).reshape(2, 3),
        [np.arange(3), "text", None],
        (np.array(2.5), np.empty((0, 2))),
        {"w": np.ones(3, np.float32), "n": 7},
        "text",
        None,
    ],
)
def test_what_is_sent_arrives(pair, payload):
    first, second = pair
    first.send(payload, 1)
    got = second.recv(0)
    assert type(got) is type(payload)
    np.testing.assert_equal(got, payload)


def test_order_per_source_and_tag(pair):
    first, second = pair
    for number in range(3):
        first.push(number, 1, "a")
        first.send(-number, 1, ("b", 0))
    assert [second.recv(0, ("b", 0)) for _ in range(3)] == [0, -1, -2]
    assert [second.recv(0, "a") for _ in range(3)] == [0, 1, 2]


def test_a_rank_can_send_to_itself(pair):
    group = pair[1]
    group.send("note", 1, "own")
    assert group.recv(1, "own") == "note"


@pytest.mark.parametrize("call", ["send", "push"])
def test_sender_may_change_its_array_at_once(pair, call):
    first, second = pair
    array = np.arange(4.0)
    getattr(first, call)({"w": [array]}, 1)
    array[:] = -1
    np.testing.assert_array_equal(second.recv(0)["w"][0], np.arange(4.0))


def test_receiver_cannot_corrupt_the_sender():
    first, second = LocalGroup.create(2)
    array = np.arange(4.0)
    first.push([array], 1, copy=False)
    (got,) = second.recv(0)
    assert np.shares_memory(got, array)
    with pytest.raises(ValueError, match="read-only"):
        got[:] = 0
    array[0] = 5  # the sender's own view stays writeable


def test_messages_to_another_process_never_share_memory():
    first, second = LocalGroup.create(2, ranks_per_node=1)
    array = np.arange(4.0)
    first.push(array, 1, copy=False)
    assert not np.shares_memory(second.recv(0), array)


def test_poll(pair):
    first, second = pair
    assert second.poll(0, "t") == (False, None)
    first.send("x", 1, "t")
    assert second.poll(0, "t") == (True, "x")
    assert second.poll(0, "t") == (False, None)


def test_counters_between_processes():
    first, second = LocalGroup.create(2, ranks_per_node=1)
    first.send(np.zeros(10), 1)
    first.push({"a": np.zeros(3, np.float32), "b": "text"}, 1)
    first.send("no array", 1, "t")
    second.recv(0)
    second.recv(0)
    second.poll(0, "t")
    sent, received = first.counters.as_dict(), second.counters.as_dict()
    assert (sent["messages_sent"], sent["bytes_sent"]) == (3, 92)
    assert (received["messages_received"], received["bytes_received"]) == (3, 92)
    assert sent["bytes_shared"] == received["messages_sent"] == 0


def test_counters_within_a_process():
    first, second = LocalGroup.create(2)
    first.send(np.zeros(10), 1)
    second.recv(0)
    assert first.counters.as_dict()["bytes_shared"] == 80
    for counters in (first.counters, second.counters):
        assert counters.messages_sent == counters.messages_received == 0
        assert counters.bytes_sent == counters.bytes_received == 0


def test_waiting_is_counted_even_if_in_vain(pair):
    with pytest.raises(CommTimeoutError):
        pair[0].recv(1, timeout=0.05)
    assert pair[0].counters.seconds_waiting >= 0.05


def test_time_out_comes_from_the_configuration(pair, configured):
    with configured({"dask-ma.comm.timeout": "20ms"}):
        with pytest.raises(CommTimeoutError, match=r"rank 1 .* rank 0 .* 0\.02 s"):
            pair[1].recv(0, "never")


@pytest.mark.parametrize("rank", [-1, 2])
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda g, r: g.send("x", r), "dest"),
        (lambda g, r: g.push("x", r), "dest"),
        (lambda g, r: g.recv(r), "source"),
        (lambda g, r: g.poll(r), "source"),
    ],
    ids=["send", "push", "recv", "poll"],
)
def test_ranks_that_do_not_exist(pair, rank, call, name):
    with pytest.raises(ValueError, match=rf"{name} must be .* 0 to 1, got {rank}"):
        call(pair[0], rank)


@pytest.mark.parametrize("sizes", [(0, None), (-1, None), (2, 0)])
def test_sizes_that_cannot_be(sizes):
    with pytest.raises(ValueError, match="must be at least 1, got"):
        LocalGroup.create(*sizes)


CALLS = [
    lambda g: g.send("x", 0),
    lambda g: g.push("x", 0),
    lambda g: g.recv(0),
    lambda g: g.poll(0),
    lambda g: g.flush(),
    lambda g: g.raise_if_closed(),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_group_says_so(pair, call):
    with pair[1]:
        pair[0].send("unread", 1)
    with pytest.raises(GroupClosedError, match="rank 1 has left"):
        call(pair[1])


def test_a_message_to_a_rank_that_has_left(pair):
    pair[1].close()
    with pytest.raises(GroupClosedError, match="rank 1 has left"):
        pair[0].send("x", 1)


@pytest.mark.parametrize("call", CALLS)
def test_abort_reaches_every_rank(call):
    groups = LocalGroup.create(3)
    groups[2].abort(GroupClosedError("rank 2 gave up"))
    for group in groups:
        with pytest.raises(GroupClosedError, match="rank 2 gave up"):
            call(group)


def test_abort_wakes_a_rank_that_waits(pair):
    caught = []

    def wait():
        with pytest.raises(GroupClosedError, match="stop"):
            pair[0].recv(1, timeout=60)
        caught.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    pair[1].abort(GroupClosedError("stop"))
    thread.join(60)
    assert caught


# Any of several messages, and a second thread -----------------------------------------


def test_a_rank_waits_for_any_of_several_messages(pair):
    first, second = pair
    timer = threading.Timer(0.05, second.push, (np.ones(2), 0, "b"))
    timer.start()
    first.wait_any([(0, "a"), (1, "a"), (1, "b")])
    timer.join()
    assert 0.02 < first.counters.seconds_waiting < 30
    assert first.counters.messages_received == 0  # the message has not been taken
    arrived, payload = first.poll(1, "b")
    assert arrived
    np.testing.assert_array_equal(payload, 1)
    (span,) = first.trace.spans()
    assert (span["kind"], span["peer"]) == ("wait", -1)
    assert span["stop"] - span["start"] == pytest.approx(
        first.counters.seconds_waiting, abs=1e-6
    )


@pytest.mark.parametrize("by_configuration", [False, True])
def test_a_wait_for_any_ends_in_time(pair, configured, by_configuration):
    group = pair[0]
    with pytest.raises(CommTimeoutError, match=r"within 0\.02 s"):
        if by_configuration:
            with configured({"dask-ma.comm.timeout": "20ms"}):
                group.wait_any([(1, "a")])
        else:
            group.wait_any([(1, "a")], timeout=0.02)
    assert group.counters.seconds_waiting >= 0.02


def test_a_wait_for_any_ends_with_the_group(pair):
    timer = threading.Timer(0.05, pair[1].abort, (GroupClosedError("stop"),))
    timer.start()
    with pytest.raises(GroupClosedError, match="stop"):
        pair[0].wait_any([(1, "a")], timeout=60)
    timer.join()


def test_a_duplicate_counts_for_itself_and_shares_the_messages(pair):
    first, second = pair
    first.push(np.ones(3), 1, "before")
    before = first.counters.as_dict()
    duplicate = first.for_thread()
    assert (duplicate.rank, duplicate.size, type(duplicate)) == (0, 2, type(first))
    assert not any(duplicate.counters.as_dict().values())
    assert len(duplicate.trace.spans()) == 0
    second.push(np.ones(2), 0, "a")
    second.push(np.ones(2), 0, "b")
    duplicate.push(np.zeros(5), 1, "by duplicate")
    np.testing.assert_array_equal(duplicate.recv(1, "a"), 1)
    assert first.counters.as_dict() == before
    assert first.poll(1, "a") == (False, None)
    assert first.poll(1, "b")[0]
    assert len(second.recv(0, "by duplicate")) == 5
    counters = duplicate.counters
    assert counters.bytes_sent + counters.bytes_shared == 40
    assert {"send"} <= set(duplicate.trace.spans()["kind"]) <= {"send", "wait"}
    assert (first.trace.spans()["kind"] == "send").sum() == 1


def test_a_duplicate_serves_in_another_thread(pair):
    first, second = pair
    duplicate = first.for_thread()

    def serve():
        for _ in range(50):
            duplicate.wait_any([(0, "question"), (1, "question")])
            for rank in (0, 1):
                arrived, number = duplicate.poll(rank, "question")
                if arrived:
                    duplicate.push(number + 1, rank, "answer")

    thread = threading.Thread(target=serve)
    thread.start()
    for number in range(25):
        for group in (first, second):
            group.push(number, 0, "question")
            assert group.recv(0, "answer", timeout=60) == number + 1
    thread.join(60)
    assert not thread.is_alive()
    assert duplicate.counters.seconds_waiting > 0


def test_a_duplicate_ends_with_its_rank(pair):
    duplicate = pair[0].for_thread()
    pair[0].close()
    for call in (
        lambda: duplicate.wait_any([(1, "a")], timeout=60),
        lambda: duplicate.poll(1, "a"),
        lambda: duplicate.push("x", 1),
        duplicate.flush,
    ):
        with pytest.raises(GroupClosedError, match="rank 0 has left"):
            call()
