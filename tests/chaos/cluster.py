"""A cluster whose workers come and go as those of a batch system do.

Each worker and its nanny are a process of their own, the job, that may end without the
others. Jobs are forked from a process that has imported what they need, and so are the
workers of a job, so that a worker is there again in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import util
from multiprocessing.process import BaseProcess
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context

N_WORKERS = 3
PRELOADED = [
    "distributed",
    "pandas",
    "dask_ma",
    "dask_ma.butterfly._agent",
    "dask_ma.ma.sgd._agent",
    "dask_ma.ma.lda._agent",
    "dask_ma.mpca.training._agent",
    "dask_ma.schmp.l1._agent",
    "dask_ma.sfb.logistic._agent",
    "sklearn.linear_model",  # which fits by SGD load, one second in each process
]
_MEMORY_LIMIT = "900 MB"
_HEAL = 120.0  # seconds for new workers to come
_PATIENCE = 8.0  # seconds that a nanny may take to start a worker again
_SETTLE = 8.0  # seconds that a cluster has to forget a fit
_LOOK = 0.1  # seconds between looks at the cluster


def fork_quickly() -> None:
    """Have processes forked from one that has imported what they need."""
    # Jobs that are killed leave their semaphores to the tracker, which would say so.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning")
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    get_mp_context().set_forkserver_preload(PRELOADED)


def _run_job(scheduler: str, name: str, directory: str, go: Any) -> None:
    """Process of a job: warm up, wait for the word, be a nanny with a worker."""
    os.setsid()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, sys.stdout.fileno())
    os.dup2(quiet, sys.stderr.fileno())
    fork_quickly()
    first = get_mp_context().Process(target=_nothing)
    with _forked_server():
        first.start()
    first.join()
    go.recv()
    from distributed.cli.dask_worker import main

    options = ["--nthreads", "1", "--no-dashboard", "--memory-limit", _MEMORY_LIMIT]
    main([scheduler, "--name", name, "--local-directory", directory, *options])


@contextlib.contextmanager
def _forked_server() -> Iterator[None]:
    """A server of forks that starts in here is a fork itself: it imports nothing."""
    start = util.spawnv_passfds

    def fork(path: bytes, args: list[Any], passfds: list[int]) -> int:
        if ".forkserver " not in args[-1]:
            return start(path, args, passfds)
        pid = os.fork()
        if pid == 0:
            try:  # while it held the other files, it would see no end of this process
                nothing = os.open(os.devnull, os.O_RDWR)
                held = {int(name) for name in os.listdir("/proc/self/fd")}
                for number in held - {0, 1, 2, nothing, *passfds}:
                    os.dup2(nothing, number, inheritable=False)
                exec(args[-1])
            finally:
                os._exit(0)
        return pid

    util.spawnv_passfds = fork
    try:
        yield
    finally:
        util.spawnv_passfds = start


def _nothing() -> None:
    """Of a process that is started for its imports."""


class Job:
    """A nanny and its worker.

    Parameters
    ----------
    scheduler : str
        Address of the scheduler.
    name : str
        Name of the worker.
    directory : str
        Where the worker may spill to.
    """

    def __init__(self, scheduler: str, name: str, directory: str) -> None:
        self.name = name
        theirs, self._go = get_mp_context().Pipe(duplex=False)
        self.process: BaseProcess = get_mp_context().Process(
            target=_run_job, args=(scheduler, name, directory, theirs)
        )
        self.process.start()
        theirs.close()

    def start(self) -> None:
        """Let the worker join the cluster."""
        self._go.send(None)

    def end(self, sign: int = signal.SIGKILL) -> None:
        """Send a signal to the nanny."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, sign)

    def join(self) -> None:
        """Wait until the nanny has gone, by force after a while."""
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        # A worker that is stopped does not notice that its nanny has gone.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)


