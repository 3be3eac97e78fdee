"""What do hundreds of ranks cost the client, the scheduler and rank 0?

Five tables. The first is measured on a cluster of this machine, whose scheduler and
workers are processes of their own: processor time of each for a launch and its
clean-up, for following ranks that work, and the bytes of the tasks. The second counts
messages of collective operations among ranks that are threads, each of which passes for
a process. The third simulates more ranks than a machine carries: the steps of each
operation on a clock for every rank, with the costs of a message measured before. The
fourth does so for launches: seconds of client and scheduler by a straight line through
those of the first table, whose last point it leaves out and foretells; the bytes of the
tasks, which are those of tasks that are made; and the time until the last rank has
heard where the others are. The fifth counts the functions of Python that client and
scheduler call in a launch: by it one can tell on a busy machine whether they grow with
the ranks.

Run ``python many_ranks.py --help``; the defaults take some minutes. All but the columns
of seconds by the clock can be trusted on a machine that does other things, too.
"""

from __future__ import annotations

import argparse
import csv
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import dask
import numpy as np
import psutil
from dask.distributed import Client

from dask_ma import run_spmd
from dask_ma.comm import (
    Group,
    LocalGroup,
    allgather,
    allreduce,
    barrier,
    broadcast,
    gather,
)
from dask_ma.comm._dask import children_of
from dask_ma.comm._topology import doubling_partners, doubling_steps, powers_of_two
from dask_ma.engine import _launch
from dask_ma.engine._run import Run
from dask_ma.engine.recovery._identity import FitInfo

# Without the profiler: `sys._current_frames` of some versions of Python can come to a
# deadlock with threads that start (CPython's issue 106883), and many do here.
_CLUSTER = """
import sys, time, dask
from dask.distributed import LocalCluster
dask.config.set({"distributed.worker.profile.enabled": False})
if __name__ == "__main__":
    cluster = LocalCluster(
        n_workers=int(sys.argv[1]), threads_per_worker=1, dashboard_address=":0"
    )
    print(cluster.scheduler_address, flush=True)
    time.sleep(1e6)
"""
SMALL = np.ones(4)
COLLECTIVES: dict[str, Callable[[Group], Any]] = {
    "barrier": barrier,
    "broadcast": lambda group: broadcast(group, SMALL),
    "allreduce, 32 bytes": lambda group: allreduce(group, SMALL),
    "allreduce, 1 MiB": lambda group: allreduce(group, np.ones(1 << 17)),
    "allgather, 32 bytes": lambda group: allgather(group, SMALL),
    "gather, 32 bytes": lambda group: gather(group, SMALL),
}


# Launches on a cluster --------------------------------------------------------------


