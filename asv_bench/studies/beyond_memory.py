"""Fits of rows that take twice the memory of all workers.

Two workers with a limit, and rows that a generator makes block by block. For each
estimator: how the fit ended, seconds, how often a block was made, the largest resident
memory of a worker beside its limit, whether a worker was ever paused or ended. Those
that keep in memory more than the workers have are to be refused after the first blocks.

Run ``python beyond_memory.py --help``; each fit takes a minute or two. Rows go to
``--cache``, which wants room for all of them. What a worker needs whatever the rows
are, some 220 MB of modules, does not become less with ``--limit``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster
from distributed import WorkerPlugin
from scipy import sparse

from dask_ma import (
    MALDA,
    ButterflySGDClassifier,
    MASGDClassifier,
    MPCAClassifier,
    SchMPLasso,
    SchMPLDA,
    SchMPMatrixFactorization,
    SFBDictionaryLearning,
    SFBLogisticRegression,
    SFBMetricLearner,
)
from dask_ma.exceptions import InsufficientMemoryError

_SHORT: dict[str, Any] = {"max_iter": 2, "tol": None, "random_state": 0}
_ONCE: dict[str, Any] = {"max_iter": 1, "random_state": 0}
#: Kind of rows, and the estimator.
CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "MASGDClassifier": ("sparse", lambda: MASGDClassifier(**_SHORT)),
    "ButterflySGDClassifier": (
        "sparse",
        lambda: ButterflySGDClassifier(batch_size=1024, **_SHORT),
    ),
    "SFBLogisticRegression": (
        "sparse",
        lambda: SFBLogisticRegression(solver="sgd", batch_size=1024, **_SHORT),
    ),
    "MPCAClassifier": (
        "dense",
        lambda: MPCAClassifier((8,), batch_size=1024, **_SHORT),
    ),
    "MALDA": ("sparse", lambda: MALDA(4, max_doc_update_iter=2, **_ONCE)),
    "SchMPLDA": ("sparse", lambda: SchMPLDA(4, **_ONCE)),
    "SFBMetricLearner": ("dense", lambda: SFBMetricLearner(4, **_ONCE)),
    "SFBDictionaryLearning": (
        "dense",
        lambda: SFBDictionaryLearning(8, batch_size=1024, **_ONCE),
    ),
    "SchMPLasso": ("sparse", lambda: SchMPLasso(0.01, max_iter=1)),
    "SchMPMatrixFactorization": (
        "ratings",
        lambda: SchMPMatrixFactorization(4, **_ONCE),
    ),
}
_PER_ROW, _COLUMNS = 75, 5000
_MAPPED = 0.09  # of a worker's limit: 128 MiB of 1.5 GB


def make_block(number: int, kind: str, n_bytes: int, log: str) -> Any:
    """Rows of a block, each time noted in a file."""
    with Path(log).open("a") as file:
        file.write(f"{number}\n")
    rng = np.random.default_rng(number)
    if kind == "dense":
        return rng.standard_normal((n_bytes // 1600, 200))
    if kind == "ratings":
        return rng.integers(0, 5000, (n_bytes // 16, 2)).astype(np.float64)
    n, step = n_bytes // (12 * _PER_ROW), _COLUMNS // _PER_ROW
    places = rng.integers(0, step, (n, _PER_ROW), dtype=np.int32)
    places += np.arange(_PER_ROW, dtype=np.int32) * step
    values = rng.integers(1, 4, n * _PER_ROW).astype(np.float64)
    indptr = np.arange(0, n * _PER_ROW + 1, _PER_ROW, dtype=np.int32)
    return sparse.csr_matrix((values, places.ravel(), indptr), shape=(n, _COLUMNS))


def make_rows(kind: str, n_blocks: int, n_bytes: int, log: str) -> tuple[Any, Any]:
    """Rows and targets of no meaning, that nobody has made yet."""
    [n, width] = make_block(0, kind, n_bytes, os.devnull).shape
    meta = sparse.csr_matrix((0, width)) if kind == "sparse" else np.empty((0, width))
    make = dask.delayed(make_block, pure=False)
    blocks = [
        da.from_delayed(make(i, kind, n_bytes, log), (n, width), meta=meta)
        for i in range(n_blocks)
    ]
    X = da.concatenate(blocks)
    y = da.random.default_rng(0).integers(0, 2, X.shape[0], chunks=n)
    return X, y.astype(np.float64) if kind == "ratings" else y


class Watch(WorkerPlugin):
    """Notes the largest memory of a worker, and whether it was paused."""

    name = "watch"

    def setup(self, worker: Any) -> None:
        """Look ten times a second."""
        from tornado.ioloop import PeriodicCallback

        worker.peak, worker.was_paused = 0, False

        def look() -> None:
            worker.peak = max(worker.peak, worker.monitor.proc.memory_info().rss)
            worker.was_paused |= worker.status.name == "paused"

        worker.look = PeriodicCallback(look, 100)
        worker.look.start()


def watched(dask_worker: Any) -> tuple[int, bool, int]:
    """On a worker: its peak, whether it was paused, its process."""
    return dask_worker.peak, dask_worker.was_paused, os.getpid()


def measure(name: str, options: argparse.Namespace, folder: Path) -> None:
    """Fit an estimator and print what has become of it."""
    kind, make = CASES[name]
    log = folder / f"{name}.txt"
    log.touch()
    n_blocks = int(2 * options.ratio * options.limit / options.block)
    X, y = make_rows(kind, n_blocks, int(1e6 * options.block), str(log))
    limit = f"{options.limit} MB"
    mapped = options.limit * _MAPPED
    configured = {
        "dask-ma.data.cache": str(folder / "cache"),
        "dask-ma.data.mapped-limit": f"{mapped:.0f} MB",
        "dask-ma.memory.keep-freed": f"{mapped:.0f} MB",
    }
    with (
        dask.config.set(configured),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit=limit,
            dashboard_address=":0",
            local_directory=str(folder),
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(Watch())
        before = {pid for *_, pid in client.run(watched).values()}
        start, end = time.perf_counter(), "fitted"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                make().fit(X, y)
        except InsufficientMemoryError as error:
            end = f"refused: {error}"
        seconds = time.perf_counter() - start
        seen = client.run(watched).values()
        lost = before - {pid for *_, pid in seen}
    made = [int(line) for line in log.read_text().split()]
    print(
        f"{name:<26}{n_blocks * options.block:>6} MB {seconds:6.0f} s  "
        f"blocks made {len(made)} of {n_blocks}, {len(made) - len(set(made))} again, "
        f"peak {max(peak for peak, *_ in seen) / 1e6:.0f} of {options.limit} MB, "
        f"paused {sum(paused for _, paused, _ in seen)}, ended {len(lost)}; {end}",
        flush=True,
    )


def main() -> None:
    """Measure each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--limit", type=int, default=500, help="MB of a worker")
    parser.add_argument("--ratio", type=float, default=2.0, help="rows over memory")
    parser.add_argument("--block", type=int, default=8, help="MB of a block")
    parser.add_argument("--cache", help="folder for the rows")
    options = parser.parse_args()
    for name in options.only:
        with tempfile.TemporaryDirectory(dir=options.cache) as folder:
            measure(name, options, Path(folder))


# Worker processes import this file again.
if __name__ == "__main__":
    main()
