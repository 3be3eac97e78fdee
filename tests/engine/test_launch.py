"""Start an agent on every rank, see it through, clean up."""

import asyncio
import gc
import logging
import signal
import threading
import time
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from distributed import Client, Future

import dask_ma.engine._launch
from dask_ma.comm import DaskGroup, allreduce, barrier
from dask_ma.engine import _monitor, _nearby, launch, place_ranks
from dask_ma.engine._launch import raise_first
from dask_ma.exceptions import (
    CommTimeoutError,
    FitFailedError,
    GroupClosedError,
    PeerLostError,
    StaleRunError,
)

HERE = {"client": None, "addresses": None}


def on(client, n_ranks):
    """Arguments that say where to run."""
    return {"client": client, "addresses": place_ranks(client, n_ranks)}


@pytest.fixture(params=["here", "inproc", "process"])
def where(request):
    """Run on threads, and on each kind of cluster."""
    if request.param == "here":
        return HERE
    return on(request.getfixturevalue(f"{request.param}_client"), 3)


def echo():
    """An agent that returns what it was given."""

    def agent(context, shard, params):
        return context.group.rank, shard, params

    return agent


def test_each_rank_gets_its_shard_and_all_get_the_parameters(where):
    results = launch(
        echo(), ["a", "b", "c"], {"p": 1}, name="Echo", collect="all", **where
    )
    assert results == [(0, "a", {"p": 1}), (1, "b", {"p": 1}), (2, "c", {"p": 1})]


@pytest.mark.parametrize("n_together", [64, 2])
def test_no_rank_is_submitted_long_after_another_one(
    process_client, monkeypatch, n_together
):
    """The client's loop, which sends a task as soon as it can, makes many before."""

    def noted(self, *args, **kwargs):
        threads.append(threading.get_ident())
        return submit(self, *args, **kwargs)

    submit, threads = Client.submit, []
    monkeypatch.setattr(Client, "submit", noted)
    monkeypatch.setattr(dask_ma.engine._launch, "_TOGETHER", n_together)
    results = launch(
        echo(), list("abc"), name="Echo", collect="all", **on(process_client, 3)
    )
    assert [shard for _, shard, _ in results] == list("abc")

    async def of_loop():
        return threading.get_ident()

    assert threads == 3 * [process_client.sync(of_loop)]


def test_tasks_of_all_ranks_are_one_message(process_client, monkeypatch):
    """A client sends what it has between two turns of its event loop at once."""
    submit, turns = Client.submit, []

    def note(self, *args, **kwargs):
        turns.append("task")
        asyncio.get_running_loop().call_soon(turns.append, "turn")
        return submit(self, *args, **kwargs)

    monkeypatch.setattr(Client, "submit", note)
    launch(echo(), [0] * 3, name="Echo", **on(process_client, 3))
    assert turns == ["task"] * 3 + ["turn"] * 3


def test_a_large_model_to_start_from_passes_the_scheduler_once(where, monkeypatch):
    def submit(self, function, run, *args, **kwargs):
        sent.append(run.params is not None)
        return original(self, function, run, *args, **kwargs)

    def agent(context, shard, params):
        return context.group.rank, params["coef"].sum(), params["names"]

    sent, original = [], Client.submit
    monkeypatch.setattr(Client, "submit", submit)
    for size, expected in ((10, [True] * 3), (10_000, [True, False, False])):
        params = {"coef": np.arange(size), "names": ["x"]}
        found = launch(agent, "abc", params, name="Sum", collect="all", **where)
        total = size * (size - 1) // 2
        assert found == [(rank, total, ["x"]) for rank in range(3)]
        assert sent == ([] if where["client"] is None else expected)
        sent.clear()


@pytest.mark.parametrize("kind", ["inproc", "process"])
@pytest.mark.parametrize("n_ranks", [2, 5, 11])
def test_ranks_tell_each_other_where_they_are(request, monkeypatch, kind, n_ranks):
    """Where they are many, client and scheduler send addresses to rank 0 alone."""
    client = request.getfixturevalue(f"{kind}_client")
    monkeypatch.setattr(dask_ma.engine._launch, "_FEW", 1)
    sent = []
    original = Client.submit

    def submit(self, function, run, *args, **kwargs):
        sent.append(len(run.addresses))
        return original(self, function, run, *args, **kwargs)

    def agent(context, shard, params):
        group = context.group
        return allreduce(group, np.array([1 << group.rank])), group.size

    monkeypatch.setattr(Client, "submit", submit)
    shards = [None] * n_ranks
    results = launch(agent, shards, name="A", collect="all", **on(client, n_ranks))
    assert sent == [n_ranks] + [0] * (n_ranks - 1)
    assert results == [(np.array([2**n_ranks - 1]), n_ranks)] * n_ranks


