"""Arrays from rank to rank."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from dask.distributed import Client, wait

from dask_ma import run_spmd
from dask_ma.comm import (
    ButterflyAverage,
    Group,
    allgather,
    allreduce,
    barrier,
    broadcast,
    butterfly_allreduce,
    reduce_scatter,
)

from . import WithCluster, parameterized


def butterfly_step(group: Group, array: np.ndarray) -> np.ndarray:
    """One step of butterfly mixing, always with the same partner."""
    return ButterflyAverage(group, array, 0).finish()


COLLECTIVES = {
    "allreduce": allreduce,
    "reduce_scatter": reduce_scatter,
    "allgather": allgather,
    "broadcast": broadcast,
    "butterfly_allreduce": butterfly_allreduce,
    "butterfly_step": butterfly_step,
}
REPEATS = 5


def measure_collective(group: Group, name: str, size: int) -> float:
    """Agent: median milliseconds of one collective on this rank, after a warm-up."""
    array = np.full(size, float(group.rank))
    collective = COLLECTIVES[name]
    elapsed = []
    for _ in range(REPEATS + 1):
        barrier(group)
        start = time.perf_counter()
        collective(group, array)
        elapsed.append(1e3 * (time.perf_counter() - start))
    return statistics.median(elapsed[1:])


def count_bytes(group: Group, size: int) -> tuple[int, int]:
    """Agent: bytes that one allreduce sends to other workers, and within this one."""
    before = group.counters.as_dict()
    allreduce(group, np.ones(size))
    after = group.counters.as_dict()
    return tuple(after[key] - before[key] for key in ("bytes_sent", "bytes_shared"))


@parameterized(
    collective=list(COLLECTIVES),
    size=[1_000, 1_000_000],
    ranks=[2, 4],
    transport=["threads", "in-process workers", "worker processes"],
)
class Collective(WithCluster):
    """One collective operation on float64 arrays of `size` elements, slowest rank."""

    unit = "ms"
    timeout = 120

    def setup(self, collective: str, size: int, ranks: int, transport: str) -> None:
        if transport != "threads":
            self.open(ranks, processes=transport == "worker processes")

    def track_milliseconds(
        self, collective: str, size: int, ranks: int, transport: str
    ) -> float:
        return max(run_spmd(measure_collective, collective, size, n_ranks=ranks))


def allreduce_by_futures(client: Client, arrays: list[Any], places: list[str]) -> Any:
    """Reduce-scatter and all-gather as a graph of futures, pinned to the workers."""
    size = len(places)

    def pinned(function: Any, *args: Any, place: str) -> Any:
        return client.submit(
            function, *args, workers=[place], allow_other_workers=False, pure=False
        )

    parts = [
        [pinned(part_of, array, j, size, place=place) for j in range(size)]
        for array, place in zip(arrays, places)
    ]
    sums = [
        pinned(add_up, [parts[i][j] for i in range(size)], place=places[j])
        for j in range(size)
    ]
    return [pinned(np.concatenate, sums, place=place) for place in places]


def part_of(array: np.ndarray, number: int, count: int) -> np.ndarray:
    """Run `number` of `count` runs of nearly equal length."""
    return np.array_split(array, count)[number]


def add_up(parts: list[np.ndarray]) -> np.ndarray:
    """Sum of equal shapes."""
    return np.sum(parts, axis=0)


@parameterized(size=[1_000, 1_000_000, 10_000_000])
class AgainstFutures(WithCluster):
    """Allreduce over 4 worker processes, and how many times slower futures are."""

    timeout = 180

    def setup(self, size: int) -> None:
        self.open(4)

    def track_ratio(self, size: int) -> float:
        return self._time_futures(size) / self._time_allreduce(size)

    track_ratio.unit = "times"

    def track_allreduce(self, size: int) -> float:
        return self._time_allreduce(size)

    track_allreduce.unit = "ms"

    def _time_allreduce(self, size: int) -> float:
        """Median milliseconds on the slowest rank."""
        return max(run_spmd(measure_collective, "allreduce", size, n_ranks=4))

    def _time_futures(self, size: int) -> float:
        """Median milliseconds of the graph, after a warm-up."""
        places = list(self.client.scheduler_info(n_workers=-1)["workers"])
        arrays = [
            self.client.submit(np.ones, size, workers=[place], pure=False)
            for place in places
        ]
        wait(arrays)
        elapsed = []
        for _ in range(REPEATS + 1):
            start = time.perf_counter()
            results = allreduce_by_futures(self.client, arrays, places)
            wait(results)
            elapsed.append(1e3 * (time.perf_counter() - start))
            del results
        return statistics.median(elapsed[1:])


@parameterized(threads=[1, 4])
class Traffic(WithCluster):
    """Bytes of one allreduce over 2 workers, over the bytes of the array.

    Between workers the figure must not depend on the threads per worker.
    """

    unit = "arrays"
    size = 1_000_000

    def setup(self, threads: int) -> None:
        self.open(2, threads)

    def _track(self, threads: int, which: int) -> float:
        counts = run_spmd(count_bytes, self.size, n_ranks=2 * threads)
        return sum(count[which] for count in counts) / (8 * self.size)

    def track_between_workers(self, threads: int) -> float:
        return self._track(threads, 0)

    def track_within_workers(self, threads: int) -> float:
        return self._track(threads, 1)
