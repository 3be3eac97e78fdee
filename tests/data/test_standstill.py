"""Blocks that nobody is going to compute: waits for them come to an end."""

import asyncio
from time import sleep
from types import SimpleNamespace

import dask
import pytest
from distributed import Event

from dask_ma.data import _recovery
from dask_ma.data._collections import wait_for_blocks
from dask_ma.data._recovery import _wait
from dask_ma.data._standstill import Standstill, _states_of
from dask_ma.data._stream import _sizes, _wait_for_some
from dask_ma.exceptions import CommTimeoutError, PeerLostError


class Clock:
    """Time that passes by itself only where somebody sleeps."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Cluster:
    """A client of workers in a state, with tasks that they are to do."""

    asynchronous = False

    def __init__(self, **workers):
        self.workers = {
            name: {"status": status, "metrics": {"task_counts": counts}}
            for name, (status, counts) in workers.items()
        }
        self.given, self.states = {}, {}
        self.scheduler = self

    async def identity(self, n_workers):
        assert n_workers == -1
        return {"workers": self.workers}

    def sync(self, function, **arguments):
        found = function(**arguments)
        return asyncio.run(found) if asyncio.iscoroutine(found) else found

    def processing(self, workers):
        return {worker: self.given.get(worker, ()) for worker in workers}

    def who_has(self, futures):
        return {}

    def get_task_status(self, keys):
        return {key: self.states[key] for key in keys}


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in ("_standstill", "_recovery"):
        monkeypatch.setattr(f"dask_ma.data.{module}.monotonic", clock)
    monkeypatch.setattr(_recovery, "sleep", clock.sleep)
    return clock


@pytest.mark.parametrize(
    ("workers", "stands"),
    [
        ({"a": ("running", {}), "b": ("paused", {"memory": 7})}, True),
        ({"a": ("paused", {})}, True),
        ({"a": ("running", {}), "b": ("paused", {"executing": 1})}, False),
        ({"a": ("running", {"long-running": 1})}, False),
        ({"a": ("running", {"flight": 2})}, False),
        ({"a": ("running", {"fetch": 2})}, False),
        ({"a": ("running", {}), "b": ("paused", {"fetch": 2})}, True),  # which stay so
        ({}, False),  # of this others take care
    ],
)
def test_nobody_is_at_work(clock, workers, stands):
    standstill = Standstill(Cluster(**workers))
    for second in range(1, 20):
        clock.now += 1
        found = standstill.seconds()
        assert found == second if stands else found < 3
    assert standstill.n_running == ("a" in workers and workers["a"][0] == "running")


def test_tasks_that_are_under_way_to_a_worker_count(clock):
    cluster = Cluster(a=("running", {}), b=("paused", {}))
    cluster.given["b"] = ["task"]  # which it does not start
    standstill = Standstill(cluster)
    clock.now += 10
    assert standstill.seconds() == 10
    cluster.given["a"] = ["task"]
    assert standstill.seconds() == 10  # the scheduler is not asked all the time
    clock.now += 5
    assert standstill.seconds() == 0


class Pending:
    """A future whose task waits."""

    def __init__(self, key="block", status="pending"):
        self.key, self.status = key, status


def test_a_standstill_ends_in_an_error(clock, configured):
    cluster = Cluster(a=("paused", {}), b=("paused", {}))
    cluster.states = {"block": "waiting"}
    standstill = Standstill(cluster)
    with configured({"dask-ma.launch.start-timeout": "10 s"}):
        clock.now += 9
        standstill.check([Pending()])
        clock.now += 1
        found = (
            "1 tasks .* for 10 s .*start-timeout.*: 2 are paused.*memory.*, and 0 are "
            r"not.*other tasks \(1\)"
        )
        with pytest.raises(CommTimeoutError, match=found):
            standstill.check([Pending()])


def test_a_standstill_of_workers_that_run_says_what_is_waited_for(clock, configured):
    cluster = Cluster(a=("running", {}), b=("running", {}))
    cluster.states = {0: "no-worker", 1: "waiting", 2: "no-worker", 3: "sleepy"}
    standstill = Standstill(cluster)
    with configured({"dask-ma.launch.start-timeout": "10 s"}):
        clock.now += 10
        with pytest.raises(CommTimeoutError) as caught:
            standstill.check([Pending(key) for key in cluster.states])
    text = str(caught.value)
    assert "4 tasks" in text and "none is paused, 2 take tasks" in text
    assert "restricted to (2), other tasks (1), something in the state 'sleepy'" in text
    assert "memory" not in text and "launch.start-timeout" in text


def test_blocks_that_are_finished_are_work(clock, configured):
    standstill = Standstill(Cluster(a=("running", {})))
    clock.now += 10
    assert standstill.seconds() == 10
    standstill.restart()
    assert standstill.seconds() == 0


@pytest.mark.parametrize("state", [None, "released", "waiting"])
def test_lost_blocks_that_nobody_makes_again(clock, state):
    cluster = Cluster(a=("running", {}))
    cluster.states = {"block": state, "other": None}
    standstill = Standstill(cluster)
    blocks = [Pending(status="lost"), Pending("other")]  # which may be on its way
    if state == "waiting":
        standstill.check(blocks)
        clock.now += 1000  # by then it is not
        with pytest.raises(PeerLostError, match="'other' is in no worker's memory any"):
            standstill.check(blocks)
        return
    with pytest.raises(PeerLostError, match="'block' is in no worker's memory any"):
        standstill.check(blocks)


def test_states_are_those_of_the_scheduler(cluster):
    """Of a task that waits for a resource, one that waits for it, and none at all."""
    first = cluster.submit(int, resources={"none-such": 1}, pure=False)
    second = cluster.submit(abs, first, pure=False)
    blocks = [first, second, Pending(("block", 0))]
    while (states := _states_of(cluster, blocks)).get(second.key) is None:
        sleep(0.01)  # until the scheduler knows them
    assert [*states.values()] == ["no-worker", "waiting", None]


@pytest.mark.parametrize("wait", ["wait_for_blocks", "_wait_for_some"])
def test_waits_for_blocks_begin_anew_with_each(wait, cluster, monkeypatch, configured):
    """And say which ones are left when nobody works."""
    gates, restarts, left = [f"{i} of {wait}" for i in "ab"], [], []

    class Seen(Standstill):
        def restart(self):
            restarts.append(self)

        def check(self, blocks):
            # Nothing is done before somebody waits for it.
            left.append([block.key for block in blocks])
            Event(gates[len(blocks) == 1], cluster).set()
            while blocks[0].status != "finished":
                sleep(0.01)  # it counts though nobody waits meanwhile

    for module in ("_collections", "_stream"):
        monkeypatch.setattr(f"dask_ma.data.{module}.Standstill", Seen)
    first, second = (
        cluster.submit(lambda gate: Event(gate).wait(), gate, pure=False)
        for gate in gates
    )
    with configured({"dask-ma.launch.poll-interval": "50 ms"}):
        if wait == "wait_for_blocks":
            wait_for_blocks(cluster, [first, second], [])
        else:
            assert len(_wait_for_some(cluster, [first, second], 2, [])) == 2
    assert restarts and left[0] == [first.key, second.key] and left[-1] == [second.key]


@pytest.mark.parametrize("allow_pending", [True, False])
@pytest.mark.parametrize("status", ["running", "paused"])
def test_blocks_that_no_worker_makes(clock, status, allow_pending):
    """They are given up at once where they can be asked for anew, of a worker."""
    cluster = Cluster(a=(status, {}), b=("paused", {}))
    start = clock.now
    found = _wait(cluster, [Pending()], 300.0, allow_pending=allow_pending)
    assert found == (set(), {"block"})
    is_early = allow_pending and status == "running"
    assert clock.now - start == pytest.approx(6 if is_early else 300, abs=1.5)


def test_sizes_of_blocks_that_the_scheduler_does_not_know_yet():
    """After a fit that gave them up, news of them may still be under way."""
    answers = [KeyError("block"), KeyError("block"), {"block": 8}]

    class Slow:
        def nbytes(self, keys, summary):
            assert (keys, summary) == (["block"], False)
            if isinstance(answer := answers.pop(0), Exception):
                raise answer
            return answer

    block = SimpleNamespace(key="block")
    with dask.config.set({"dask-ma.launch.poll-interval": "1ms"}):
        assert _sizes(Slow(), [block]) == [8]
    answers = [KeyError("block")]
    with dask.config.set({"dask-ma.launch.start-timeout": "0s"}):
        assert _sizes(Slow(), [block]) == []
