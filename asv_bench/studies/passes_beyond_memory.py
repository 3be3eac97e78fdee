"""How long does a pass over rows on disks take beside reading and computing alone?

Two workers with a limit, and CSR rows that take twice the memory of both. Compared are
the rounds of a fit to them; rounds of a fit to an eighth of them, in memory, eight
times; and reading all of them from the disk as often as a round does, without work but
for a look at each page. A round is a pass of steps and one of the objective. With
``--cold`` the system forgets the files before each round, and before reading, so that
each of them comes from the disk once, and a second time where there is less memory than
that; otherwise a machine with memory to spare has kept them.

Run ``python passes_beyond_memory.py --help``; an estimator takes a minute or two. For
Linux, with scikit-learn 1.9 or newer.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import dask
import numpy as np
from after_tasks import AfterTasks
from beyond_memory import make_block, make_rows
from dask.distributed import Client, LocalCluster

from dask_ma import ButterflySGDClassifier, MASGDClassifier
from dask_ma.data import Block, Shard
from dask_ma.data._cache import remove_rows, store_rows

N_ROUNDS, PART = 4, 8
_OPTIONS: dict[str, Any] = {
    "max_iter": N_ROUNDS,
    "tol": None,
    "refine": None,
    "random_state": 0,
}
CASES: dict[str, Callable[[], Any]] = {
    "MASGDClassifier": lambda: MASGDClassifier(local_epochs=1, **_OPTIONS),
    "ButterflySGDClassifier": lambda: ButterflySGDClassifier(
        batch_size=1024, eta0=0.1, **_OPTIONS
    ),
}


def forget(folder: str) -> None:
    """Have the system forget what it has kept of the files of a folder."""
    for path in Path(folder).rglob("*.npy"):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def write(numbers: list[int], n_bytes: int, folder: str) -> list[Any]:
    """On a worker: blocks in the cache."""
    dtypes = [np.float64]
    return [
        store_rows(make_block(i, "sparse", n_bytes), "alone", folder, dtypes)
        for i in numbers
    ]


def read(stored: list[Any], n_times: int, *, is_cold: bool) -> float:
    """On a worker: seconds in which its blocks are read."""
    rows = [each.open() for each in stored]  # which reads them for their checksums
    if is_cold:
        for each in stored:
            forget(each.folder)
    blocks = [Block(X, None, None, i, None) for i, X in enumerate(rows)]
    shard = Shard(blocks, rows[0].shape[1], rows[0].dtype)
    start = time.perf_counter()
    for _ in range(n_times):
        for block in shard.read():
            for array in (block.X.data, block.X.indices, block.X.indptr):
                array.view(np.uint8)[::4096].max()
    return time.perf_counter() - start


def time_reading(
    client: Client, n_blocks: int, n_bytes: int, folder: str, *, is_cold: bool
) -> float:
    """Seconds in which both workers read their rows as often as a round does."""
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    stored = [
        client.submit(
            write, list(range(i, n_blocks, 2)), n_bytes, folder, workers=[worker]
        )
        for i, worker in enumerate(workers)
    ]
    client.gather(stored)
    futures = [
        # A round reads them twice, and forgets them once.
        client.submit(read, each, 2, is_cold=is_cold, workers=[worker], pure=False)
        for each, worker in zip(stored, workers, strict=True)
    ]
    seconds = max(client.gather(futures))
    client.run(remove_rows, "alone", folder)
    return seconds


def seconds_of_round(
    name: str, n_blocks: int, n_bytes: int, folder: str, *, is_cold: bool
) -> float:
    """Seconds of a round, the median of those after the first."""
    log = Path(folder, "log.txt")
    log.touch()
    X, y = make_rows("generator", "sparse", n_blocks, n_bytes, Path(folder), str(log))
    model = CASES[name]()
    spent: list[float] = []  # on forgetting, after each round

    def forget_all(fitted: Any) -> None:
        start = time.perf_counter()
        forget(folder)
        spent.append(time.perf_counter() - start)

    if is_cold:
        model.set_callbacks(AfterTasks(forget_all))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    times = np.diff([record["time"] for record in model.history_])
    if is_cold:  # what comes after a round counts as the next one's
        times -= spent[: len(times)]
    return median(times.tolist())


@contextmanager
def small_cluster(options: argparse.Namespace, folder: str) -> Iterator[Client]:
    """Two workers with a limit, and their cache."""
    with (
        dask.config.set({"dask-ma.data.cache": folder}),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit=f"{options.limit} MB",
            dashboard_address=":0",
            local_directory=folder,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def main() -> None:
    """Measure each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--limit", type=int, default=1500, help="MB of a worker")
    parser.add_argument("--ratio", type=float, default=2.0, help="rows over memory")
    parser.add_argument("--block", type=int, default=20, help="MB of a block")
    parser.add_argument("--cache", help="folder for the rows")
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    n_bytes = int(1e6 * options.block)
    n_blocks = int(2 * options.ratio * options.limit / options.block)
    n_part = n_blocks // PART
    cold = {"is_cold": options.cold}
    with tempfile.TemporaryDirectory(dir=options.cache) as folder:
        with small_cluster(options, folder) as client:
            reading = time_reading(client, n_blocks, n_bytes, folder, **cold)
        print(f"{'reading alone':<30}{reading:8.2f} s", flush=True)
        for name in options.only:
            with small_cluster(options, folder):
                part = seconds_of_round(name, n_part, n_bytes, folder, is_cold=False)
                whole = seconds_of_round(name, n_blocks, n_bytes, folder, **cold)
            computing = part * n_blocks / n_part
            print(
                f"{name:<30}{whole:8.2f} s, computing alone {computing:.2f} s, "
                f"over the longer {whole / max(reading, computing):.2f}",
                flush=True,
            )


# Worker processes import this file again.
if __name__ == "__main__":
    main()
