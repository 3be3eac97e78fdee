"""Fits of rows that take twice the memory of all workers.

Two workers with a limit, and rows that a generator makes block by block, or that are
read from a folder of npz or Parquet files, which is written first. For each estimator:
how the fit ended, seconds, how often a block was made or read, the largest resident
memory of a worker beside its limit, whether a worker was ever paused or ended. Those
that keep in memory more than the workers have are to be refused after the first blocks.
Parquet holds the columns and values of a CSR's rows as two columns for each of them.

Run ``python beyond_memory.py --help``; each fit takes a minute or two. Rows go to
``--cache``, which wants room for all of them, and for files twice. What a worker needs
whatever the rows are, some 220 MB of modules, does not become less with ``--limit``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
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
    SchMPLogisticRegression,
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
    "SchMPLDA": ("words", lambda: SchMPLDA(2, init="random", **_ONCE)),
    "SFBMetricLearner": ("dense", lambda: SFBMetricLearner(4, **_ONCE)),
    "SFBDictionaryLearning": (
        "dense",
        lambda: SFBDictionaryLearning(8, batch_size=1024, **_ONCE),
    ),
    "SchMPLasso": ("sparse", lambda: SchMPLasso(0.01, max_iter=1)),
    "SchMPLogisticRegression": (
        "sparse",
        lambda: SchMPLogisticRegression(0.01, max_iter=1),
    ),
    "SchMPMatrixFactorization": (
        "ratings",
        lambda: SchMPMatrixFactorization(4, **_ONCE),
    ),
}
_PER_ROW, _COLUMNS = 75, 5000


def make_block(number: int, kind: str, n_bytes: int) -> Any:
    """Rows of a block."""
    rng = np.random.default_rng(number)
    if kind == "dense":
        return rng.standard_normal((n_bytes // 1600, 200))
    if kind == "ratings":
        return rng.integers(0, 5000, (n_bytes // 16, 2)).astype(np.float64)
    n, step = n_bytes // (12 * _PER_ROW), _COLUMNS // _PER_ROW
    places = rng.integers(0, step, (n, _PER_ROW), dtype=np.int32)
    places += np.arange(_PER_ROW, dtype=np.int32) * step
    most = 1 if kind == "words" else 3
    return as_csr(places, rng.integers(1, 1 + most, (n, _PER_ROW)).astype(np.float64))


def as_csr(places: np.ndarray, values: np.ndarray) -> Any:
    """Rows with as many numbers each."""
    indptr = np.arange(0, places.size + 1, _PER_ROW, dtype=np.int32)
    parts = values.ravel(), places.ravel(), indptr
    return sparse.csr_matrix(parts, shape=(len(places), _COLUMNS))


def note(log: str, number: Any) -> None:
    """Write down that a block has been made or read."""
    with Path(log).open("a") as file:
        file.write(f"{number}\n")


# Where rows come from ---------------------------------------------------------------


def write_npz(number: int, kind: str, n_bytes: int, folder: Path) -> None:
    """A block as a file of arrays."""
    rows = make_block(number, kind, n_bytes)
    path = folder / f"{number}.npz"
    if sparse.issparse(rows):
        sparse.save_npz(path, rows, compressed=False)
    else:
        np.savez(path, rows=rows)


def read_npz(number: int, kind: str, folder: Path) -> Any:
    """The rows in such a file."""
    path = folder / f"{number}.npz"
    return np.load(path)["rows"] if kind == "dense" else sparse.load_npz(path)


def write_parquet(number: int, kind: str, n_bytes: int, folder: Path) -> None:
    """A block as a table, with its number and targets."""
    rows = make_block(number, kind, n_bytes)
    parts = {"x": rows}
    if sparse.issparse(rows):
        shape = rows.shape[0], _PER_ROW
        parts = {"p": rows.indices.reshape(shape), "v": rows.data.reshape(shape)}
    columns: dict[str, Any] = {
        f"{name}{i}": column
        for name, part in parts.items()
        for i, column in enumerate(part.T)
    }
    y = np.random.default_rng(number).integers(0, 2, rows.shape[0])
    table = pd.DataFrame({**columns, "number": number, "y": y})
    table.to_parquet(folder / f"{number:04}.parquet", index=False)


def rows_of_table(part: pd.DataFrame, log: str) -> Any:
    """Rows as they were before they were written, of one block or of several."""
    for number in part["number"].unique():
        note(log, number)
    names = [name for name in part.columns if name != "number"]
    if names[0].startswith("x"):
        return part[names].to_numpy()
    return as_csr(part[names[:_PER_ROW]].to_numpy(), part[names[_PER_ROW:]].to_numpy())


def read_tables(folder: Path, kind: str, log: str) -> tuple[Any, Any]:
    """Rows and targets of a folder of Parquet files."""
    frame = dd.read_parquet(folder)
    names = [name for name in frame.columns if name != "y"]
    X = frame[names].map_partitions(rows_of_table, log, meta=meta_of(kind))
    return X, frame["y"]


def meta_of(kind: str) -> Any:
    """Rows without a row."""
    if kind in ("dense", "ratings"):
        return np.empty((0, 200 if kind == "dense" else 2))
    return sparse.csr_matrix((0, _COLUMNS))


def make_rows(
    source: str, kind: str, n_blocks: int, n_bytes: int, folder: Path, log: str
) -> tuple[Any, Any]:
    """Rows and targets of no meaning, that nobody has made or read yet."""
    if source != "generator":
        folder.mkdir()
        write = write_npz if source == "npz" else write_parquet
        with ProcessPoolExecutor(2) as pool:
            for each in [
                pool.submit(write, i, kind, n_bytes, folder) for i in range(n_blocks)
            ]:
                each.result()
    if source == "parquet":
        return read_tables(folder, kind, log)

    def make(number: int) -> Any:
        note(log, number)
        if source == "npz":
            return read_npz(number, kind, folder)
        return make_block(number, kind, n_bytes)

    shape, meta = make_block(0, kind, n_bytes).shape, meta_of(kind)
    X = da.concatenate(
        [
            da.from_delayed(dask.delayed(make, pure=False)(i), shape, meta=meta)
            for i in range(n_blocks)
        ]
    )
    y = da.random.default_rng(0).integers(0, 2, X.shape[0], chunks=shape[0])
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
    n_bytes, files = int(1e6 * options.block), folder / "files"
    X, y = make_rows(options.source, kind, n_blocks, n_bytes, files, str(log))
    limit = f"{options.limit} MB"
    with (
        dask.config.set({"dask-ma.data.cache": str(folder / "cache")}),
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
        f"{name:<26}{options.source:<10}{n_blocks * options.block:>6} MB "
        f"{seconds:6.0f} s  blocks made {len(made)} of {n_blocks}, "
        f"{len(made) - len(set(made))} again, "
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
    parser.add_argument(
        "--source", default="generator", choices=("generator", "npz", "parquet")
    )
    parser.add_argument("--cache", help="folder for the rows")
    options = parser.parse_args()
    for name in options.only:
        with tempfile.TemporaryDirectory(dir=options.cache) as folder:
            measure(name, options, Path(folder))


# Worker processes import this file again.
if __name__ == "__main__":
    main()
