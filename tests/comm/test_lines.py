"""What goes wrong on a connection between two workers, and whom it concerns."""

import asyncio
import gc
import pickle
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from waiting import until

from dask_ma.comm import _arrivals, _dask, _lines
from dask_ma.comm._arrivals import Door
from dask_ma.comm._packing import Header, from_message, withdrawal
from dask_ma.comm._plugin import put_message, registry, withdraw
from dask_ma.exceptions import CommTimeoutError, FitFailedError, PeerLostError

TCP = "tcp://127.0.0.1"


def drop(payload):
    """Take a message, and keep nothing."""


def _is_held(payload):
    return isinstance(payload, str) and payload == "held"


def holder():
    """An event, and what takes messages but those called "held" only after it."""
    may_go = threading.Event()

    async def wait():
        while not may_go.is_set():
            await asyncio.sleep(0.001)

    return may_go, lambda payload: wait() if _is_held(payload) else None


class Poison:
    """Can be sent, and not be read."""

    def __init__(self, *error):
        self.error = error

    def __reduce__(self):
        return explode, self.error


def explode(error, *args):
    raise error(*args)


class Odd(Exception):
    """Can be pickled, and not be read."""

    def __init__(self, text, number):
        super().__init__(f"{text} {number}")


# Fairness -----------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["inproc://", TCP])
def test_the_event_loop_gets_its_turn_while_messages_flow(sending_group, protocol):
    arrived, turns, is_over = [], [], threading.Event()
    group = sending_group(arrived.append, protocol=protocol)
    group.send("first", 1)
    line, loop = group._routes[1].line, group._worker.loop.asyncio_loop

    async def count():
        while not is_over.is_set():
            turns.append((line._n_sent, len(arrived)))
            await asyncio.sleep(0)

    is_filled = threading.Event()
    loop.call_soon_threadsafe(is_filled.wait, 30)
    counting = asyncio.run_coroutine_threadsafe(count(), loop)
    for number in range(1000):
        group.push(number, 1)
    is_filled.set()
    group.flush()
    is_over.set()
    counting.result(30)
    assert arrived == ["first", *range(1000)]
    assert np.diff(turns, axis=0).max(initial=0) <= 16


def test_messages_without_arrays_count(sending_group):
    may_go, deliver = holder()
    group = sending_group(deliver)
    group.send("first", 1)
    group._push_buffer = 100_000
    for payload in ("x" * 30_000, b"x" * 30_000, "held"):
        group.push(payload, 1)
    for _ in range(20):
        group.push("x" * 30_000, 1)
        assert 30_000 <= group._bytes_under_way <= 100_000
        may_go.set()
    group.flush()
    assert group._bytes_under_way == 0


def test_the_number_of_messages_under_way_is_limited(sending_group, monkeypatch):
    monkeypatch.setattr(_dask, "_MOST_UNDER_WAY", 8)
    monkeypatch.setattr(_arrivals, "_LAZY", 60.0)
    arrived = []
    group = sending_group(arrived.append)
    for number in range(100):
        group.push(number, 1)
        assert len(group._under_way) <= 8
    group.flush()
    assert arrived == list(range(100))


# Messages that cannot be read ---------------------------------------------------------


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize(
    ("poison", "expected", "text"),
    [
        (Poison(ValueError, "bad"), ValueError, "^bad"),
        (Poison(FileNotFoundError, 2, "none"), FitFailedError, "cannot be read.*none"),
        (Poison(TimeoutError, "late"), FitFailedError, "cannot be read.*late"),
        (Poison(EOFError, "short"), EOFError, "short"),
        (Poison(Odd, "odd", 3), RuntimeError, "Odd.*odd 3"),
    ],
)
def test_a_message_that_cannot_be_read_concerns_its_run_alone(
    sending_group, is_long, poison, expected, text
):
    may_go, deliver = holder()
    group = sending_group(deliver, protocol=TCP)
    other = sending_group.another(group)
    other.push("held", 1)
    group.send("good", 1)
    with pytest.raises(expected, match=text):
        group.send([np.zeros(10**5) if is_long else 0, poison], 1)
    may_go.set()
    other.flush()
    other.send(np.zeros(10**5), 1)
    assert group._worker.n_connections == 1


