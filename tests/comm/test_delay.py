"""Messages between threads that take their time."""

from time import perf_counter, sleep

import numpy as np
import pytest

from dask_ma.comm import LocalGroup, allreduce
from dask_ma.comm._mailbox import Mailbox
from dask_ma.exceptions import CommTimeoutError


def test_a_message_cannot_be_received_before_its_time():
    mailbox = Mailbox(rank=0)
    start = perf_counter()
    mailbox.put(1, "t", "late", delay=0.3)
    assert mailbox.poll(1, "t") == (False, None)  # the sender has not waited
    with pytest.raises(CommTimeoutError):
        mailbox.get(1, "t", timeout=0.01)
    assert mailbox.get(1, "t", timeout=30) == "late"
    assert perf_counter() - start >= 0.3


def test_poll_finds_it_then():
    mailbox = Mailbox(rank=0)
    mailbox.put(1, "t", "late", delay=0.02)
    sleep(0.03)
    assert mailbox.poll(1, "t") == (True, "late")


def test_a_late_message_holds_up_no_other_one():
    mailbox = Mailbox(rank=0)
    mailbox.put(1, "slow", "late", delay=60)
    mailbox.put(1, "fast", "early")
    assert mailbox.get(1, "fast", timeout=1) == "early"


def test_any_of_several_messages_is_waited_for_until_its_time():
    mailbox = Mailbox(rank=0)
    start = perf_counter()
    mailbox.put(1, "slow", "late", delay=60)
    mailbox.put(2, "fast", "early", delay=0.3)
    with pytest.raises(CommTimeoutError):
        mailbox.wait_any([(1, "slow"), (2, "fast")], timeout=0.01)
    mailbox.wait_any([(1, "slow"), (2, "fast")], timeout=30)
    assert perf_counter() - start >= 0.3
    assert mailbox.poll(2, "fast") == (True, "early")


def test_the_order_is_kept_with_a_delay():
    first, second = LocalGroup.create(2, delay=0.01)
    for number in range(20):
        first.send(number, 1)
    assert [second.recv(0) for _ in range(20)] == list(range(20))


def test_a_delay_for_other_ranks_only():
    first, second = LocalGroup.create(2, delay=60)
    first.send("to myself", 0)
    assert first.recv(0, timeout=1) == "to myself"
    first.send("far away", 1)
    assert second.poll(0) == (False, None)


def test_collectives_take_as_long_as_their_messages(run_ranks, monkeypatch):
    plain = LocalGroup.create
    monkeypatch.setattr(
        LocalGroup, "create", lambda n, per_node: plain(n, per_node, delay=0.02)
    )
    start = perf_counter()
    sums = run_ranks(lambda group: allreduce(group, np.array([group.rank])), 3, 1)
    assert [int(s[0]) for s in sums] == [3, 3, 3]
    assert perf_counter() - start >= 0.02


@pytest.mark.parametrize("delay", [-1e-3, np.nan, np.inf])
def test_delays_that_cannot_be(delay):
    with pytest.raises(ValueError, match="delay must be finite and not negative, got"):
        LocalGroup.create(2, delay=delay)
