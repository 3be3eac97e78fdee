"""Clusters, small problems, checks and slow references that the tests share.

Functions that go to a worker process are defined inside a test or a helper: those are
pickled by value, and test modules cannot be imported there.
"""

from __future__ import annotations

import gc
import os
import pkgutil
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from calm import CALM
from distributed import Client, LocalCluster, Worker
from distributed.client import (
    _del_global_client,
    _global_clients,
    _set_global_client,
)
from distributed.comm import CommClosedError
from distributed.utils import get_mp_context
from pairs import each, pairwise
from scipy import sparse, special

import dask_ma
from dask_ma.comm import LocalGroup
from dask_ma.engine import RankContext, _events
from dask_ma.exceptions import GroupClosedError

# The methods of the package sparse are compiled at their first call, in each process
# anew: up to 10 s of the processor for a few rows. What they give is the same without.
# numba reads this when it is imported, by Dask; processes of the tests inherit it.
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")
# Pages of schedulers, which load bokeh for two seconds where it is installed: without
# them Dask has none.
sys.modules["distributed.dashboard.scheduler"] = None  # type: ignore[assignment]
# Nannies pass this on.
dask.config.set(
    {
        **CALM,
        "distributed.scheduler.work-stealing-interval": "5s",
        "distributed.worker.memory.monitor-interval": "1s",
        # A worker that imports all modules itself takes 3 s of the processor until it
        # has fitted a first model; one that is forked from where they are, 0.6 s.
        "distributed.worker.multiprocessing-method": "forkserver",
        # Small problems of the tests are to be fitted by several ranks.
        "dask-ma.data.moved-rows": 0,
    }
)
get_mp_context().set_forkserver_preload(
    [
        "distributed",
        "dask.array",
        "_pytest.assertion.rewrite",  # comes with every function that asserts
        # A folder by itself loads none of its modules.
        *(each.name for each in pkgutil.walk_packages(dask_ma.__path__, "dask_ma.")),
        # Ranks that take steps of its SGD load it: one second in each process.
        "sklearn.linear_model",
        # Passed over where it is not. The first optimiser imports what compiles.
        "torch._dynamo",  # two seconds more in each of them
        "settled",
    ]
)
# Where that process finds the last of them: Python 3.11 tells it no other folders.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent / "shared"), os.environ.get("PYTHONPATH")])
)

_WAITING = frozenset({"chaos", "faults"})  # folders of tests
_SETTLE = 10.0  # seconds that a cluster has to forget a run
_JOIN = 60.0  # seconds after which a rank counts as stuck


def pytest_configure(config: pytest.Config) -> None:
    """Let each process begin to collect at another file.

    In a fresh clone the tests' modules are compiled, with their assertions, which takes
    as long as all else of a collection. Processes that begin at the same file would all
    compile all of them; so each finds what the others have done.
    """
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not config.ArgsSource.TESTPATHS:
        return
    files = sorted(map(str, Path(__file__).parent.rglob("test_*.py")))
    number = int(worker["workerid"].removeprefix("gw"))
    first = number * len(files) // worker["workercount"]
    config.args[:] = files[first:] + files[:first]


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(
    metafunc: pytest.Metafunc,
) -> Generator[None, object, object]:
    """Of a test marked with `pairs` or `each`, leave some cases.

    Here they are still a line of a table. Each that became a test, a third of all,
    would take half a millisecond in each process that runs tests.
    """
    try:
        return (yield)
    finally:
        pairs, mark = map(metafunc.definition.get_closest_marker, ("pairs", "each"))
        # A word for each `parametrize`: what one of them sets belongs together.
        if mark is not None:
            kept = each(metafunc._calls, lambda case: case._idlist, *mark.args)
            metafunc._calls[:] = kept
        elif pairs is not None:
            metafunc._calls[:] = pairwise(metafunc._calls, lambda case: case._idlist)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first, and apart from each other those that wait."""
    # Files with slow tests come first, and before folders those with tests of all that
    # lies in them: at the end one process would wait for the other.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    files = sorted(
        {item.path for item in items},
        key=lambda path: (path not in slow, len(path.parts), path),
    )
    # Those that wait for lost workers take turns with two others each: where all
    # processes wait at a time, nobody has the processors.
    waiting = [path for path in files if path.parent.name in _WAITING]
    others = [path for path in files if path.parent.name not in _WAITING]
    place = {path: 3 * i for i, path in enumerate(waiting)}
    place |= {path: 3 * (i // 2) + i % 2 + 1 for i, path in enumerate(others)}
    items.sort(key=lambda item: place[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected, which would take a third of that.

    There are ever more objects, nearly none of which is garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave what is there before the first test to no collector of garbage.

    These are millions of objects, and a collection takes a second; some tests want one.
    What of them is garbage is little, and looked for it would cost as much. What the
    tests share grows by and by: all objects are looked through a tenth as often as
    usual, those of late as often.
    """
    gc.freeze()
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, 10 * old)
    _stay_on_a_processor()


