"""What does an exchange of butterfly mixing cost, beside a complete allreduce?

Three tables: bytes that a rank sends in a step, by the counters of the group; seconds
of an exchange for growing numbers of ranks (figure 4 of the paper); and steps per
second of whole fits on worker processes.

Run ``python butterfly_speed.py --help``; the defaults take about two minutes.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter

import numpy as np
from dask.distributed import Client, LocalCluster

from dask_ma import ButterflySGDClassifier, run_spmd
from dask_ma.comm import ButterflyAverage, Group, barrier, butterfly_allreduce
from dask_ma.datasets import make_sparse_classification

REPEATS = 15


def step(group: Group, array: np.ndarray, number: int) -> None:
    """One step of butterfly mixing."""
    ButterflyAverage(group, array, number).finish()


def allreduce(group: Group, array: np.ndarray, number: int) -> None:
    """The mean over all ranks."""
    butterfly_allreduce(group, array)


EXCHANGES = {"butterfly": step, "allreduce": allreduce}


def measure(group: Group, size: int) -> dict[str, tuple[float, int]]:
    """Agent: milliseconds (median) and bytes sent, of an exchange of each kind."""
    array = np.full(size, float(group.rank))
    result = {}
    for name, exchange in EXCHANGES.items():
        elapsed = []
        barrier(group)
        exchange(group, array, 0)
        before = group.counters.bytes_sent + group.counters.bytes_shared
        for number in range(REPEATS):
            barrier(group)
            start = perf_counter()
            exchange(group, array, number)
            group.flush()
            elapsed.append(1e3 * (perf_counter() - start))
        sent = group.counters.bytes_sent + group.counters.bytes_shared - before
        result[name] = statistics.median(elapsed), sent // REPEATS
    return result


def exchanges(n_ranks: list[int], features: list[int], *, processes: bool) -> None:
    """Print milliseconds and bytes of an exchange, the mean over ranks."""
    kind = "processes" if processes else "threads of one worker"
    print(f"-- ranks are {kind}: ms per exchange, arrays sent per rank")
    print("features ranks  butterfly  allreduce   butterfly  allreduce")
    for size in n_ranks:
        with (
            LocalCluster(
                n_workers=size if processes else 1,
                threads_per_worker=1 if processes else size,
                processes=processes,
                dashboard_address=":0",
            ) as cluster,
            Client(cluster),
        ):
            for width in features:
                results = run_spmd(measure, width, n_ranks=size)
                ms, sent = (
                    [np.mean([r[name][i] for r in results]) for name in EXCHANGES]
                    for i in (0, 1)
                )
                arrays = [value / (8 * width) for value in sent]
                print(
                    f"{width:8d} {size:5d} {ms[0]:10.2f} {ms[1]:10.2f}"
                    f" {arrays[0]:11.2f} {arrays[1]:10.2f}",
                    flush=True,
                )


def fits(n_workers: int, features: list[int], batches: list[int]) -> None:
    """Print steps per second of whole fits on worker processes."""
    print(f"-- fits on {n_workers} worker processes: steps per second")
    print(
        "features batch  " + "  ".join(f"{m:>10}" for m in ("butterfly", "allreduce"))
    )
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        for width in features:
            X, y, _ = make_sparse_classification(
                8_000 * n_workers, width, n_nonzero=70, random_state=0
            )
            for batch_size in batches:
                rates: dict[str, list[float]] = {"butterfly": [], "allreduce": []}
                for _ in range(3):  # in turn, since other work comes and goes
                    for mixing in rates:
                        model = ButterflySGDClassifier(
                            max_iter=3,
                            tol=None,
                            batch_size=batch_size,
                            mixing=mixing,
                            mixing_period=1,
                            learning_rate="invscaling",
                            random_state=0,
                        ).fit(X, y)
                        first, *_, last = model.history_
                        rates[mixing].append(
                            2 * last["n_steps"] / (last["time"] - first["time"])
                        )
                medians = [statistics.median(values) for values in rates.values()]
                print(
                    f"{width:8d} {batch_size:5d}  "
                    + "  ".join(f"{rate:10.0f}" for rate in medians)
                    + f"  times {medians[0] / medians[1]:.2f}",
                    flush=True,
                )


def main() -> None:
    """Read the arguments and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--features", type=int, nargs="+", default=[50_000, 250_000])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--workers", type=int, default=4)
    arguments = parser.parse_args()
    exchanges(arguments.ranks, arguments.features, processes=False)
    exchanges(
        [p for p in arguments.ranks if p <= 8], arguments.features, processes=True
    )
    fits(arguments.workers, arguments.features, arguments.batches)


if __name__ == "__main__":
    main()