def test_a_rank_that_hears_of_no_others(process_client, monkeypatch, assert_clean):
    """The run ends, and leaves no mailbox behind."""

    def agent(context, shard, params):
        return context.group.rank

    def dumb(self):
        raise RuntimeError("lost its tongue")

    monkeypatch.setattr(dask_ma.engine._launch, "_FEW", 1)

    def exchange(given=None):
        original = DaskGroup.tell_addresses
        DaskGroup.tell_addresses = dumb if given is None else given
        return original

    [original, *_] = process_client.run(exchange).values()
    try:
        with pytest.raises(RuntimeError, match="lost its tongue"):
            launch(agent, [None] * 3, name="A", **on(process_client, 3))
    finally:
        process_client.run(exchange, original)
    assert_clean(process_client)


def test_the_first_ranks_result_is_returned(where):
    assert launch(echo(), "abc", name="Echo", **where) == (0, "a", None)


def test_only_the_first_ranks_result_leaves_its_worker(process_client):
    def agent(context, shard, params):
        return "result" if context.group.rank == 0 else threading.Lock()

    arguments = on(process_client, 3)
    assert launch(agent, [None] * 3, name="Root", **arguments) == "result"


def large():
    """An agent whose result is large, by one of many arrays."""

    def agent(context, shard, params):
        small = {str(i): np.arange(2) for i in range(1000)}
        return small | {"large": np.arange(2**20, dtype=np.float64)}

    return agent


@pytest.fixture
def gathers(monkeypatch):
    """How clients are asked to gather; none has asked its workers before."""

    async def gather(self, *args, **kwargs):
        asked.append(kwargs.get("direct"))
        return await original(self, *args, **kwargs)

    asked, original = [], Client._gather
    monkeypatch.setattr(Client, "_gather", gather)
    monkeypatch.setattr(_nearby, "_answers", WeakKeyDictionary())
    monkeypatch.setattr(_nearby, "_PATIENCE", 60)
    return asked


@pytest.mark.pairs
@pytest.mark.parametrize("is_large", [True, False])
@pytest.mark.parametrize("collect", ["root", "all"])
@pytest.mark.parametrize("n_near", [0, 1, 3])
def test_a_large_result_does_without_the_scheduler(
    process_client, monkeypatch, gathers, is_large, collect, n_near
):
    """Where all workers that have one are on this machine, and answer."""

    async def are_near(client, addresses):
        addresses = list(addresses)
        assert addresses == arguments["addresses"][: 3 if collect == "all" else 1]
        is_near = {*addresses} <= {*arguments["addresses"][:n_near]}
        return is_near and await _nearby.are_near(client, addresses)

    arguments = on(process_client, 3)
    monkeypatch.setattr(_monitor, "are_near", are_near)
    agent = large() if is_large else echo()
    found = launch(agent, [None] * 3, name="Large", collect=collect, **arguments)
    for rank, result in enumerate(found if collect == "all" else [found]):
        last = result["large"][-1] if is_large else result[0]
        assert last == (2**20 - 1 if is_large else rank)
    is_direct = is_large and n_near >= (3 if collect == "all" else 1)
    assert gathers == ([] if is_direct else [None])


@pytest.mark.parametrize("ending", ["fails", "finds nothing"])
def test_what_does_not_come_straight_comes_by_the_scheduler(
    process_client, monkeypatch, gathers, ending
):
    async def gather_from_workers(who_has, rpc):
        if ending == "fails":
            raise OSError("gone")
        return {}, list(who_has), [], []

    monkeypatch.setattr(_nearby, "gather_from_workers", gather_from_workers)
    arguments = on(process_client, 3)
    found = launch(large(), [None] * 3, name="L", collect="all", **arguments)
    assert [result["large"][-1] for result in found] == [2**20 - 1] * 3
    assert gathers == [None]