def _stay_on_a_processor() -> None:
    """Give each process that runs tests a processor of its own, as long as there are.

    Ranks of small fits are threads that take turns at the interpreter. On several
    processors each turn wakes another one up, and threads get in each other's way where
    NumPy lets go of the interpreter: a tenth of the processor time of tests. Processes
    for which none is left go where there is time.
    """
    name = os.environ.get("PYTEST_XDIST_WORKER")
    if name is None or not hasattr(os, "sched_setaffinity"):
        return
    places = sorted(os.sched_getaffinity(0))
    number = int(name.removeprefix("gw"))
    if number < len(places):
        os.sched_setaffinity(0, places[number : number + 1])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Leave what a file's tests have left behind to no collector either.

    It is what later tests share. All of it would be looked through by each test that
    wants a collection, for seconds once there is much.
    """
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


class FitInterruptedError(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def interrupted(monkeypatch):
    """``with interrupted(n):`` the fit inside ends badly when it has kept round n."""

    @contextmanager
    def arm(number: int) -> Iterator[None]:
        original = RankContext.save_state

        def keep(self: RankContext, n_rounds: int, *args: Any, **kwargs: Any) -> None:
            original(self, n_rounds, *args, **kwargs)
            if n_rounds >= number and self.group.rank == 0:  # who has written it
                raise FitInterruptedError

        with monkeypatch.context() as patched, pytest.raises(FitInterruptedError):
            patched.setattr(RankContext, "save_state", keep)
            yield

    return arm


@pytest.fixture(scope="session")
def _inproc_cluster() -> Iterator[Client]:
    """Client of four one-thread workers in this process."""
    with _cluster(n_workers=4, threads_per_worker=1, processes=False) as client:
        yield client


@pytest.fixture(scope="session")
def _process_cluster() -> Iterator[Client]:
    """Client of four one-thread worker processes."""
    with _cluster(n_workers=4, threads_per_worker=1, processes=True) as client:
        yield client


@pytest.fixture(scope="session")
def _wide_cluster() -> Iterator[Client]:
    """Client of two worker processes with four threads each."""
    with _cluster(n_workers=2, threads_per_worker=4, processes=True) as client:
        yield client


@contextmanager
def _cluster(**options: Any) -> Iterator[Client]:
    """A cluster whose client is not the current one, for tests without a client."""
    with (
        dask.config.set({"distributed.worker.memory.monitor-interval": "10s"}),
        LocalCluster(dashboard_address=":0", **options) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        _calm(cluster)
        yield client


def _calm(cluster: LocalCluster) -> None:
    """Have workers say that they are there each ten seconds, and not twice in one."""
    handlers = cluster.scheduler.handlers
    heartbeat = handlers["heartbeat_worker"]

    def slowly(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {**heartbeat(*args, **kwargs), "heartbeat-interval": 10.0}

    handlers["heartbeat_worker"] = slowly


@pytest.fixture
def inproc_client(_inproc_cluster: Client) -> Iterator[Client]:
    """Client of four one-thread workers in this process; clean after the test."""
    yield _inproc_cluster
    check_clean(_inproc_cluster)


@pytest.fixture
def process_client(_process_cluster: Client) -> Iterator[Client]:
    """Client of four one-thread worker processes; clean after the test."""
    yield _process_cluster
    check_clean(_process_cluster)


@pytest.fixture
def wide_client(_wide_cluster: Client) -> Iterator[Client]:
    """Client of two four-thread worker processes; clean after the test."""
    yield _wide_cluster
    check_clean(_wide_cluster)


@pytest.fixture(scope="module")
def killable_client() -> Iterator[Client]:
    """The client of two processes that each test may kill: others come instead."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(params=["inproc", "process"])
def any_client(request: pytest.FixtureRequest) -> Client:
    """Each kind of cluster in turn."""
    return request.getfixturevalue(f"{request.param}_client")


@pytest.fixture(scope="session")
def assert_clean() -> Callable[[Client], None]:
    """Assert that a cluster has forgotten all runs, for clusters of a test's own."""
    return check_clean


def check_clean(client: Client) -> None:
    """Assert that nothing of any run is left, on the cluster and in this process."""
    deadline, seconds = time.monotonic() + _SETTLE, 0.02
    while (left := _leftovers_or_why(client)) and time.monotonic() < deadline:
        time.sleep(seconds)
        # To ask all workers takes as much of the processor as a test has.
        seconds = min(2 * seconds, 0.2)
    assert not left