@pytest.mark.parametrize("length", [0, 10**5])
def test_a_message_that_cannot_be_packed_does_not_count(sending_group, length):
    """The answers to later ones are not taken for those to others."""
    group = sending_group(drop, protocol=TCP)
    other = sending_group.another(group)
    with pytest.raises(TypeError, match="serialize"):
        group.send([np.zeros(length), threading.Lock()], 1)
    for number in range(3):
        other.send(number, 1)
    assert not group._routes[1].line._unanswered


def test_a_refusal_that_cannot_be_read():
    error = _lines._loaded(pickle.dumps(Odd("odd", 3)))
    assert isinstance(error, FitFailedError) and "unreadably" in str(error)
    assert str(_lines._loaded(pickle.dumps(ValueError("good")))) == "good"


def test_a_connection_that_cannot_be_read_is_closed(sending_group):
    """Whoever sends must not wait for answers that never come."""
    may_go, deliver = holder()
    group = sending_group(deliver)
    group.send("first", 1)
    (comm,) = group._worker.comms
    is_broken = threading.Event()

    async def fail():
        is_broken.set()
        raise TimeoutError("broken")

    comm.read = fail
    group.push("held", 1)
    with pytest.raises(PeerLostError, match="cannot reach rank 1"):
        group.flush()
    assert is_broken.is_set()


# What is kept -------------------------------------------------------------------------


def test_nothing_is_kept_of_a_message_once_it_is_there(sending_group):
    group = sending_group(drop)
    array = np.zeros(10**5)
    ref = weakref.ref(array)
    group.push(array, 1, copy=False)
    group.flush()
    del array
    assert until(lambda: gc.collect() is not None and ref() is None)


def test_payloads_of_pushes_are_forgotten_before_the_next_call(sending_group):
    group = sending_group(drop)
    group.send("first", 1)
    array = np.zeros(10**5)
    ref = weakref.ref(array)
    group.push(array, 1, copy=False)
    del array
    assert until(lambda: gc.collect() is not None and ref() is None)
    assert len(group._under_way) == 1
    assert group._under_way[0].is_awaited  # nobody has to ask for the answer
    group.push("x", 1)
    assert len(group._under_way) == 1


def test_a_route_is_forgotten_with_its_group(sending_group):
    group = sending_group(drop)
    group.send(np.zeros(10**5), 1)
    route = weakref.ref(group._routes.pop(1))
    assert until(lambda: gc.collect() is not None and route() is None)


# Ranks that have gone -----------------------------------------------------------------


def test_a_rank_that_ends_withdraws_what_waits(sending_group):
    may_go, deliver = holder()
    group = sending_group(deliver, protocol=TCP)
    group.push("held", 1)
    line, sender = group._routes[1].line, group._worker
    assert until(lambda: line._unanswered)
    group.close()
    assert until(lambda: sender.withdrawn)
    assert sender.withdrawn == [("test-sending", 0)]
    assert sender.n_connections == 1
    may_go.set()


@pytest.mark.parametrize("is_at_once", [False, True])
def test_a_held_message_does_not_outlive_its_rank(sending_group, is_at_once):
    """Also if the rank ends in the moment in which the message comes."""
    group = sending_group(drop)
    sender, room = group._worker, registry.waiting_room
    sender.door = Door(put_message, withdraw)
    n_before = len(room)
    is_filled = threading.Event()
    if is_at_once:
        sender.loop.asyncio_loop.call_soon_threadsafe(is_filled.wait, 30)
    group.push("payload", 1)
    message = group._under_way[0]
    if is_at_once:
        content = withdrawal("test-sending", 0)
        route = _lines.Route(message.route.line, 1, lambda error: error)
        route.line.put(_lines.Message(route, content, 0))
        is_filled.set()
    else:
        assert until(lambda: len(room) > n_before)
        group.close()
    assert until(lambda: not message.route.line._unanswered and message.content is None)
    assert len(room) == n_before


