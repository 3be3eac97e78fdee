"""The sending side of a group, without a cluster."""

import asyncio
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
from distributed.comm import CommClosedError

from dask_ma.comm import DaskGroup, close_run
from dask_ma.comm._packing import from_message
from dask_ma.comm._plugin import registry
from dask_ma.exceptions import (
    CommTimeoutError,
    GroupClosedError,
    PeerLostError,
    StaleRunError,
)

NO_HANDLER = object()


class Sender:
    """Stands in for a worker; `deliver(payload)` is the far end of its connections.

    A far end that returns NO_HANDLER has not taken the message.
    """

    address = "tcp://here:1"

    def __init__(self, deliver):
        self._deliver = deliver
        self.loop = SimpleNamespace(asyncio_loop=asyncio.new_event_loop())
        self._thread = threading.Thread(target=self.loop.asyncio_loop.run_forever)
        self._thread.start()

    def rpc(self, address):
        async def dask_ma_receive(*, letter, payload=None, before=None):
            _, payload = from_message(letter, getattr(payload, "data", None))
            return await self._deliver(payload) is not NO_HANDLER

        return SimpleNamespace(dask_ma_receive=dask_ma_receive)

    def stop(self):
        self.loop.asyncio_loop.call_soon_threadsafe(self.loop.asyncio_loop.stop)
        self._thread.join()
        self.loop.asyncio_loop.close()


@pytest.fixture
def sending_group():
    """``sending_group(deliver)`` is rank 0 of 2 on a worker of its own."""
    with ExitStack() as stack:

        def make(deliver):
            sender = Sender(deliver)
            stack.callback(sender.stop)
            addresses = [sender.address, "tcp://there:2"]
            group = DaskGroup("test-sending", 0, addresses, sender)
            stack.callback(registry._closed.pop, ("test-sending", 0))
            return stack.enter_context(group)

        yield make


def test_messages_to_a_rank_keep_their_order_on_the_way(sending_group):
    arrived = []

    async def the_later_the_faster(payload):
        await asyncio.sleep(0.02 / (1 + payload))
        arrived.append(payload)

    group = sending_group(the_later_the_faster)
    for number in range(10):
        group.push(number, 1)
    group.flush()
    assert arrived == list(range(10))


def test_short_messages_are_copies_and_need_no_answer(sending_group):
    """Arrays of longer ones are lent until they arrive, also behind short ones."""
    arrived, may_arrive = [], threading.Event()

    async def when_it_may(payload):
        while not may_arrive.is_set():
            await asyncio.sleep(0.001)
        arrived.append(payload.copy())

    group = sending_group(when_it_may)
    short, long = np.zeros(3), np.zeros(1 << 16)
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


def test_a_message_is_sent_until_the_worker_knows_how_to_take_it(sending_group):
    arrived = []
    answers = iter([NO_HANDLER, NO_HANDLER, None, None])

    async def take_the_third(payload):
        if (answer := next(answers)) is None:
            arrived.append(payload)
        return answer

    group = sending_group(take_the_third)
    group.push("first", 1)
    group.push("second", 1)
    group.flush()
    assert arrived == ["first", "second"]


def test_a_worker_that_never_takes_messages_is_named(sending_group, configured):
    async def drop(payload):
        return NO_HANDLER

    group = sending_group(drop)
    with configured({"dask-ma.launch.start-timeout": "20 ms"}):
        with pytest.raises(CommTimeoutError, match=r"there:2 of rank 1 .* 0\.02 s"):
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
    is_sent, is_given_up = threading.Event(), threading.Event()

    async def hang(payload):
        is_sent.set()
        try:
            await asyncio.sleep(60)
        finally:
            is_given_up.set()

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
    assert is_given_up.wait(10)
    registry._closed.pop(("test-sending", None))