def _leftovers_or_why(client: Client) -> dict[str, Any]:
    """What is left, or why nobody says so: a nanny may be about to restart a worker."""
    try:
        return _leftovers(client)
    except CommClosedError as error:
        return {"no answer": error}


def _leftovers(client: Client) -> dict[str, Any]:
    """What a run leaves behind unless it is cleaned up."""

    def on_scheduler(dask_scheduler: Any) -> tuple[list[str], list[str]]:
        tasks = [
            str(key) for key in dask_scheduler.tasks if str(key).startswith("dask_ma")
        ]
        subscribers = [
            (name, subscriber)
            for name, topic in dask_scheduler._broker._topics.items()
            if str(name).startswith("dask_ma")
            for subscriber in topic.subscribers
        ]
        return tasks, subscribers

    def on_worker() -> tuple[Any, ...]:
        from dask_ma.comm._plugin import registry
        from dask_ma.engine import _events, _process
        from dask_ma.engine.recovery import _memory, _states

        return (
            registry.open_ranks(),
            list(_events._links),
            _process._blas._users,
            _memory.state_memory.fits(),
            list(_states._regroup_wanted),
            len(registry.waiting_room),
        )

    tasks, subscribers, states = _ask(client, on_scheduler, on_worker)
    busy = {address: state for address, state in states.items() if any(state)}
    threads = [
        thread.name
        for thread in threading.enumerate()
        if "dask_ma" in thread.name or "_close_everywhere" in thread.name
    ]
    found = {
        "tasks": tasks,
        "subscribers": subscribers,
        "ranks, links, users of the BLAS limit, states, requests, messages": busy,
        "threads": threads,
        "followed runs": list(_events.subscriptions._handlers),
    }
    return {name: value for name, value in found.items() if value}


def _ask(
    client: Client,
    on_scheduler: Callable[[Any], tuple[list[str], list[str]]],
    on_worker: Callable[[], tuple[Any, ...]],
) -> tuple[list[str], list[str], dict[str, tuple[Any, ...]]]:
    """What both functions say, the second for each process that has workers."""
    cluster = client.cluster
    workers = cluster.workers.values() if isinstance(cluster, LocalCluster) else ()
    if not workers or not all(isinstance(worker, Worker) for worker in workers):
        return *client.run_on_scheduler(on_scheduler), client.run(on_worker)

    # Scheduler and workers are on one event loop of this process, where nothing moves
    # while they are looked at. Messages to all of them would take longer than many of
    # the tests.
    async def look() -> tuple[list[str], list[str], dict[str, tuple[Any, ...]]]:
        return *on_scheduler(cluster.scheduler), {"this process": on_worker()}

    return cluster.sync(look)


@pytest.fixture
def configured() -> Callable[..., AbstractContextManager[None]]:
    """``configured(values, client=None)`` sets values here and on all workers."""
    return _configured


@contextmanager
def _configured(values: dict[str, Any], client: Client | None = None) -> Iterator[None]:
    """Set configuration values here and on the workers, and put the old ones back."""

    def exchange(new: dict[str, Any]) -> dict[str, Any]:
        old = {key: dask.config.get(key) for key in new}
        dask.config.set(new)
        return old

    with dask.config.set(values):
        before = {} if client is None else client.run(exchange, values)
        try:
            yield
        finally:
            for address, old in before.items():
                client.run(exchange, old, workers=[address])


@pytest.fixture
def run_ranks() -> Callable[..., list[Any]]:
    """``run_ranks(program, n_ranks, ranks_per_node=None)`` on threads."""
    return _run_ranks


def _run_ranks(
    program: Callable[[LocalGroup], Any],
    n_ranks: int,
    ranks_per_node: int | None = None,
) -> list[Any]:
    """Call ``program(group)`` for each rank of a LocalGroup, in a thread of its own.

    Return the results in rank order, or raise the error that came first in rank order;
    an error on one rank ends the others.
    """
    groups = LocalGroup.create(n_ranks, ranks_per_node)

    def run(group: LocalGroup) -> Any:
        try:
            return program(group)
        except BaseException as error:
            group.abort(GroupClosedError(f"rank {group.rank} failed: {error!r}"))
            raise

    with ThreadPoolExecutor(n_ranks) as pool:
        futures = [pool.submit(run, group) for group in groups]
        try:
            errors = [future.exception(_JOIN) for future in futures]
        except TimeoutError:
            groups[0].abort(GroupClosedError("a rank is stuck"))
            raise
    found = [error for error in errors if error is not None]
    if found:
        raise min(found, key=lambda error: isinstance(error, GroupClosedError))
    return [future.result() for future in futures]


