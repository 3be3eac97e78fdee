"""The door through which messages enter a worker."""

import asyncio
import atexit
import gc
import threading
import time
from types import SimpleNamespace

import pytest
from distributed import Client, LocalCluster
from distributed.comm import CommClosedError

from dask_ma.comm import (
    _plugin,
    close_run,
    ensure_plugin,
    has_heeded,
    is_aborted,
    open_ranks,
)
from dask_ma.comm._packing import Header
from dask_ma.comm._plugin import CommPlugin, RunRegistry, put_message, registry
from dask_ma.exceptions import (
    CommTimeoutError,
    GroupClosedError,
    PeerLostError,
    StaleRunError,
)


async def deliver(comm, run_id, source, dest, tag, payload):
    """What a message does that arrives."""
    waits = put_message(comm, Header(run_id, source, dest, tag), payload)
    if waits is not None:
        await waits


@pytest.fixture
def runs():
    return RunRegistry()


def test_a_rank_is_found_from_its_start_to_its_end(runs):
    assert runs.find("run", 1) is None
    mailbox = runs.open("run", 1, "worker")
    assert runs.find("run", 1) is mailbox
    assert runs.wait_for("run", 1, timeout=0) is mailbox
    assert runs.find("run", 0) is None and runs.find("other", 1) is None
    assert runs.open_ranks() == [("run", 1)]
    runs.close("run", 1)
    assert runs.open_ranks() == []
    with pytest.raises(GroupClosedError, match="rank 1 of run run has ended"):
        mailbox.raise_if_closed()


@pytest.mark.parametrize("look", [RunRegistry.find, RunRegistry.wait_for])
def test_a_stale_message_is_refused_with_both_ids(runs, look):
    runs.open("old-id", 0, "worker")
    runs.close("old-id", 0)
    runs.open("new-id", 0, "worker")
    arguments = () if look is RunRegistry.find else (1,)
    with pytest.raises(StaleRunError, match=r"rank 0 of run old-id .*\['new-id'\]"):
        look(runs, "old-id", 0, *arguments)
    with pytest.raises(StaleRunError, match="old-id"):
        runs.open("old-id", 0, "worker")


def test_a_rank_that_ends_before_a_message_is_there(runs):
    mailbox = runs.open("r1", 0, "worker")
    runs.close("r1", 0)
    with pytest.raises(StaleRunError, match="rank 0 of run r1 came after"):
        runs.put(mailbox, Header("r1", 1, 0, "tag"), None)
    mailbox = runs.open("r2", 0, "worker")
    mailbox.close(GroupClosedError("it has failed"))
    with pytest.raises(GroupClosedError, match="it has failed"):
        runs.put(mailbox, Header("r2", 1, 0, "tag"), None)


def test_waiting_for_a_rank_to_start(runs):
    timer = threading.Timer(0.05, runs.open, ("run", 2, "worker"))
    timer.start()
    mailbox = runs.wait_for("run", 2, timeout=30)
    timer.join()
    assert mailbox is runs.find("run", 2)


def test_a_rank_that_does_not_start_is_named(runs):
    with pytest.raises(CommTimeoutError, match=r"rank 2 of run r-7 .* within 0\.01 s"):
        runs.wait_for("r-7", 2, timeout=0.01)


def test_abort_ends_one_run_and_no_other(runs):
    ended = [runs.open("bad", rank, "worker") for rank in range(2)]
    other = runs.open("good", 0, "worker")
    assert not runs.is_aborted("bad")
    assert runs.abort("bad", GroupClosedError("because")) == 2
    assert runs.is_aborted("bad") and not runs.is_aborted("good")
    other.raise_if_closed()
    for mailbox in ended:
        with pytest.raises(GroupClosedError, match="because"):
            mailbox.raise_if_closed()
    for call in (
        lambda: runs.open("bad", 2, "worker"),
        lambda: runs.find("bad", 0),
        lambda: runs.wait_for("bad", 3, 30),
    ):
        with pytest.raises(GroupClosedError, match="because"):
            call()


def test_abort_wakes_who_waits_for_a_rank_to_start(runs):
    timer = threading.Timer(0.05, runs.abort, ("run", GroupClosedError("because")))
    timer.start()
    with pytest.raises(GroupClosedError, match="because"):
        runs.wait_for("run", 0, timeout=30)
    timer.join()