def test_a_rank_whose_messages_were_taken_withdraws_nothing(sending_group):
    group = sending_group(drop)
    group.send("x", 1)
    group.close()
    sending_group.another(group).send("x", 1)
    assert group._worker.withdrawn == []


def test_a_message_of_a_rank_that_has_gone_is_not_sent(sending_group):
    """Another worker may be there by the time that the connection is made."""
    arrived = []
    group = sending_group(arrived.append, n_deaf=10**9)
    group.push("first", 1)
    sender = group._worker
    assert until(lambda: sender.n_deaf < 10**9)
    group.push("second", 1)
    group.close()
    other = sending_group.another(group)
    other.push("other", 1)
    sender.n_deaf = 0
    other.flush()
    assert arrived == ["other"] and sender.withdrawn == []


def test_nor_is_one_of_its_second_thread(sending_group):
    arrived = []
    group = sending_group(arrived.append, n_deaf=10**9)
    second = group.for_thread()
    second.push("second", 1)
    sender = group._worker
    assert until(lambda: sender.n_deaf < 10**9)
    group.close()
    other = sending_group.another(group)
    other.push("other", 1)
    sender.n_deaf = 0
    other.flush()
    assert arrived == ["other"]


def test_a_first_message_that_is_dropped_holds_up_no_other(sending_group):
    arrived = []
    group = sending_group(arrived.append, n_deaf=10**9)
    group.push("first", 1)
    assert until(lambda: group._worker.n_deaf < 10**9)
    group._under_way.popleft().future.cancel()
    group.push("second", 1)
    group._worker.n_deaf = 0
    group.flush()
    assert arrived == ["second"]


def test_a_door_that_closes_tells_who_sends(sending_group, monkeypatch):
    """What came before is answered nevertheless."""
    monkeypatch.setattr(_arrivals, "_LAZY", 60.0)
    group = sending_group(drop, protocol=TCP)
    for _ in range(3):
        group.push("x", 1)
    group.flush()
    group._worker.door.close("tcp://there:2")
    with pytest.raises(PeerLostError, match="there:2 is closing") as caught:
        group.send("x", 1)
    assert caught.value.addresses == ("tcp://there:2",)


def test_a_question_that_is_not_answered_is_no_harm(sending_group):
    """The messages that it is about may have been answered before."""
    arrived = []
    group = sending_group(arrived.append)
    group.send("x", 1)
    route, sender = group._routes[1], group._worker
    is_deaf = threading.Event()
    sender.loop.asyncio_loop.call_soon_threadsafe(is_deaf.wait, 30)
    route.ask()

    async def end():
        _lines.end_lines(sender)

    ending = asyncio.run_coroutine_threadsafe(end(), sender.loop.asyncio_loop)
    is_deaf.set()
    ending.result(30)
    group.flush()
    group.send("y", 1)
    assert arrived == ["x", "y"]


def test_a_worker_that_cannot_be_reached_is_tried_once(sending_group, monkeypatch):
    group = sending_group(drop)
    other = sending_group.another(group)
    may_fail, tries = threading.Event(), []

    async def fail(address, **kwargs):
        tries.append(address)
        while not may_fail.is_set():
            await asyncio.sleep(0.001)
        raise OSError("no such host")

    monkeypatch.setattr(_lines, "connect", fail)
    group.push("x", 1)
    assert until(lambda: tries)
    other.push("x", 1)
    may_fail.set()
    for each in (group, other):
        with pytest.raises(PeerLostError, match="no such host"):
            each.flush()
    assert len(tries) == 1


def test_an_event_loop_that_has_ended_is_named_each_time():
    loop = asyncio.new_event_loop()
    loop.close()
    worker = type("Worker", (), {"connection_args": {}})()
    worker.loop = type("Loop", (), {"asyncio_loop": loop})()
    line = _lines.Line(worker, "tcp://there:2")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            line.put(_lines.Message(_lines.Route(line, 1, drop), b"", 0))
    line.retire()


def test_the_header_survives():
    header = Header("run", 0, 1, "tag", True)
    message = _dask.as_message(header, {1, 2})
    assert from_message(**message) == (header, {1, 2})
    assert _dask.message_nbytes(_dask.as_message(header, [set(range(1000))])) > 10_000


