"""Matrix factorization of many ratings, and of many items: time and memory.

To be run in the folder asv_bench:

    python -m studies.factorization_scale --ratings 1e5 1e6 1e7 1e8
    python -m studies.factorization_scale --items 5e6 --solver sgd

With ``--ratings`` they are made block by block, on one rank of this process; shown are
the time of the processor for each rating, once and in each round after the first, and
the largest memory of the process, data, layout and model together. 10^8 ratings need
some 8 GB. With ``--items`` a few users rate very many items, on four worker processes
and, with ``--alone``, on one; shown is how much the memory of each worker grows (Linux
only).
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import dask
import dask.array as da
import numpy as np
from peers._solvers import local_cluster
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from benchmarks._data import peak_rss, reset_peak_rss
from dask_ma import SchMPMatrixFactorization

PER_BLOCK = 1_000_000


class Clock:
    """Notes the time of the processor after each round, as a callback."""

    def __init__(self) -> None:
        self.times = [time.process_time()]

    def setup(self, estimator: Any, context: Any) -> None:
        """Nothing to begin with."""

    def on_fit_task_begin(self, estimator: Any, context: Any, **known: Any) -> None:
        """Nothing before a round."""

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        """Note the time, and go on; asked for no model, ranks need not collect it."""
        self.times.append(time.process_time())
        return False

    def teardown(self, estimator: Any, context: Any) -> None:
        """Nothing to end with."""


def make_block(
    number: int, n_ratings: int, n_users: int, n_items: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ratings of popular and less popular items, by eager and less eager users.

    The frequency of number `i` falls like ``i ** -0.6`` for users, ``i ** -0.8`` for
    items.
    """
    rng = np.random.default_rng([0, number])
    drawn = rng.random((n_ratings, 2))
    users = (n_users * drawn[:, 0] ** 2.5).astype(np.int32)
    items = (n_items * drawn[:, 1] ** 5).astype(np.int32)
    stars = rng.integers(1, 11, n_ratings) / np.float32(2)
    return np.column_stack([users, items]), stars


def make_ratings(n_ratings: int, n_users: int, n_items: int) -> tuple[Any, Any]:
    """Pairs and ratings as Dask arrays, whose blocks are made when they are needed."""
    pairs, stars = [], []
    for number, start in enumerate(range(0, n_ratings, PER_BLOCK)):
        n = min(PER_BLOCK, n_ratings - start)
        made = dask.delayed(make_block, nout=2)(number, n, n_users, n_items)
        pairs.append(da.from_delayed(made[0], (n, 2), np.int32))
        stars.append(da.from_delayed(made[1], (n,), np.float32))
    return da.concatenate(pairs), da.concatenate(stars)


def measure_ratings(sizes: list[int], n_rounds: int, options: dict[str, Any]) -> None:
    """One line for each number of ratings."""
    print("ratings         once, ns   a round, ns   most memory, GB", flush=True)
    for n_ratings in sizes:
        n_users = max(1000, n_ratings // 145)
        X, y = make_ratings(n_ratings, n_users, 27_000)
        clock = Clock()
        model = SchMPMatrixFactorization(
            32, max_iter=n_rounds, tol=0, n_ranks=1, random_state=0, **options
        )
        model.set_callbacks(clock).fit(X, y)
        times = np.diff(clock.times[: n_rounds + 1]) / n_ratings * 1e9
        each = np.median(times[1:])
        print(
            f"{n_ratings:<12,} {times[0] - each:11.0f} {each:13.0f} "
            f"{peak_rss() / 1e9:17.2f}",
            flush=True,
        )
        del model, X, y


def measure_items(
    n_items: int, worker_counts: list[int], options: dict[str, Any]
) -> None:
    """One line for each number of workers."""
    n_users, per_item = 1000, 2
    for n_workers in worker_counts:
        with local_cluster(n_workers) as client:
            X, y = make_items(n_users, n_items, per_item)
            before = client.run(peak_rss)
            client.run(reset_peak_rss)
            SchMPMatrixFactorization(
                64, max_iter=1, tol=0, random_state=0, **options
            ).fit(X, y)
            grown = [
                (most - before[worker]) / 1e9
                for worker, most in client.run(peak_rss).items()
            ]
        shown = ", ".join(f"{gigabytes:.2f}" for gigabytes in grown)
        print(
            f"{n_items:,} items x 64 ({n_items * 256 / 1e9:.2f} GB) on {n_workers} "
            f"workers: each grows by {shown} GB",
            flush=True,
        )


def make_items(n_users: int, n_items: int, per_item: int) -> tuple[Any, Any]:
    """Each item rated by some users, at random."""
    pairs, stars = [], []
    for start in range(0, n_items, PER_BLOCK):
        n = min(PER_BLOCK, n_items - start)
        made = dask.delayed(make_item_block, nout=2)(start, n, n_users, per_item)
        pairs.append(da.from_delayed(made[0], (n * per_item, 2), np.int32))
        stars.append(da.from_delayed(made[1], (n * per_item,), np.float32))
    return da.concatenate(pairs), da.concatenate(stars)


def make_item_block(
    start: int, n: int, n_users: int, per_item: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ratings of consecutive items."""
    rng = np.random.default_rng([1, start])
    users = rng.integers(0, n_users, n * per_item, dtype=np.int32)
    items = np.repeat(np.arange(start, start + n, dtype=np.int32), per_item)
    stars = rng.integers(1, 11, n * per_item) / np.float32(2)
    return np.column_stack([users, items]), stars


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ratings", nargs="+", type=float, default=[])
    add("--items", type=float, help="number of items, 64 components each")
    add("--alone", action="store_true", help="items on one worker, too")
    add("--solver", choices=["cg", "cholesky", "sgd"], default="cg")
    add("--rounds", type=int, default=3, help="on ratings")
    asked = parser.parse_args()
    options = {"als_solver": asked.solver}
    if asked.solver == "sgd":
        options = {"solver": "sgd"}
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        if asked.ratings:
            measure_ratings([int(n) for n in asked.ratings], asked.rounds, options)
        if asked.items:
            workers = [1, 4] if asked.alone else [4]
            measure_items(int(asked.items), workers, options)


# Worker processes import this file again.
if __name__ == "__main__":
    main()