@contextmanager
def cluster_of_processes(n_workers: int) -> Iterator[tuple[Client, psutil.Process]]:
    """A client, and the process of its scheduler, whose children are the workers."""
    command = [sys.executable, "-c", _CLUSTER, str(n_workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        parent = psutil.Process(process.pid)
        try:
            assert process.stdout is not None
            # A rank for each process, however few the rows of a fit are.
            everywhere = dask.config.set({"dask-ma.data.moved-rows": 0})
            with everywhere, Client(process.stdout.readline().strip()) as client:
                client.wait_for_workers(n_workers)
                yield client, parent
        finally:
            family = [*parent.children(recursive=True), parent]
            for each in family:
                each.kill()


def seconds_of(processes: list[psutil.Process]) -> float:
    """Processor time of some processes so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def nothing(group: Group) -> int:
    """Program of a launch without work."""
    return group.rank


def work(group: Group) -> None:
    """Program of ranks that are followed while they compute."""
    time.sleep(4)


def time_collectives(group: Group, n_times: int) -> tuple[float, float]:
    """Seconds by the clock of a barrier and of a small allreduce."""
    found = []
    for operation in (barrier, COLLECTIVES["allreduce, 32 bytes"]):
        operation(group)
        start = time.perf_counter()
        for _ in range(n_times):
            operation(group)
        found.append((time.perf_counter() - start) / n_times)
    return found[0], found[1]


def n_tasks(client: Client) -> int:
    """Tasks that the scheduler has not forgotten."""
    return int(
        client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
    )


def addresses_of(n_ranks: int) -> tuple[str, ...]:
    """Addresses as those of as many workers."""
    return tuple(f"tcp://10.0.{i // 250}.{i % 250}:40000" for i in range(n_ranks))


def bytes_of_tasks(n_ranks: int) -> int:
    """Bytes of what the tasks of all ranks are sent of a run."""
    addresses = addresses_of(n_ranks)
    run = Run(
        name="MASGDClassifier",
        run_id="0" * 32,
        addresses=addresses,
        agent=nothing,
        params=None,
        shares_params=True,
        shares_addresses=n_ranks > _launch._FEW,
        seed=0,
        blas_threads=1,
        listening=False,
        collect="root",
        fit_info=FitInfo(
            "MASGDClassifier", "0" * 32, known_workers=frozenset(addresses)
        ),
    )
    return sum(len(pickle.dumps(run.of_rank(rank))) for rank in range(n_ranks))


def measure_launch(
    client: Client, scheduler: psutil.Process, n_ranks: int, repeats: int
) -> dict[str, Any]:
    """Seconds of a launch of nothing with its clean-up, and of following."""
    own = psutil.Process()
    workers = scheduler.children(recursive=True)
    sides = {"client": [own], "scheduler": [scheduler], "workers": workers}

    def run(program: Callable[[Group], Any]) -> dict[str, float]:
        before = {name: seconds_of(side) for name, side in sides.items()}
        start = time.perf_counter()
        run_spmd(program, client=client, n_ranks=n_ranks)
        wall = time.perf_counter() - start
        while n_tasks(client):
            time.sleep(0.1)
        spent = {name: seconds_of(side) - before[name] for name, side in sides.items()}
        return {"clock": wall, **spent}

    run(nothing)
    runs = [run(nothing) for _ in range(repeats)]
    launch = {name: median(each[name] for each in runs) for name in runs[0]}
    followed = run(work)
    times = run_spmd(time_collectives, 5, client=client, n_ranks=n_ranks)
    row = {"ranks": n_ranks, "KB of tasks": round(bytes_of_tasks(n_ranks) / 1e3)}
    row |= {f"launch, {name} [s]": round(launch[name], 2) for name in launch}
    for name in ("client", "scheduler"):
        extra = max(0.0, followed[name] - launch[name]) / 4
        row[f"following, {name} [s/s]"] = round(extra, 3)
    row["barrier [ms]"] = round(1e3 * max(first for first, _ in times), 1)
    row["allreduce [ms]"] = round(1e3 * max(second for _, second in times), 1)
    return row


# Calls of a launch ------------------------------------------------------------------


class Calls:
    """Counts the functions that a thread calls, which no other load changes."""

    def __init__(self) -> None:
        self.number = 0

    def start(self) -> None:
        """Begin in the thread that calls this."""
        sys.setprofile(self._note)

    def stop(self) -> int:
        """End in the same thread; how many there were."""
        sys.setprofile(None)
        return self.number

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        self.number += event in ("call", "c_call")


def start_on_scheduler(dask_scheduler: Any) -> None:
    """Count on the scheduler's event loop."""
    dask_scheduler.calls = Calls()
    dask_scheduler.calls.start()


def stop_on_scheduler(dask_scheduler: Any) -> int:
    """What has been counted there."""
    return int(dask_scheduler.calls.stop())


def count_calls(client: Client, n_ranks: int) -> dict[str, Any]:
    """Functions that client and scheduler call for a launch and its clean-up."""
    own, of_loop = Calls(), Calls()

    async def start() -> None:
        of_loop.start()

    async def stop() -> int:
        return of_loop.stop()

    client.run_on_scheduler(start_on_scheduler)
    client.sync(start)
    own.start()
    run_spmd(nothing, client=client, n_ranks=n_ranks)
    number = own.stop() + client.sync(stop)
    row: dict[str, Any] = {"ranks": n_ranks, "client": number}
    row["scheduler"] = client.run_on_scheduler(stop_on_scheduler)
    for side in ("client", "scheduler"):
        row[f"{side}, for a rank"] = round(row[side] / n_ranks)
    return row


# Messages of collectives ------------------------------------------------------------


def count_messages(n_ranks: int) -> dict[str, Any]:
    """Messages that a rank sends at most, and that rank 0 receives."""
    groups = LocalGroup.create(n_ranks, ranks_per_node=1)
    arrived = [0]
    put = groups[0]._mailbox.put

    def count(*args: Any, **kwargs: Any) -> None:
        arrived[0] += 1
        put(*args, **kwargs)

    groups[0]._mailbox.put = count  # type: ignore[method-assign]
    row: dict[str, Any] = {"ranks": n_ranks}
    for name, operation in COLLECTIVES.items():
        before = [group.counters.messages_sent for group in groups]
        arrived[0] = 0
        run_threads(groups, operation)
        sent = [
            group.counters.messages_sent - each
            for group, each in zip(groups, before, strict=True)
        ]
        row[name] = f"{max(sent)} / {arrived[0]}"
    return row


def run_threads(groups: list[LocalGroup], operation: Callable[[Group], Any]) -> None:
    """Have each rank call an operation in a thread of its own."""
    threads = [threading.Thread(target=operation, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# Simulation -------------------------------------------------------------------------


class Costs:
    """Seconds that a message takes.

    Parameters
    ----------
    overhead : float
        Of the processors at each end.
    latency : float
        On the way.
    bandwidth : float
        Bytes a second.
    """

    def __init__(self, overhead: float, latency: float, bandwidth: float) -> None:
        self.overhead, self.latency, self.bandwidth = overhead, latency, bandwidth

    def step(self, clocks: np.ndarray, source: np.ndarray, nbytes: float) -> np.ndarray:
        """Clocks after each rank has sent a message, and received that of `source`."""
        sent = clocks + self.overhead + nbytes / self.bandwidth
        arrived = sent[source] + self.latency
        return np.maximum(sent, arrived) + self.overhead

    def send(self, source: np.ndarray, dest: np.ndarray, nbytes: float) -> None:
        """Set clocks on by a message from each rank of `source` to one of `dest`."""
        source += self.overhead + nbytes / self.bandwidth
        dest[:] = np.maximum(dest, source + self.latency) + self.overhead


def measure_costs(client: Client, n_times: int = 200) -> Costs:
    """Time a message to another worker process and back."""

    def play(group: Group) -> tuple[float, float]:
        def once(payload: np.ndarray, n_times: int) -> float:
            start = time.perf_counter()
            for _ in range(n_times):
                if group.rank == 0:
                    group.send(payload, 1)
                    group.recv(1)
                else:
                    group.recv(0)
                    group.send(payload, 0)
            return (time.perf_counter() - start) / (2 * n_times)

        once(SMALL, 10)
        small = min(once(SMALL, 10) for _ in range(n_times // 10))
        large = min(once(np.ones(1 << 17), 2) for _ in range(5))
        return small, large

    small, large = run_spmd(play, client=client, n_ranks=2)[0]
    # A third each: at the sender, on the way, at the receiver.
    return Costs(small / 3, small / 3, (1 << 20) / max(large - small, 1e-9))


def by_halves(n_ranks: int, nbytes: int, costs: Costs) -> np.ndarray:
    """Clocks of the ranks after an allreduce by halves, with teams of powers of two."""
    sizes = powers_of_two(n_ranks)
    clocks = np.zeros(n_ranks)
    starts = np.cumsum([0, *sizes])
    teams = [clocks[a:b] for a, b in zip(starts, starts[1:], strict=False)]
    for team, size in zip(teams, sizes, strict=True):
        for d in doubling_steps(size):
            team[:] = costs.step(team, np.arange(size) ^ d, nbytes / (2 * d))
    pairs = list(zip(teams, teams[1:], strict=False))
    for team, later in reversed(pairs):
        taken, n_later = nbytes / len(later), len(later)
        costs.send(later, team[:n_later], taken)
        for step in doubling_steps(len(team) // n_later):
            d, taken = n_later * step, taken / 2
            costs.send(team[:d], team[d : 2 * d], taken)
    for d in reversed(doubling_steps(sizes[0])):
        teams[0][:] = costs.step(teams[0], np.arange(sizes[0]) ^ d, nbytes / (2 * d))
    beyond = clocks[sizes[0] :]
    costs.send(teams[0][: len(beyond)], beyond, nbytes)
    return clocks


def simulate(n_ranks: int, costs: Costs) -> dict[str, Any]:
    """Milliseconds of each operation, every rank in a process of its own."""
    ranks = np.arange(n_ranks)
    steps = doubling_steps(n_ranks)
    start = np.zeros(n_ranks)

    def run(messages: Iterator[tuple[np.ndarray, float]]) -> float:
        clocks = start
        for source, nbytes in messages:
            clocks = costs.step(clocks, source, nbytes)
        return 1e3 * float(clocks.max())

    def doubling(distance: int) -> np.ndarray:
        return np.array([doubling_partners(r, distance, n_ranks)[1] for r in ranks])

    def tree() -> float:
        clocks = start.copy()
        for distance in steps:  # those who know tell those who do not
            told = ranks[(ranks >= distance) & (ranks < 2 * distance)]
            above = told - distance
            clocks[above] += costs.overhead
            clocks[told] = clocks[above] + costs.latency + costs.overhead
        return 1e3 * float(clocks.max())

    row: dict[str, Any] = {
        "ranks": n_ranks,
        "barrier": run(((ranks - d) % n_ranks, 0) for d in steps),
        "broadcast": tree(),
        "allreduce, 32 bytes": run((doubling(d), 32) for d in steps),
        "allgather, 32 bytes": run(
            ((ranks - d) % n_ranks, 100 * min(d, n_ranks - d)) for d in steps
        ),
        "gather, 32 bytes": 1e3 * (2 * costs.overhead + costs.latency)
        + 1e3 * (n_ranks - 2) * costs.overhead,
    }
    row["allreduce, 1 MiB"] = 1e3 * float(by_halves(n_ranks, 1 << 20, costs).max())
    # Models are averaged, then losses, norms and what ranks have counted are added up.
    row["round, 1,000 weights"] = run((doubling(d), 8 * 1001) for d in steps) + run(
        (doubling(d), 100) for d in steps
    )
    return {name: round(value, 1) for name, value in row.items()}


def heard_of_others(n_ranks: int, costs: Costs) -> float:
    """Seconds until the last rank has the addresses, which go down a tree."""
    nbytes = sum(len(address) for address in addresses_of(n_ranks))
    clocks = np.zeros(n_ranks)
    for rank in range(n_ranks):
        for child in children_of(rank, n_ranks):
            costs.send(clocks[rank : rank + 1], clocks[child : child + 1], nbytes)
    return float(clocks.max())


def foretell(
    measured: list[dict[str, Any]], n_ranks: int, costs: Costs
) -> dict[str, Any]:
    """A launch of more ranks, each of whose sides costs something for each rank."""
    row: dict[str, Any] = {"ranks": n_ranks}
    row["KB of tasks"] = round(bytes_of_tasks(n_ranks) / 1e3)
    known = [each for each in measured if each["ranks"] < n_ranks]
    ranks = np.array([each["ranks"] for each in known])
    for name in ("clock", "client", "scheduler"):
        column = f"launch, {name} [s]"
        line = np.polyfit(ranks, [each[column] for each in known], 1)
        row[column] = round(float(np.polyval(line, n_ranks)), 2)
    row["addresses [ms]"] = round(1e3 * heard_of_others(n_ranks, costs), 1)
    return row


# Tables -----------------------------------------------------------------------------


def show(title: str, rows: list[dict[str, Any]], path: Path | None) -> None:
    """Print a table, and write it."""
    if not rows:
        return
    print(f"\n{title}")
    print(" | ".join(rows[0]))
    for row in rows:
        print(" | ".join(map(str, row.values())), flush=True)
    if path is not None:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def main() -> None:
    """Measure, count, simulate."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[16, 64, 256, 512])
    parser.add_argument("--simulated", type=int, nargs="*", default=[1000, 1024, 4000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", type=Path, help="folder for the tables")
    options = parser.parse_args()
    folder = options.write

    def path(name: str) -> Path | None:
        return None if folder is None else folder / f"many_ranks_{name}.csv"

    # A machine that does other things may stop a process for a while.
    patience = {"dask-ma.launch.worker-timeout": "600 s"}
    with (
        dask.config.set(patience),
        cluster_of_processes(options.workers) as (client, scheduler),
    ):
        rows = [
            measure_launch(client, scheduler, n_ranks, options.repeats)
            for n_ranks in options.ranks
        ]
        calls = [count_calls(client, n_ranks) for n_ranks in options.ranks]
        costs = measure_costs(client)
    show("Functions called in a launch and its clean-up", calls, path("calls"))
    show("Launch, following, clean-up", rows, path("launch"))
    counted = [count_messages(n_ranks) for n_ranks in options.ranks]
    show(
        "Messages sent by a rank at most / received by rank 0", counted, path("counts")
    )
    print(
        f"\na message: {1e3 * costs.overhead:.2f} ms at each end, "
        f"{1e3 * costs.latency:.2f} ms on the way, {costs.bandwidth / 1e6:.0f} MB/s"
    )
    simulated = [simulate(n_ranks, costs) for n_ranks in options.simulated]
    show("Simulated milliseconds", simulated, path("simulated"))
    if len(rows) > 2:
        sizes = [rows[-1]["ranks"], *options.simulated]
        foretold = [foretell(rows, n_ranks, costs) for n_ranks in sizes]
        show("Launches, foretold", foretold, path("foretold"))


if __name__ == "__main__":
    main()
