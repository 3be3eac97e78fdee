"""Rounds of SchMPLasso by working sets: collectives, and what ranks spend time on.

Dense columns in correlated blocks lie with one worker process and then with two. Each
fits some times; the median fit is printed with the collective calls of rank 0 in all
and per round, messages and bytes between processes, and for each rank the processor
time of its process and the time inside the steps of a round: the gradient and gap, the
Hessian, the small problem, and the waits for other ranks, which are inside the others.

Run ``python schmp_rounds.py``; the defaults take about a minute and 2 GB of memory.
``--columns 500000`` is the size of the paper's set of Alzheimer's disease. On hosts
with half a core and half a link of 1 Gbit/s each, where two cores are all there are:

    python shaped_hosts.py --cores 0.5 --rate 500mbit schmp_rounds.py --processes 1 4
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

# Worker processes import the modules by this path as well.
sys.path.append(str(Path(__file__).parent.parent))

from dask.distributed import Client  # noqa: E402
from peers._solvers import local_cluster  # noqa: E402
from peers._sparse_solvers import make_correlated  # noqa: E402

from benchmarks._data import persist  # noqa: E402
from dask_ma import SchMPLasso  # noqa: E402

STEPS = ("check", "update", "_step", "recv")
NAMES = dict(zip(STEPS, ("gradient and gap", "Hessian", "small problem", "waits")))


def watch(dask_worker: Any) -> None:
    """Count collective calls, and time the steps of a round, on a worker."""
    from dask_ma.comm import Group
    from dask_ma.schmp.l1._hessian import HessianCache
    from dask_ma.schmp.l1._solver import Solver
    from dask_ma.schmp.l1._working_set import WorkingSets

    if hasattr(dask_worker, "seen"):
        return
    dask_worker.seen = seen = Counter()
    next_tag = Group._next_tag

    def count(group: Any) -> int:
        seen["collectives"] += group.rank == 0
        return next_tag(group)

    Group._next_tag = count
    owners = (Solver, HessianCache, WorkingSets, Group)
    for owner, name in zip(owners, STEPS):
        setattr(owner, name, _timed(getattr(owner, name), name, seen))


def _timed(function: Any, name: str, seen: Counter[str]) -> Any:
    """A function whose time is added up."""

    def call(*args: Any, **kwargs: Any) -> Any:
        start = perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seen[name] += perf_counter() - start

    return call


def take(dask_worker: Any) -> dict[str, float]:
    """What has been seen on a worker since the last time, and its processor time."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found = {**dask_worker.seen, "processor": usage.ru_utime + usage.ru_stime}
    dask_worker.seen.clear()
    return found


def cluster_of(n_processes: int, scheduler: str | None) -> Any:
    """Client of a cluster of its own, or of one that is there."""
    return Client(scheduler) if scheduler else local_cluster(n_processes)


def measure(n_processes: int, problem: Any, args: argparse.Namespace) -> float:
    """Print what fits on some worker processes are made of; return the median."""
    model = SchMPLasso(
        problem.alpha_max / args.divisor,
        tol=args.gap,
        layout=args.layout,
        n_ranks=n_processes,
    )
    runs = []
    with cluster_of(n_processes, args.scheduler) as client:
        data = persist(problem.features, problem.targets, client, n_processes)
        client.run(watch)
        for _ in range(args.repeats + 1):
            before = client.run(take)
            start = perf_counter()
            model.fit(*data)
            seconds = perf_counter() - start
            after = client.run(take)
            for address, found in after.items():
                found["processor"] -= before[address]["processor"]
            ranks = [after[address] for address in sorted(after)[:n_processes]]
            runs.append((seconds, ranks, model.history_))
    runs = sorted(runs[1:], key=lambda run: run[0])  # the first loads modules
    seconds, ranks, history = runs[len(runs) // 2]
    calls = sum(rank.get("collectives", 0) for rank in ranks)
    sent = sum(record["bytes_sent"] for record in history)
    messages = sum(record["messages_sent"] for record in history)
    print(
        f"{n_processes} processes: {seconds:.3f} s; {len(history)} rounds, gap "
        f"{history[-1]['dual_gap']:.1e}; {calls:.0f} collectives, "
        f"{calls / len(history):.1f} per round; {messages} messages, "
        f"{sent / 1e6:.1f} MB"
    )
    for number, rank in enumerate(ranks):
        steps = ", ".join(f"{NAMES[name]} {rank.get(name, 0.0):.3f}" for name in STEPS)
        print(f"  worker {number}: processor {rank['processor']:.3f} s; {steps}")
    return statistics.median(run[0] for run in runs)


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=int, default=463)
    add("--columns", type=int, default=100_000)
    add("--divisor", type=float, default=50, help="of the smallest alpha of zeros")
    add("--gap", type=float, default=1e-6, help="relative duality gap to reach")
    add("--layout", default="auto", choices=["auto", "rows", "columns"])
    add("--scheduler", help="address; a cluster of this machine unless given")
    add("--processes", type=int, nargs="+", default=[1, 2])
    add("--repeats", type=int, default=5)
    args = parser.parse_args()
    problem = make_correlated(args.rows, args.columns)
    medians = [measure(n, problem, args) for n in args.processes]
    for n, median in zip(args.processes[1:], medians[1:]):
        first = args.processes[0]
        print(f"{n} processes / {first}: {median / medians[0]:.2f}")


if __name__ == "__main__":
    main()