@pytest.mark.parametrize("ending", ["answers", "refuses", "hangs"])
def test_what_is_near_and_answers(monkeypatch, ending):
    """Tunnels end on this machine as well; nobody asks what is elsewhere."""

    class Pool:
        """What there is of a client."""

        def rpc(self, address):
            asked.append(address)
            if len(asked) == len(here):
                all_asked.set()
            return self

        async def identity(self):
            await all_asked.wait()  # all are asked at the same time
            if ending == "hangs":
                await asyncio.sleep(600)
            if ending == "refuses":
                raise OSError("nobody there")

    async def look(client):
        nonlocal all_asked
        all_asked = asyncio.Event()
        far = ["tcp://192.0.2.1:1", "unknown://x"]
        for address in far:
            assert not await _nearby.are_near(client, [*here, address])
        assert not asked
        found = [await _nearby.are_near(client, here) for _ in range(3)]
        return [*found, await _nearby.are_near(client, here[:1])]

    monkeypatch.setattr(_nearby, "_PATIENCE", 0.01 if ending == "hangs" else 60)
    monkeypatch.setattr(_nearby, "_answers", WeakKeyDictionary())
    here = ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]
    asked, all_asked = [], None
    assert asyncio.run(look(Pool())) == [ending == "answers"] * 4
    assert sorted(asked) == here  # once
    gc.collect()  # of errors and the frames they are from
    assert not _nearby._answers


def test_shards_are_replaced_by_their_data(any_client):
    futures = any_client.map(lambda x: 2 * x, range(3), pure=False)
    shards = [{"blocks": [future, 7]} for future in futures]
    results = launch(echo(), shards, name="Echo", collect="all", **on(any_client, 3))
    assert [shard for _, shard, _ in results] == [
        {"blocks": [2 * r, 7]} for r in range(3)
    ]


def test_as_many_shards_as_addresses(inproc_client):
    with pytest.raises(ValueError, match="zip"):
        launch(echo(), "ab", name="Echo", **on(inproc_client, 3))


def test_the_tasks_bear_the_name(inproc_client):
    def agent(context, shard, params):
        from distributed import get_worker

        return get_worker().get_current_task()

    keys = launch(
        agent, [None] * 3, name="Fancy", collect="all", **on(inproc_client, 3)
    )
    runs = {key.removesuffix(f"-{rank}") for rank, key in enumerate(keys)}
    assert len(runs) == 1
    assert runs.pop().startswith("dask_ma-Fancy-")


def test_every_launch_has_a_run_id_of_its_own(inproc_client):
    def agent(context, shard, params):
        return context.group.run_id

    ids = {launch(agent, [None], name="Same", **on(inproc_client, 1)) for _ in range(3)}
    assert len(ids) == 3


# What ends a run ----------------------------------------------------------------------


def waiting_for_ever(flag):
    """An agent that shows that all ranks have started and then waits for nothing."""

    def agent(context, shard, params):
        barrier(context.group)
        if context.group.rank == 0:
            flag.touch()
        context.group.recv(0, "never")

    return agent


def interrupt_when(flag):
    """Interrupt the main thread, as Ctrl-C does, once a file is there."""
    while not flag.exists():
        time.sleep(0.01)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.fixture
def interruptible():
    """Python listens to Ctrl-C, which shells turn off for background programs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupt_from_the_keyboard(where, tmp_path, interruptible):
    flag = tmp_path / "started"
    thread = threading.Thread(target=interrupt_when, args=(flag,))
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        launch(waiting_for_ever(flag), [None] * 3, name="Endless", **where)
    thread.join()


@pytest.fixture
def occupy(tmp_path):
    """``occupy(client, address)`` takes the only thread of a worker until the end."""
    started, stop = tmp_path / "started", tmp_path / "stop"
    futures = []

    def task():
        started.touch()
        while not stop.exists():
            time.sleep(0.01)

    def occupy(client, address):
        futures.append(client.submit(task, workers=[address], pure=False))
        while not started.exists():
            time.sleep(0.01)

    yield occupy
    stop.touch()
    for future in futures:
        future.result(timeout=30)


@pytest.fixture
def busy_client(inproc_client, occupy):
    """A client the third of whose workers is busy with a user's task."""
    occupy(inproc_client, place_ranks(inproc_client, 3)[2])
    return inproc_client


SHORT_START = {
    "dask-ma.launch.start-timeout": "200 ms",
    "dask-ma.launch.abort-timeout": "200 ms",
    "dask-ma.launch.poll-interval": "50 ms",
}


