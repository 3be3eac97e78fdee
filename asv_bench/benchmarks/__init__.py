"""What the benchmarks share: parameters by name, clusters, data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask
from dask.distributed import Client, LocalCluster

# asv imports this package without a path to it, but worker processes, which start with
# the path of this one, need to import the functions that run on them.
sys.path.append(str(Path(__file__).parent.parent))
# A rank for each process that a benchmark starts, however few the rows are.
dask.config.set({"dask-ma.data.moved-rows": 0})


def parameterized(**parameters: Sequence[Any]) -> Callable[[type], type]:
    """Class decorator: one benchmark per combination of the named parameters."""

    def decorate(benchmark: type) -> type:
        benchmark.param_names = list(parameters)
        benchmark.params = tuple(list(values) for values in parameters.values())
        return benchmark

    return decorate


class WithCluster:
    """Mixin that opens and closes a local cluster around each benchmark."""

    cluster: LocalCluster | None = None
    client: Client | None = None

    def open(self, n_workers: int, n_threads: int = 1, processes: bool = True) -> None:
        """Start workers; the client becomes the current one."""
        self.cluster = LocalCluster(
            n_workers=n_workers,
            threads_per_worker=n_threads,
            processes=processes,
            dashboard_address=":0",
        )
        self.client = Client(self.cluster)
        self.client.wait_for_workers(n_workers)

    def teardown(self, *parameters: Any) -> None:
        """Close what `open` has started, if anything."""
        if self.client is not None:
            self.client.close()
            self.cluster.close()
        self.client = self.cluster = None