class Cluster:
    """A scheduler in this process, and jobs that join it."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        enter = self._stack.enter_context
        # A rank for each thread, however few the rows are.
        enter(dask.config.set({"dask-ma.data.moved-rows": 0}))
        self._directory = enter(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        cluster = enter(
            LocalCluster(
                n_workers=0,
                processes=True,
                dashboard_address=":0",
                silence_logs=False,
            )
        )
        self.address: str = cluster.scheduler_address
        self._names = map("job-{}".format, itertools.count())
        self.jobs: list[Job] = []
        self._lock = threading.Lock()
        self.client: Client = enter(Client(cluster, set_as_default=False))
        self.spare = self._make()

    def close(self) -> None:
        """End all jobs, and the scheduler."""
        jobs = [*self.jobs, self.spare]
        for job in jobs:
            job.end()
        for job in jobs:
            job.join()
        self._stack.close()

    def add(self) -> Job:
        """Let one more worker join; it is there in half a second."""
        with self._lock:
            job, self.spare = self.spare, self._make()
            self.jobs.append(job)
        job.start()
        return job

    def workers(self) -> dict[str, str]:
        """Name and address of each worker that takes tasks."""
        identity = self.client.sync(self.client.scheduler.identity, n_workers=-1)
        return {
            worker["name"]: address
            for address, worker in identity["workers"].items()
            if worker["status"] == "running"
        }

    def heal(self) -> None:
        """See to it that there are as many workers as there should be, and no more."""
        deadline = time.monotonic() + _HEAL
        patience = time.monotonic() + _PATIENCE
        while True:
            self._sort_out(N_WORKERS)
            while len(self.jobs) < N_WORKERS:
                self.add()
                patience = time.monotonic() + _PATIENCE
            wanted, found = {job.name for job in self.jobs}, self.workers()
            if set(found) == wanted and self._answer(found):
                return
            if time.monotonic() > patience:
                # Their nannies do not start them again.
                self._drop([job for job in self.jobs if job.name not in found])
                patience = time.monotonic() + _PATIENCE
            if time.monotonic() > deadline:
                raise RuntimeError(f"workers {wanted} are wanted, found {found}")
            time.sleep(_LOOK)

    def pids(self) -> dict[str, int]:
        """Process of each worker, by the name of its job."""
        found = self.client.run(os.getpid)
        return {
            name: found[address]
            for name, address in self.workers().items()
            if address in found
        }

    def _make(self) -> Job:
        return Job(self.address, next(self._names), self._directory)

    def _sort_out(self, n_jobs: int) -> None:
        """Forget jobs that have ended, end those that are too many."""
        self._drop([job for job in self.jobs if not job.process.is_alive()])
        self._drop(self.jobs[n_jobs:])

    def _drop(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.end()
            job.join()
            self.jobs.remove(job)

    def _answer(self, workers: dict[str, str]) -> bool:
        """Whether all workers answer, so that none is about to be found dead."""
        try:
            answers = self.client.run(os.getpid, on_error="return")
        except Exception:
            return False
        return set(answers) == set(workers.values()) and all(
            isinstance(pid, int) for pid in answers.values()
        )

    # What is left of a fit ---------------------------------------------------------

    def leftovers(self) -> dict[str, Any]:
        """What fits have left behind, here and on the cluster; should be nothing."""
        deadline = time.monotonic() + _SETTLE
        while True:
            found = {**self._left_on_scheduler(), **self._left_on_workers()}
            found |= _left_here()
            found = {name: value for name, value in found.items() if value}
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(_LOOK)

    def _left_on_scheduler(self) -> dict[str, Any]:
        def look(dask_scheduler: Any) -> dict[str, Any]:
            topics = dask_scheduler._broker._topics.items()
            return {
                "tasks": [k for k in map(str, dask_scheduler.tasks) if "dask_ma" in k],
                "subscribers": [
                    str(name)
                    for name, topic in topics
                    if str(name).startswith("dask_ma") and topic.subscribers
                ],
            }

        return dict(self.client.run_on_scheduler(look))

    def _left_on_workers(self) -> dict[str, Any]:
        answers = self.client.run(left_on_worker)
        return {
            f"{what} on {address}": value
            for address, state in answers.items()
            for what, value in state.items()
        }

    def tasks(self) -> str:
        """States of all tasks, as the scheduler sees them."""

        def look(dask_scheduler: Any) -> list[str]:
            return [
                f"{key}: {task.state} on {task.processing_on}, for {task.who_wants}, "
                f"restricted to {task.worker_restrictions}"
                for key, task in dask_scheduler.tasks.items()
            ]

        with contextlib.suppress(Exception):
            return "\n".join(self.client.run_on_scheduler(look))
        return "the scheduler does not answer"

    def stacks(self) -> Iterator[str]:
        """What threads that are in this library are doing, on all workers."""
        with contextlib.suppress(Exception):
            for address, stacks in self.client.run(stacks_here).items():
                for stack in stacks:
                    yield f"{address}: {stack}"


def left_on_worker() -> dict[str, Any]:
    """What fits have left in a worker process."""
    from dask_ma.comm._plugin import registry
    from dask_ma.engine import _events, _process
    from dask_ma.engine.recovery import _memory, _states

    return {
        "open ranks": registry.open_ranks(),
        "messages": len(registry.waiting_room),
        "links": list(_events._links),
        "BLAS limits": _process._blas._users,
        "kept states": _memory.state_memory.fits(),
        "requests": list(_states._regroup_wanted),
    }


def _left_here() -> dict[str, Any]:
    from dask_ma.engine import _events

    names = [thread.name for thread in threading.enumerate()]
    return {
        "threads": [n for n in names if "dask_ma" in n or "_close_everywhere" in n],
        "followed runs": list(_events.subscriptions._handlers),
    }


def stacks_here() -> list[str]:
    """Stacks of the threads of this process that are in this library."""
    import traceback

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = (
        (names.get(ident, "?"), "".join(traceback.format_stack(frame)[-8:]))
        for ident, frame in sys._current_frames().items()
    )
    return [f"{name}\n{stack}" for name, stack in stacks if "dask_ma" in stack]
