"""The sending side of a group, without a cluster."""

import asyncio
import threading
import time

import numpy as np
import pytest
from distributed.comm import CommClosedError
from waiting import until

from dask_ma.comm import _lines, close_run
from dask_ma.comm._plugin import registry
from dask_ma.exceptions import (
    CommTimeoutError,
    GroupClosedError,
    PeerLostError,
    StaleRunError,
)


def test_messages_wait_until_the_first_has_been_taken(sending_group):
    """A rank that has not started keeps one message of each other one."""
    arrived, seen, is_started = [], [], threading.Event()

    async def when_started():
        while not is_started.is_set():
            await asyncio.sleep(0.001)
        arrived.append(0)

    def deliver(payload):
        seen.append(payload)
        return arrived.append(payload) if payload else when_started()

    group = sending_group(deliver)
    for number in range(10):
        group.push(number, 1)
    assert until(lambda: seen)
    time.sleep(0.05)
    assert seen == [0]
    is_started.set()
    group.flush()
    assert arrived == list(range(10))


def test_answers_to_short_messages_are_gathered(sending_group, monkeypatch):
    """Only those that somebody waits for come at once."""
    monkeypatch.setattr("dask_ma.comm._arrivals._LAZY", 60.0)
    arrived = []
    group = sending_group(arrived.append)
    group.send("first", 1)  # one answer to the question, one to the message
    for number in range(50):
        group.push(number, 1)
    group.flush()
    assert len(arrived) == 51
    assert group._worker.n_answers <= 10


def test_a_message_that_was_sent_is_not_kept_for_its_answer(sending_group, monkeypatch):
    monkeypatch.setattr("dask_ma.comm._arrivals._LAZY", 60.0)
    arrived = []
    group = sending_group(arrived.append)
    group.send("first", 1)
    group.push(np.zeros(1000), 1)
    assert until(lambda: len(arrived) == 2)
    [message] = group._under_way
    assert until(lambda: message.content is None)
    assert not message.future.done()


def test_nobody_waits_for_gathered_answers(sending_group, monkeypatch):
    monkeypatch.setattr("dask_ma.comm._arrivals._LAZY", 60.0)
    arrived = []
    group = sending_group(arrived.append)
    group.send(np.zeros(3), 1)
    for _ in range(3):
        group.push(np.zeros(3), 1)
        group.push(np.zeros(1 << 17), 1, copy=False)
        group.take_back()
        assert not any(message.is_lent for message in group._under_way)
        group.push(np.zeros(3), 1)
        group.flush()
        group.push(np.zeros(3), 1)
    second = group.for_thread()
    second.push(np.zeros(3), 1)
    second.flush()
    group._push_buffer = 500
    for _ in range(10):
        group.push(np.zeros(3), 1)
        assert group._bytes_under_way <= 500
    group.send(np.zeros(3), 1)
    assert len(arrived) == 25


def test_a_connection_stays_for_later_runs(sending_group, monkeypatch):
    group = sending_group([].append)
    group.send(1, 1)
    line, sender = group._routes[1].line, group._worker
    assert _lines.line_of(sender, "tcp://there:2") is line
    for _ in range(3):
        group.send(1, 1)
    assert sender.n_connections == 1


def test_a_connection_that_was_closed_is_made_again(sending_group):
    arrived = []
    group = sending_group(arrived.append)
    group.send(1, 1)
    line, sender = group._routes[1].line, group._worker

    async def close():
        await line._comm.close()

    sender.call(close())
    group.send(2, 1)
    assert arrived == [1, 2] and sender.n_connections == 2


@pytest.mark.parametrize("is_idle", [True, False])
def test_connections_that_are_too_many_rest(sending_group, monkeypatch, is_idle):
    """One that is in use rests when its messages have been answered."""
    monkeypatch.setattr(_lines, "_MOST_OPEN", 1)
    monkeypatch.setattr(_lines, "_AT_REST", 0.01)
    may_arrive, arrived = threading.Event(), []

    async def when_it_may(payload):
        while not may_arrive.is_set():
            await asyncio.sleep(0.001)
        arrived.append(payload)

    group = sending_group(when_it_may)
    if is_idle:
        may_arrive.set()
    group.push(1, 1)
    line = group._routes[1].line
    assert until(lambda: line._comm is not None)
    if is_idle:
        group.flush()
    _lines.line_of(group._worker, "tcp://elsewhere:3")
    assert list(_lines._lines[group._worker].recent) == ["tcp://elsewhere:3"]
    may_arrive.set()
    assert until(lambda: line._comm is None)
    group.send(2, 1)
    assert arrived == [1, 2]
    assert until(lambda: line._comm is None)


def test_a_connection_that_is_used_stays_though_others_are_asked_for(
    sending_group, monkeypatch
):
    monkeypatch.setattr(_lines, "_MOST_OPEN", 1)
    monkeypatch.setattr(_lines, "_AT_REST", 60.0)
    group = sending_group([].append)
    group.send(0, 1)
    line = group._routes[1].line
    _lines.line_of(group._worker, "tcp://elsewhere:3")
    assert until(lambda: line._timer is not None)
    for number in range(5):
        group.send(number, 1)
    assert group._worker.n_connections == 1


def test_connections_that_nobody_asks_for_are_forgotten(sending_group, monkeypatch):
    monkeypatch.setattr(_lines, "_MOST_OPEN", 1)
    group = sending_group([].append)
    for number in range(5):
        _lines.line_of(group._worker, f"tcp://gone:{number}")
    lines = _lines._lines[group._worker]
    assert until(lambda: len(lines.every) == 1)
    assert list(lines.recent) == ["tcp://gone:4"]