def test_a_worker_that_closes_ends_its_own_ranks(runs):
    gone, left = runs.open("run", 0, "tcp://a:1"), runs.open("run", 1, "tcp://b:1")
    runs.abort_owner("tcp://a:1")
    left.raise_if_closed()
    with pytest.raises(Exception, match="worker at tcp://a:1 is closing"):
        gone.raise_if_closed()


def test_old_runs_are_forgotten_in_the_end(runs, monkeypatch):
    monkeypatch.setattr(_plugin, "_N_REMEMBERED", 3)
    for rank in range(5):
        runs.open("run", rank, "worker")
        runs.close("run", rank)
    assert [runs.find("run", rank) for rank in (0, 1)] == [None, None]
    for rank in (2, 3, 4):
        with pytest.raises(StaleRunError):
            runs.find("run", rank)


# The handler ------------------------------------------------------------------------


class Sender:
    """The connection that a message has come by."""

    def __init__(self):
        self.is_closed = False

    def closed(self):
        return self.is_closed


SENDER = Sender()


@pytest.fixture
def run_id():
    """A run in the registry of this process, forgotten after the test."""
    yield "test-run"
    for run, rank in registry.open_ranks():
        if run == "test-run":
            registry.close(run, rank)
    for key in [key for key in registry._closed if key[0] == "test-run"]:
        del registry._closed[key]
    registry._agreed.pop("test-run", None)


def test_a_message_waits_for_its_rank_to_start(run_id):
    async def send_before_start():
        message = asyncio.create_task(deliver(SENDER, run_id, 0, 1, "tag", "payload"))
        await asyncio.sleep(0.02)
        mailbox = registry.open(run_id, 1, "worker")
        await message
        return mailbox.poll(0, "tag")

    assert asyncio.run(send_before_start()) == (True, "payload")


def test_a_message_does_not_wait_for_ever(run_id, configured):
    with configured({"dask-ma.launch.start-timeout": "20 ms"}):
        with pytest.raises(CommTimeoutError, match=r"rank 1 of run test-run .*0\.02 s"):
            asyncio.run(deliver(SENDER, run_id, 0, 1, "tag", "payload"))


def test_nobody_looks_for_a_rank_again_and_again(run_id, monkeypatch):
    """A message that waits costs nothing until something changes for its rank."""
    looks = []
    find = registry.find
    monkeypatch.setattr(registry, "find", lambda *args: looks.append(0) or find(*args))

    async def send_before_start():
        messages = [
            asyncio.create_task(deliver(SENDER, run_id, source, 1, "tag", source))
            for source in range(20)
        ]
        await asyncio.sleep(0.3)
        assert len(registry.waiting_room) == 20
        n_looks = len(looks)
        other = registry.open(run_id, 2, "worker")
        await asyncio.sleep(0.05)
        assert len(looks) == n_looks
        mailbox = registry.open(run_id, 1, "worker")
        await asyncio.gather(*messages)
        return n_looks, other, [mailbox.poll(source, "tag") for source in range(20)]

    n_looks, other, found = asyncio.run(send_before_start())
    assert n_looks <= 40
    assert found == [(True, source) for source in range(20)]
    assert other.poll(0, "tag") == (False, None)
    assert len(registry.waiting_room) == 0


def test_a_message_does_not_outlive_its_sender(run_id, monkeypatch):
    monkeypatch.setattr(_plugin, "_SENDER_LOOK", 0.01)

    async def send_and_go():
        sender = Sender()
        message = asyncio.create_task(deliver(sender, run_id, 0, 1, "tag", "payload"))
        await asyncio.sleep(0.05)
        assert not message.done()
        sender.is_closed = True
        await asyncio.wait_for(message, 30)

    with pytest.raises(CommClosedError, match="rank 0 of run test-run has gone"):
        asyncio.run(send_and_go())
    assert len(registry.waiting_room) == 0


def test_a_run_that_ends_before_a_rank_has_started(run_id):
    async def send_and_end():
        message = asyncio.create_task(deliver(SENDER, run_id, 0, 1, "tag", "payload"))
        await asyncio.sleep(0.02)
        close_run(run_id, "the reason")
        await asyncio.wait_for(message, 30)

    with pytest.raises(GroupClosedError, match="the reason"):
        asyncio.run(send_and_end())
    assert len(registry.waiting_room) == 0