@pytest.fixture(scope="session", autouse=True)
def _shared_client(_inproc_cluster: Client) -> None:
    """In-process workers use the client of the tests for what tasks do.

    Otherwise each makes a client of its own, which becomes the default of this process
    and outlives the cluster.
    """
    _set_global_client(_inproc_cluster)
    _inproc_cluster.run(lambda dask_worker: dask_worker._get_client())
    _drop_default_clients()


@pytest.fixture(autouse=True)
def _no_default_client() -> Iterator[None]:
    """No client is there unless a test has one."""
    _drop_default_clients()
    yield
    _drop_default_clients()


def _drop_default_clients() -> None:
    """Forget the default clients, and that Dask is to compute with them."""
    for client in list(_global_clients.values()):
        _del_global_client(client)
        dask.config.config.pop("scheduler", None)


@pytest.fixture
def cluster(inproc_client: Client) -> Iterator[Client]:
    """The current client: four one-thread workers in this process."""
    with inproc_client.as_current():
        yield inproc_client


@pytest.fixture
def processes(process_client: Client) -> Iterator[Client]:
    """The current client: four one-thread worker processes."""
    with process_client.as_current():
        yield process_client


Data = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="session")
def binary() -> Data:
    """120 rows of 6 features, two classes with some noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 6)) * (rng.random((120, 6)) < 0.7)
    return X, (X[:, 0] - X[:, 1] + 0.3 * rng.normal(size=120) > 0).astype(int)


@pytest.fixture(scope="session")
def multi() -> Data:
    """120 rows of 6 features, four classes."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 4, 120)
    return rng.normal(size=(120, 6)) + 1.5 * np.eye(4, 6)[y], y


@pytest.fixture(scope="session")
def regression() -> Data:
    """120 rows of 6 features, a linear target with some noise."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(120, 6))
    return X, X @ np.arange(6) / 3 + 1 + 0.1 * rng.normal(size=120)


@pytest.fixture(scope="session")
def weights() -> np.ndarray:
    """Positive weights of 120 rows."""
    return np.random.default_rng(3).uniform(0.2, 3, 120)


_FORMULAS: dict[str, Callable[..., np.ndarray]] = {
    "hinge": lambda y, p, eps: np.maximum(0, 1 - y * p),
    "squared_hinge": lambda y, p, eps: np.maximum(0, 1 - y * p) ** 2,
    "perceptron": lambda y, p, eps: np.maximum(0, -y * p),
    "log_loss": lambda y, p, eps: -special.log_expit(y * p),
    "modified_huber": lambda y, p, eps: np.where(
        y * p >= -1, np.maximum(0, 1 - y * p) ** 2, -4 * y * p
    ),
    "squared_error": lambda y, p, eps: (y - p) ** 2 / 2,
    "huber": lambda y, p, eps: special.huber(eps, y - p),
    "epsilon_insensitive": lambda y, p, eps: np.maximum(0, abs(y - p) - eps),
    "squared_epsilon_insensitive": lambda y, p, eps: (
        np.maximum(0, abs(y - p) - eps) ** 2
    ),
}


def _targets(y: np.ndarray) -> list[np.ndarray]:
    """Targets -1 and 1 of each problem of one class against the rest."""
    classes = np.unique(y)
    positives = classes[1:] if len(classes) == 2 else classes
    return [np.where(y == label, 1.0, -1.0) for label in positives]


@pytest.fixture(scope="session")
def objective() -> Callable[..., float]:
    """Objective of a fitted estimator, row by row from the formulas."""

    def evaluate(
        estimator: Any, X: Any, y: np.ndarray, weight: np.ndarray | None = None
    ) -> float:
        X = X.toarray() if sparse.issparse(X) else np.asarray(X)
        is_classifier = hasattr(estimator, "classes_")
        targets = _targets(np.asarray(y)) if is_classifier else [np.asarray(y)]
        weight = np.ones(len(y)) if weight is None else weight
        penalties = {
            None: lambda w: 0.0,
            "l2": lambda w: w @ w / 2,
            "l1": lambda w: abs(w).sum(),
        }
        ratio = estimator.l1_ratio
        penalties["elasticnet"] = lambda w: (
            ratio * penalties["l1"](w) + (1 - ratio) * penalties["l2"](w)
        )
        values = []
        for w, b, target in zip(
            np.atleast_2d(estimator.coef_), estimator.intercept_, targets, strict=True
        ):
            losses = _FORMULAS[estimator.loss](target, X @ w + b, estimator.epsilon)
            values.append(
                np.average(losses, weights=weight)
                + estimator.alpha * penalties[estimator.penalty](w)
            )
        return float(np.mean(values))

    return evaluate
