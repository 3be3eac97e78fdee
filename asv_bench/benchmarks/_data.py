"""Data of the benchmarks and of the comparison with peers."""

from __future__ import annotations

import os
import sys
from operator import methodcaller
from pathlib import Path

import dask
import dask.array as da
import numpy as np
from dask.distributed import Client, wait
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer

from dask_ma.datasets import make_sparse_classification


def load_classification(
    rows: int = 100_000, columns: int = 20_000, nonzeros: int = 33, seed: int = 0
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Text-like rows with labels -1.0 and +1.0.

    If DASK_MA_DATA names a folder with `imdb/X_train.npz` (word counts) and
    `imdb/y_train.npy`, those are read, weighted by tf-idf, and the arguments have no
    say; otherwise the rows are generated.
    """
    folder = os.environ.get("DASK_MA_DATA")
    if folder:
        counts = sparse.load_npz(Path(folder) / "imdb" / "X_train.npz")
        y = np.load(Path(folder) / "imdb" / "y_train.npy")
        X = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    else:
        X, y, _ = make_sparse_classification(
            rows, columns, n_nonzero=nonzeros, random_state=seed
        )
    return X.tocsr(), np.where(y > 0, 1.0, -1.0)


def persist(
    X: sparse.csr_matrix, y: np.ndarray, client: Client, n_workers: int | None = None
) -> tuple[da.Array, da.Array]:
    """Cut the rows evenly, one block per worker thread, and leave them in memory there.

    Each block is the result of a task, as blocks are that workers have read; what a
    client scatters lies where its message has put it, and is copied by each fit.

    Parameters
    ----------
    X, y : csr_matrix, ndarray
        Rows and targets.
    client : Client
    n_workers : int, default=None
        How many of the workers get rows; None stands for all.

    Returns
    -------
    X, y : dask.array.Array
        Persisted, with the same row chunks.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"]
    used = sorted(workers)[:n_workers]
    places = [name for name in used for _ in range(workers[name]["nthreads"])]
    bounds = np.linspace(0, len(y), len(places) + 1).astype(int)
    X_blocks, y_blocks, copied = [], [], methodcaller("copy")
    for place, start, stop in zip(places, bounds[:-1], bounds[1:]):
        X_block, y_block = client.scatter(
            [X[start:stop], y[start:stop]], workers=[place], hash=False
        )
        X_block, y_block = (
            client.submit(copied, block, workers=[place], pure=False)
            for block in (X_block, y_block)
        )
        X_blocks.append(
            da.from_delayed(
                dask.delayed(X_block), (stop - start, X.shape[1]), meta=X[:0]
            )
        )
        y_blocks.append(
            da.from_delayed(dask.delayed(y_block), (stop - start,), dtype=y.dtype)
        )
    persisted = client.persist([da.concatenate(X_blocks), da.concatenate(y_blocks)])
    wait(persisted)
    return tuple(persisted)


def reset_peak_rss() -> int:
    """Forget the peak of this process so far; return its resident memory in bytes.

    Raises
    ------
    NotImplementedError
        On systems other than Linux; asv then skips the benchmark.
    """
    if sys.platform != "linux":
        raise NotImplementedError("the peak can be reset on Linux only")
    Path("/proc/self/clear_refs").write_text("5")
    return peak_rss()


def peak_rss() -> int:
    """Peak resident memory of this process since the last reset, in bytes (Linux)."""
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])