def test_a_message_that_comes_too_late_is_refused(run_id):
    registry.open(run_id, 1, "worker")
    registry.close(run_id, 1)
    with pytest.raises(StaleRunError, match=run_id):
        asyncio.run(deliver(SENDER, run_id, 0, 1, "tag", "payload"))


def test_what_the_client_asks_of_a_process(run_id):
    mailbox = registry.open(run_id, 1, "worker")
    registry.open(run_id, 3, "worker")
    assert sorted(open_ranks(run_id)) == [1, 3]
    assert open_ranks("another run") == []
    assert not is_aborted(run_id)
    assert close_run(run_id, "the reason") == 2
    assert is_aborted(run_id)
    with pytest.raises(GroupClosedError, match="the reason"):
        mailbox.raise_if_closed()


def test_plugin_is_installed_once_and_on_later_workers():
    def handlers(dask_worker):
        return dask_worker.handlers.get(_plugin.HANDLER) is not None

    def installed(dask_worker):
        return id(dask_worker.plugins[CommPlugin.name])

    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        assert list(client.run(handlers).values()) == [False]
        ensure_plugin(client)
        first = client.run(installed)
        ensure_plugin(client)
        assert client.run(installed) == first
        cluster.scale(2)
        client.wait_for_workers(2, timeout=30)
        assert list(client.run(handlers).values()) == [True, True]
        client.unregister_worker_plugin(CommPlugin.name)
        assert list(client.run(handlers).values()) == [False, False]


def test_only_a_process_with_a_nanny_is_ended_quickly(monkeypatch):
    registered = []
    monkeypatch.setattr(atexit, "register", registered.append)
    _plugin._end_quickly.cache_clear()
    CommPlugin().setup(SimpleNamespace(handlers={}, nanny=None))
    assert registered == []
    for _ in range(2):
        CommPlugin().setup(SimpleNamespace(handlers={}, nanny="tcp://nanny:1"))
    assert registered == [gc.freeze]
    _plugin._end_quickly.cache_clear()


class Worker:
    """Has handlers, and nothing else of a worker."""

    address = "tcp://here:1"
    nanny = None

    def __init__(self):
        self.handlers = {}


def test_a_worker_that_closes_takes_no_more_messages(run_id):
    """Who sends to it learns which worker has gone."""
    mailbox = registry.open(run_id, 1, Worker.address)

    async def close():
        worker, plugin = Worker(), CommPlugin()
        plugin.setup(worker)
        door = worker.handlers[_plugin.HANDLER].__self__
        header = Header(run_id, 0, 1, "tag")
        assert door._take_in(SENDER, header, "before") is None
        await plugin.teardown(worker)
        assert not worker.handlers
        with pytest.raises(PeerLostError, match="here:1 is closing") as caught:
            door._take_in(SENDER, header, "after")
        assert caught.value.addresses == (Worker.address,)

    asyncio.run(close())
    with pytest.raises(GroupClosedError, match="here:1 is closing"):
        mailbox.raise_if_closed()


@pytest.mark.parametrize("heeds", [True, False])
def test_what_ranks_have_agreed_on_can_be_asked_late(run_id, heeds):
    registry.open(run_id, 0, "here:1")
    assert has_heeded(run_id) is None
    registry.agree(run_id, 0, heeds=heeds)
    assert has_heeded(run_id) is heeds
    assert registry.n_heeding("here:1") == heeds
    registry.close(run_id, 0)
    assert has_heeded(run_id) is heeds
    assert registry.n_heeding("here:1") == 0


def test_a_worker_that_leaves_ends_its_ranks(run_id):
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        ensure_plugin(client)
        leaving, staying = client.nthreads()
        gone = registry.open(run_id, 0, leaving)
        left = registry.open(run_id, 1, staying)
        client.retire_workers([leaving], close_workers=True)
        deadline = time.monotonic() + 30
        while leaving in client.nthreads() and time.monotonic() < deadline:
            time.sleep(0.01)
        left.raise_if_closed()
        with pytest.raises(Exception, match=f"worker at {leaving} is closing"):
            gone.get(1, "never", timeout=30)