def test_a_rank_that_does_not_start_in_time(busy_client, configured, assert_clean):
    where = on(busy_client, 3)

    def agent(context, shard, params):
        context.group.recv(2, "a message of the rank that does not start")

    with configured(SHORT_START), pytest.raises(CommTimeoutError) as caught:
        launch(agent, [None] * 3, name="Late", **where)
    text = str(caught.value)
    for part in ("Late", f"rank 2 of 3 (worker {where['addresses'][2]})", "0.2 s"):
        assert part in text
    assert "rank 0" not in text and "rank 1" not in text
    assert "dask-ma.launch.start-timeout" in text
    assert_clean(busy_client)  # while the user's task goes on
    assert busy_client.processing()[where["addresses"][2]]


@pytest.mark.parametrize(
    ("paused", "reason"),
    [(0, "are their workers busy"), (2, "1 of their 1 workers are paused")],
)
def test_why_a_rank_does_not_start(
    paused, reason, busy_client, configured, monkeypatch
):
    """That workers of other ranks are paused by now has nothing to do with it."""
    where = on(busy_client, 3)
    find_workers = _monitor.scheduler_workers

    def find_paused(client):
        workers = find_workers(client)
        workers[where["addresses"][paused]]["status"] = "paused"
        return workers

    def agent(context, shard, params):
        context.group.recv(2, "a message of the rank that does not start")

    monkeypatch.setattr(_monitor, "scheduler_workers", find_paused)
    with configured(SHORT_START), pytest.raises(CommTimeoutError, match=reason):
        launch(agent, [None] * 3, name="Late", **where)


def test_a_peer_of_a_rank_that_does_not_start(busy_client, configured):
    def agent(context, shard, params):
        context.group.send("hello", 2)

    with configured(SHORT_START), pytest.raises(CommTimeoutError, match="rank 2"):
        launch(agent, [None] * 3, name="Late", **on(busy_client, 3))


@pytest.mark.parametrize("call", ["send", "push"])
def test_a_process_that_does_not_start_its_rank(
    process_client, configured, occupy, call
):
    where = on(process_client, 2)
    occupy(process_client, where["addresses"][1])

    def agent(context, shard, params):
        getattr(context.group, call)("hello", 1)

    # The limit is short on the workers alone, so that the sender meets it first.
    with (
        configured({"dask-ma.launch.start-timeout": "200 ms"}, process_client),
        configured(SHORT_START | {"dask-ma.launch.start-timeout": "30 s"}),
        pytest.raises(CommTimeoutError, match=r"rank 1 of run .* within 0\.2 s"),
    ):
        launch(agent, [None] * 2, name="Late", **where)


def test_a_task_that_the_user_cancels(process_client, tmp_path):
    flag = tmp_path / "started"

    def cancel():
        while not flag.exists():
            time.sleep(0.01)
        tasks = process_client.run_on_scheduler(
            lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks]
        )
        (key,) = (t for t in tasks if t.startswith("dask_ma-Endless") and t[-1] == "1")
        process_client.cancel([Future(key, process_client)], force=True)

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(FitFailedError, match="rank 1 of 3 .* was cancelled"):
        launch(
            waiting_for_ever(flag), [None] * 3, name="Endless", **on(process_client, 3)
        )
    thread.join()


# Which of several errors is raised ----------------------------------------------------


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([None, ValueError("a"), None], "a"),
        ([GroupClosedError("a"), ValueError("b")], "b"),
        ([GroupClosedError("a"), CommTimeoutError("b"), KeyError("c")], "c"),
        ([GroupClosedError("a"), PeerLostError("b")], "b"),
        ([ValueError("a"), KeyError("b")], "a"),
        ([GroupClosedError("a"), GroupClosedError("b")], "a"),
        ([StaleRunError("a"), PeerLostError("b")], "b"),
        ([GroupClosedError("a"), StaleRunError("b")], "b"),
        ([FitFailedError("a"), KeyboardInterrupt("b")], "b"),
    ],
)
def test_the_cause_is_raised(errors, expected):
    with pytest.raises(BaseException, match=expected) as caught:
        raise_first(errors)
    assert caught.value in errors


def test_no_error():
    assert raise_first([None, None]) is None


def test_a_run_is_logged(inproc_client, caplog):
    with caplog.at_level(logging.DEBUG, logger="dask_ma"):
        launch(echo(), [None], name="Logged", **on(inproc_client, 1))
    assert any("Logged" in record.getMessage() for record in caplog.records)
