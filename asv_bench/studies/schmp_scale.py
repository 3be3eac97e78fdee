"""Lasso with millions of columns over worker processes: time and memory.

Sparse rows are made block by block where they stay, on the workers, as a dask array of
CSR with single precision; some 200 columns have a coefficient. The fit ends at a
relative duality gap. Printed are the time of the fit, the bytes of the data, and for
each worker its resident memory before and the peak during the fit (Linux only).

Run ``python schmp_scale.py --help``. The defaults, five million non-zeros, take less
than a minute; ``--nonzeros 250e6`` needs some 10 GB of memory.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster, wait
from scipy import sparse

# Worker processes import the package by this path as well.
sys.path.append(str(Path(__file__).parent.parent))

from benchmarks._data import peak_rss, reset_peak_rss  # noqa: E402
from dask_ma import SchMPLasso  # noqa: E402


def make_features(
    n_rows: int, n_columns: int, per_row: int, n_chosen: int, seed: int
) -> sparse.csr_matrix:
    """Rows with about `per_row` elements each, a few of them of the chosen columns.

    Columns are drawn by even shares: draw `k` of a row falls into part `k` of the
    columns, so no column comes twice, and the columns of a row are in order.
    """
    rng = np.random.default_rng(seed)
    bounds = np.linspace(0, n_columns, per_row + 1).astype(np.int32)
    widths = np.diff(bounds)
    indices = np.empty((n_rows, per_row), dtype=np.int32)
    for start in range(0, n_rows, 500):
        drawn = rng.random((min(500, n_rows - start), per_row), dtype=np.float32)
        # Rounding may give 1.0 times the width.
        columns = np.minimum((drawn * widths).astype(np.int32), widths - 1)
        indices[start : start + len(drawn)] = columns + bounds[:-1]
    chosen = chosen_columns(n_columns, n_chosen)
    part = np.searchsorted(bounds, chosen, side="right") - 1
    for column, place in zip(chosen, part):
        rows = np.flatnonzero(rng.random(n_rows) < 0.1)
        indices[rows, place] = column
    data = rng.standard_normal(n_rows * per_row, dtype=np.float32)
    indptr = np.arange(n_rows + 1, dtype=np.int32) * np.int32(per_row)
    return sparse.csr_matrix((data, indices.ravel(), indptr), (n_rows, n_columns))


def chosen_columns(n_columns: int, n_chosen: int) -> np.ndarray:
    """Columns with a coefficient, the same for all blocks."""
    return np.sort(np.random.default_rng(0).choice(n_columns, n_chosen, replace=False))


def make_targets(X: sparse.csr_matrix, n_chosen: int, seed: int) -> np.ndarray:
    """Targets of a sparse model, with noise."""
    rng = np.random.default_rng(1)
    coef = np.zeros(X.shape[1], dtype=np.float32)
    signs = np.where(rng.random(n_chosen) < 0.5, -1, 1)
    coef[chosen_columns(X.shape[1], n_chosen)] = signs * (1 + rng.random(n_chosen))
    y = X @ coef
    return y + np.random.default_rng(seed).standard_normal(len(y), dtype=np.float32)


def make_data(client: Client, args: argparse.Namespace) -> tuple[da.Array, da.Array]:
    """Blocks of rows that lie with the workers, as many with each."""
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    bounds = np.linspace(0, args.rows, args.blocks + 1).astype(int)
    per_row = round(args.nonzeros / args.rows)
    meta = sparse.csr_matrix((0, args.columns), dtype=np.float32)
    X_blocks, y_blocks = [], []
    for number, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:])):
        place = [workers[number * len(workers) // args.blocks]]
        n = int(stop - start)
        features = client.submit(
            make_features,
            n,
            args.columns,
            per_row,
            args.chosen,
            10 + number,
            workers=place,
        )
        targets = client.submit(
            make_targets, features, args.chosen, 1_000 + number, workers=place
        )
        shape = n, args.columns
        X_blocks.append(da.from_delayed(dask.delayed(features), shape, meta=meta))
        y_blocks.append(da.from_delayed(dask.delayed(targets), (n,), dtype=np.float32))
    data = client.persist([da.concatenate(X_blocks), da.concatenate(y_blocks)])
    wait(data)
    return tuple(data)


def largest_alpha(X: da.Array, y: da.Array) -> float:
    """Smallest weight of the penalty with which all coefficients are zero."""
    mean = float(y.mean().compute())
    products = [
        dask.delayed(_products)(X_block, y_block, mean)
        for X_block, y_block in zip(X.to_delayed()[:, 0], y.to_delayed())
    ]
    return float(abs(sum(dask.compute(*products))).max()) / len(y)


def _products(X: sparse.csr_matrix, y: np.ndarray, mean: float) -> np.ndarray:
    """Products of the columns with the centred targets."""
    return X.T @ (y - mean).astype(np.float32)


def print_memory(before: dict[str, int], after: dict[str, int]) -> None:
    """Memory of each worker."""
    for number, worker in enumerate(before):
        print(
            f"worker {number}: {before[worker] / 1e9:.2f} GB before the fit, "
            f"peak {after[worker] / 1e9:.2f} GB"
        )


def report(model: Any, seconds: float, nbytes: int, args: argparse.Namespace) -> None:
    """Print what the fit has come to."""
    nonzero = np.flatnonzero(model.coef_)
    found = np.isin(chosen_columns(args.columns, args.chosen), nonzero).sum()
    print(
        f"fit: {seconds:.1f} s, {model.n_iter_} rounds; {len(nonzero)} coefficients, "
        f"{found} of the {args.chosen} true ones; data {nbytes / 1e9:.2f} GB"
    )
    for record in model.history_:
        print(
            f"  round {record['round']}: {record['time']:.2f} s, gap "
            f"{record['dual_gap']:.2e}, computing {record['seconds_computing']:.2f} s, "
            f"waiting {record['seconds_waiting']:.2f} s, sent "
            f"{record['bytes_sent'] / 1e6:.0f} MB, "
            f"working set {record.get('working_set', 0)}"
        )


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=int, default=50_000)
    add("--columns", type=int, default=5_000_000)
    add("--nonzeros", type=float, default=5e6)
    add("--chosen", type=int, default=200, help="columns with a coefficient")
    add("--workers", type=int, default=2)
    add("--blocks", type=int, default=10)
    add("--divisor", type=float, default=5, help="of the smallest alpha of zeros")
    add("--tol", type=float, default=1e-4)
    add("--layout", default="auto", choices=["auto", "rows", "columns"])
    args = parser.parse_args()
    with (
        LocalCluster(
            n_workers=args.workers,
            threads_per_worker=1,
            dashboard_address=":0",
            memory_limit=0,
        ) as cluster,
        Client(cluster) as client,
    ):
        begin = perf_counter()
        X, y = make_data(client, args)
        print(f"made the data in {perf_counter() - begin:.1f} s", flush=True)
        n_stored = args.rows * round(args.nonzeros / args.rows)
        alpha = largest_alpha(X, y) / args.divisor
        model = SchMPLasso(alpha, tol=args.tol, layout=args.layout)
        before = client.run(reset_peak_rss)
        begin = perf_counter()
        model.fit(X, y)
        seconds = perf_counter() - begin
        report(model, seconds, 8 * n_stored + 4 * args.rows, args)
        print_memory(before, client.run(peak_rss))


if __name__ == "__main__":
    main()
