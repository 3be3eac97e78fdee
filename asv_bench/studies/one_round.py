"""What does a fit of one round cost each of many processes?

Processor time of the workers, of the scheduler and of the client for a fit of one round
to 2,000 x 10 rows, and for a launch without work, less what Dask's idle workers take in
the same time; and the messages of a rank. Run ``python one_round.py --help``. The
columns by the clock say little where there are more workers than processors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import psutil
from dask.distributed import Client
from many_ranks import cluster_of_processes

from dask_ma import MASGDClassifier, run_spmd
from dask_ma.comm import Group, allreduce, barrier


def nothing(group: Group) -> int:
    """Program of a launch without work."""
    return group.rank


def collectives(group: Group, n_times: int) -> None:
    """Small sums, one after the other."""
    for _ in range(n_times):
        allreduce(group, np.ones(4))
    barrier(group)


class Account:
    """Processor time of the processes of a cluster.

    Parameters
    ----------
    scheduler : psutil.Process
        Parent of the workers.
    """

    def __init__(self, scheduler: psutil.Process) -> None:
        children = scheduler.children(recursive=True)
        self._workers = [each for each in children if not each.children()]
        self._sides = {
            "worker": self._workers,
            "scheduler": [scheduler],
            "client": [psutil.Process()],
        }

    def now(self) -> dict[str, float]:
        """Milliseconds so far: the mean of the workers, the scheduler, the client."""
        return {
            name: 1e3 * sum(sum(each.cpu_times()[:2]) for each in side) / len(side)
            for name, side in self._sides.items()
        }

    def spent(self, action: Callable[[], Any], n_times: int) -> dict[str, float]:
        """Milliseconds of processor time and by the clock of one of `n_times` calls."""
        before, start = self.now(), time.perf_counter()
        for _ in range(n_times):
            action()
        wall = 1e3 * (time.perf_counter() - start) / n_times
        after = self.now()
        spent = {name: (after[name] - before[name]) / n_times for name in after}
        return {**spent, "clock": wall}


def less_idle(spent: dict[str, float], idle: dict[str, float]) -> dict[str, float]:
    """What is above the processor time of doing nothing for as long."""
    rates = {name: idle[name] / idle["clock"] for name in idle if name != "clock"}
    return {
        name: value - rates.get(name, 0.0) * spent["clock"]
        for name, value in spent.items()
    }


def measure(options: argparse.Namespace) -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    X = rng.random((options.rows, options.columns))
    y = (X[:, 0] > 0.5).astype(int)
    with cluster_of_processes(options.workers) as (client, scheduler):
        arrays = persist(X, y, client)
        cases: dict[str, Callable[[], Any]] = {
            "fit of one round": lambda: fit(X, y),
            "the same, persisted rows": lambda: fit(*arrays),
            "launch of nothing": lambda: run_spmd(nothing, client=client),
            "launch, 100 allreduces": lambda: run_spmd(collectives, 100, client=client),
        }
        for action in cases.values():
            action()
        account = Account(scheduler)
        print(f"{'milliseconds less idle':<28}worker scheduler client   clock   gross")
        for name, action in cases.items():
            rows, gross = [], []
            for _ in range(options.repeats):
                spent = account.spent(action, options.times)
                idle = account.spent(lambda: time.sleep(3), 1)
                rows.append(less_idle(spent, idle))
                gross.append(spent["worker"])
            middle = {key: median(row[key] for row in rows) for key in rows[0]}
            print(
                f"{name:<28}{middle['worker']:6.1f} {middle['scheduler']:9.1f} "
                f"{middle['client']:6.1f} {middle['clock']:7.0f} {median(gross):7.1f}"
                f"   ({min(row['worker'] for row in rows):.1f})",
                flush=True,
            )


def fit(X: Any, y: Any) -> None:
    """One round on all workers."""
    MASGDClassifier(max_iter=1, local_epochs=1, tol=None, random_state=0).fit(X, y)


def persist(X: np.ndarray, y: np.ndarray, client: Client) -> tuple[Any, Any]:
    """Rows as Dask arrays in the memory of the workers, a block each."""
    import dask.array as da
    from dask.distributed import wait

    n_blocks = len(client.scheduler_info(n_workers=-1)["workers"])
    size = -(-len(X) // n_blocks)
    arrays = da.from_array(X, (size, -1)), da.from_array(y, size)
    persisted = tuple(each.persist() for each in arrays)
    wait(persisted)
    return persisted


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--times", type=int, default=10, help="calls in a row")
    parser.add_argument("--repeats", type=int, default=3)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
