"""Incoming messages of one rank."""

import threading

import pytest

from dask_ma.comm._mailbox import Mailbox
from dask_ma.exceptions import CommTimeoutError, GroupClosedError


@pytest.fixture
def mailbox():
    return Mailbox(rank=3)


def test_order_is_kept_per_source_and_tag(mailbox):
    for number in range(3):
        for source in (0, 1):
            for tag in ("a", ("b", 1)):
                mailbox.put(source, tag, (source, tag, number))
    for source, tag in [(1, ("b", 1)), (0, "a"), (0, ("b", 1)), (1, "a")]:
        got = [mailbox.get(source, tag, timeout=1) for _ in range(3)]
        assert got == [(source, tag, number) for number in range(3)]


def test_get_wakes_up_when_the_message_comes(mailbox):
    timer = threading.Timer(0.05, mailbox.put, (0, "t", "here"))
    timer.start()
    assert mailbox.get(0, "t", timeout=30) == "here"
    timer.join()


def test_time_out_says_who_waited_for_what(mailbox):
    mailbox.put(0, "other tag", "x")
    mailbox.put(1, "tag", "x")
    with pytest.raises(CommTimeoutError) as caught:
        mailbox.get(0, "tag", timeout=0.01)
    text = str(caught.value)
    for part in ("rank 3", "rank 0", "'tag'", "0.01 s", "dask-ma.comm.timeout"):
        assert part in text
    assert isinstance(caught.value, TimeoutError)


def test_a_message_that_is_there_needs_no_time(mailbox):
    mailbox.put(0, 0, "x")
    assert mailbox.get(0, 0, timeout=0) == "x"


def test_poll_takes_a_message_once(mailbox):
    assert mailbox.poll(0, "t") == (False, None)
    mailbox.put(0, "t", None)
    assert mailbox.poll(1, "t") == (False, None)
    assert mailbox.poll(0, "t") == (True, None)
    assert mailbox.poll(0, "t") == (False, None)


def test_waiting_for_any_takes_nothing(mailbox):
    mailbox.put(1, "t", "here")
    for _ in range(2):
        assert mailbox.wait_any([(0, "t"), (1, "t")], timeout=0) is None
    assert mailbox.poll(1, "t") == (True, "here")


@pytest.mark.parametrize("source", [0, 1, 2])
def test_any_of_several_messages_ends_the_wait(mailbox, source):
    timer = threading.Timer(0.05, mailbox.put, (source, "t", "here"))
    timer.start()
    mailbox.wait_any([(0, "t"), (1, "t"), (2, "t")], timeout=30)
    assert mailbox.poll(source, "t") == (True, "here")
    timer.join()


@pytest.mark.parametrize("wanted", [[(0, "tag"), (1, "tag")], []])
def test_time_out_says_which_messages_did_not_come(mailbox, wanted):
    mailbox.put(0, "other tag", "x")
    mailbox.put(2, "tag", "x")
    with pytest.raises(CommTimeoutError) as caught:
        mailbox.wait_any(wanted, timeout=0.01)
    text = str(caught.value)
    for part in ("rank 3", repr(wanted), "0.01 s", "dask-ma.comm.timeout"):
        assert part in text


@pytest.mark.parametrize(
    "call", [lambda m: m.get(0, "t", 30), lambda m: m.wait_any([(0, "t")], 30)]
)
def test_close_wakes_a_waiter_in_another_thread(mailbox, call):
    caught = []

    def wait():
        with pytest.raises(GroupClosedError, match="over") as info:
            call(mailbox)
        caught.append(info.value)

    thread = threading.Thread(target=wait)
    thread.start()
    error = GroupClosedError("over")
    mailbox.close(error)
    thread.join(timeout=30)
    assert not thread.is_alive()
    # Threads that raise one and the same object would mix up its tracebacks.
    assert caught[0] is not error


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.put(0, 0, "x"),
        lambda m: m.get(0, 0, 30),
        lambda m: m.poll(0, 0),
        lambda m: m.wait_any([(0, 0)], 30),
        lambda m: m.raise_if_closed(),
    ],
)
def test_every_call_raises_the_first_error_once_closed(mailbox, call):
    mailbox.put(0, 0, "before")
    mailbox.close(GroupClosedError("first"))
    mailbox.close(GroupClosedError("second"))
    with pytest.raises(GroupClosedError, match="first"):
        call(mailbox)


def test_an_open_mailbox_raises_nothing(mailbox):
    assert mailbox.raise_if_closed() is None