def test_a_message_that_nobody_waits_for_is_neither_sent_nor_put_aside(sending_group):
    group = sending_group(drop)
    group.send("x", 1)
    route = _lines.Route(group._routes[1].line, 1, lambda error: error)
    gone, there, later = (_lines.Message(route, b"", 0) for _ in range(3))
    gone.future.cancel()
    assert [route.may_go(message) for message in (gone, there, later, gone)] == [
        False,
        True,
        False,
        False,
    ]
    assert route._aside == [later]


# Order ------------------------------------------------------------------------------


class Wire:
    """Stands for a connection, and notes what is sent."""

    def __init__(self):
        self.sent = []

    def closed(self):
        return False

    def abort(self):
        """Nothing is open."""

    async def write(self, message, **options):
        self.sent.append(message)


def make_line(wire):
    """A line to nowhere, in the event loop that runs."""
    loop = SimpleNamespace(asyncio_loop=asyncio.get_running_loop())
    line = _lines.Line(SimpleNamespace(connection_args={}, loop=loop), "tcp://there:1")
    line._comm = wire
    return line


async def done(messages):
    """Wait until messages have fared in some way; their errors."""
    futures = [asyncio.wrap_future(message.future) for message in messages]
    return await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 30)


def test_messages_stay_in_order_where_the_first_is_taken_in_a_pause(monkeypatch):
    """Those that were put aside come before one that would be next."""

    async def send(n_messages):
        wire, sleep = Wire(), asyncio.sleep
        line = make_line(wire)
        route = _lines.Route(line, 1, lambda error: error)

        async def pause(seconds):
            line._hear((list(line._unanswered), []))
            await sleep(seconds)

        monkeypatch.setattr(asyncio, "sleep", pause)
        messages = [_lines.Message(route, n, 0) for n in range(n_messages)]
        for message in messages:
            line.put(message)
        while len(wire.sent) < n_messages:
            await pause(0.001)
        return wire.sent

    assert asyncio.run(send(40)) == [*range(40)]


def test_nothing_follows_a_message_that_was_lost():
    """Not on a new connection either, where it would be taken for the lost one."""

    async def send():
        wire = Wire()
        line = make_line(wire)
        route = _lines.Route(line, 1, lambda error: error)

        class Pace:
            async def wait(self, nbytes):
                line._drop(ConnectionResetError("cut"))

        async def connect_again():
            line._comm = wire
            return wire

        line._connect = connect_again
        route.is_open = True
        first = _lines.Message(route, "first", 0)
        second = _lines.Message(route, "second", 0, pace=Pace())
        line.put(first)
        line.put(second)
        return await done([first, second]), wire.sent

    errors, sent = asyncio.run(send())
    assert sent == ["first"]
    assert [type(error) for error in errors] == [ConnectionResetError] * 2


def test_a_worker_without_the_handler_is_waited_for_once(monkeypatch):
    """All that waits for it fails then, and not one after the other."""
    n_connected = []

    async def connect(address, **options):
        n_connected.append(address)
        return Wire()

    async def ask(self, comm):
        await asyncio.sleep(0)
        raise CommTimeoutError("it has taken no messages")

    monkeypatch.setattr(_lines, "connect", connect)
    monkeypatch.setattr(_lines.Line, "_ask", ask)

    async def send():
        line = make_line(None)
        routes = [_lines.Route(line, n, lambda error: error) for n in range(3)]
        messages = [_lines.Message(route, route.dest, 0) for route in routes]
        for message in messages:
            line.put(message)
        return await done(messages)

    assert [type(error) for error in asyncio.run(send())] == [CommTimeoutError] * 3
    assert len(n_connected) == 1


def test_a_rank_that_ends_while_a_second_thread_makes_its_first_message(
    sending_group, monkeypatch
):
    group = sending_group(drop)
    group.send("first", 1)
    [route] = group._routes.values()
    monkeypatch.setattr(
        _lines.Route, "leave", lambda *args: group._routes.setdefault(99, route)
    )
    group.close()
    assert (group.run_id, group.rank) not in registry.open_ranks()
