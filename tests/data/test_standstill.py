"""Blocks that nobody is going to compute: waits for them come to an end."""

import pytest

from dask_ma.data import _recovery
from dask_ma.data._collections import Standstill
from dask_ma.data._recovery import _wait
from dask_ma.exceptions import CommTimeoutError


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
        self.given = {}
        self.scheduler = self

    def identity(self, n_workers):
        assert n_workers == -1
        return {"workers": self.workers}

    def sync(self, function, **arguments):
        return function(**arguments)

    def processing(self, workers):
        return {worker: self.given.get(worker, ()) for worker in workers}

    def who_has(self, futures):
        return {}


class Pending:
    """A future whose task waits."""

    status, key = "pending", "block"


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in ("_collections", "_recovery"):
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


def test_a_standstill_ends_in_an_error(clock, configured):
    standstill = Standstill(Cluster(a=("paused", {}), b=("paused", {})))
    with configured({"dask-ma.launch.start-timeout": "10 s"}):
        clock.now += 9
        standstill.check()
        clock.now += 1
        found = "for 10 s .*start-timeout.*: 2 are paused.*memory.*, and 0 are not"
        with pytest.raises(CommTimeoutError, match=found):
            standstill.check()


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