def test_a_forgotten_connection_ends_with_its_worker(sending_group, monkeypatch):
    monkeypatch.setattr(_lines, "_MOST_OPEN", 1)
    is_under_way = threading.Event()

    async def hold(payload):
        is_under_way.set()
        await asyncio.sleep(60)

    group = sending_group(hold)
    group.push(1, 1)
    assert is_under_way.wait(30)
    _lines.line_of(group._worker, "tcp://elsewhere:3")

    async def end():
        _lines.end_lines(group._worker)

    group._worker.call(end())
    with pytest.raises(GroupClosedError, match="is closing"):
        group.flush()


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_worker_that_closes_fails_what_is_under_way(sending_group, is_sent):
    is_under_way = threading.Event()

    async def hold(payload):
        is_under_way.set()
        await asyncio.sleep(60)

    group = sending_group(hold, n_deaf=0 if is_sent else 10**9)
    group.push(1, 1)
    group.push(2, 1)
    if is_sent:
        assert is_under_way.wait(30)

    async def end():
        _lines.end_lines(group._worker)

    group._worker.call(end())
    with pytest.raises(GroupClosedError, match="is closing"):
        group.flush()


def test_short_messages_are_copies_and_need_no_answer(sending_group):
    """Arrays of longer ones are lent until they arrive, also behind short ones."""
    arrived, may_arrive = [], threading.Event()

    async def when_it_may(payload):
        while not may_arrive.is_set():
            await asyncio.sleep(0.001)
        arrived.append(payload.copy())

    group = sending_group(when_it_may)
    short, long = np.zeros(3), np.zeros(1 << 17)
    group.push(short, 1, copy=False)
    group.take_back()
    assert not arrived
    short[:] = 1
    group.push(long, 1, copy=False)
    threading.Timer(0.05, may_arrive.set).start()
    group.take_back()
    long[:] = 1
    assert len(arrived) == 2 and not np.concatenate(arrived).any()
    group.push(short, 1, copy=False)
    group.flush()
    assert arrived[2].all()


def test_a_short_message_that_does_not_arrive(sending_group):
    """The next call raises, or the one after it."""
    group = sending_group(refuse(CommClosedError("reset")))
    group.push("x", 1)
    with pytest.raises(PeerLostError, match="cannot reach rank 1"):
        for _ in range(1000):
            group.take_back()
            time.sleep(0.01)


def test_a_worker_is_asked_until_it_takes_messages(sending_group):
    arrived = []
    group = sending_group(arrived.append, n_deaf=2)
    group.push("first", 1)
    group.push("second", 1)
    group.flush()
    assert arrived == ["first", "second"]


def test_a_worker_that_never_takes_messages_is_named(sending_group, configured):
    with configured({"dask-ma.launch.start-timeout": "20 ms"}):
        group = sending_group([].append, n_deaf=10**9)
        with pytest.raises(CommTimeoutError, match=r"there:2 has taken no .* 0\.02 s"):
            group.send("x", 1)


def refuse(error):
    async def deliver(payload):
        raise error

    return deliver


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (CommTimeoutError("rank 1 did not start"), CommTimeoutError, "^rank 1 did not"),
        (StaleRunError("rank 1 has ended"), StaleRunError, "^rank 1 has ended"),
        (
            CommClosedError("reset"),
            PeerLostError,
            "0 cannot reach rank 1 .*:2: .*reset",
        ),
        (
            ConnectionRefusedError("no"),
            PeerLostError,
            "0 cannot reach rank 1 .*:2: .*no",
        ),
        (TypeError("cannot pickle"), TypeError, "^cannot pickle"),
    ],
)
def test_what_went_wrong_on_the_way_is_raised(sending_group, error, expected, text):
    group = sending_group(refuse(error))
    with pytest.raises(expected, match=text):
        group.send("x", 1)
    # The rank may not be sending at that moment: whatever it does next fails too.
    with pytest.raises(expected, match=text):
        group.recv(1)


def test_a_message_that_is_not_taken(sending_group, configured):
    async def hold(payload):
        await asyncio.sleep(60)

    group = sending_group(hold)
    with configured({"dask-ma.comm.timeout": "20 ms"}):
        with pytest.raises(CommTimeoutError, match=r"rank 0 was not taken .* 0\.02 s"):
            group.send("x", 1)
    assert group.counters.seconds_waiting >= 0.02


def test_the_end_of_a_run_is_noticed_while_a_message_is_under_way(sending_group):
    """Nobody takes it, and nobody refuses it: the other worker hangs."""
    is_sent = threading.Event()

    async def hang(payload):
        is_sent.set()
        await asyncio.sleep(60)

    group = sending_group(hang)
    group.push(1, 1)

    def end():
        is_sent.wait(10)
        close_run("test-sending", "for a test")

    ending = threading.Thread(target=end)
    ending.start()
    with pytest.raises(GroupClosedError, match="for a test"):
        group.flush()
    ending.join()
    registry._closed.pop(("test-sending", None))


def test_an_error_that_cannot_be_sent(sending_group):
    class Local(Exception):
        def __reduce__(self):
            raise ValueError("no")

    group = sending_group(refuse(Local("of the other end")))
    with pytest.raises(RuntimeError, match="Local.*of the other end"):
        group.send("x", 1)
