"""Iterations per second of long-running ranks and of Dask futures, for one program.

Coordinate descent for the Lasso, with the coordinates in cyclic order, so that both
ways make the same steps and must end with the same model:

- `dask_ma.schmp.run`: ranks that live as long as the run exchange messages;
- futures: the shards are futures, the update of iteration `t` on each worker is a task
  that depends on the model after iteration ``t - depth``, and the aggregation of its
  results is a task that gives the next model. The client submits all tasks at the
  beginning and waits for the last model, so that it is never in the way.

The data are small, so that the rates tell what an iteration costs besides its
arithmetic. Where the rows are few, working residuals out anew, as the tasks do, costs
little; the time of an update is printed.

Run ``python schmp_futures.py --help``; the defaults take some two minutes.
"""

from __future__ import annotations

import argparse
from collections import deque
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster, wait

from dask_ma import losses
from dask_ma.schmp import CoordinateDescent, run, schedules


class Lasso(NamedTuple):
    """The problem: rows, targets, weight of the penalty."""

    X: np.ndarray
    y: np.ndarray
    l1: float

    @property
    def curvatures(self) -> np.ndarray:
        """Mean squares of the columns."""
        return (self.X**2).mean(axis=0)


# The program as tasks ----------------------------------------------------------------


def update(
    shard: tuple[np.ndarray, np.ndarray], model: np.ndarray, job: np.ndarray
) -> np.ndarray:
    """Task: minus the gradient of some coordinates over the rows of a shard."""
    X, y = shard
    return X[:, job].T @ (y - X @ model)


def aggregate(
    model: np.ndarray,
    problem: tuple[np.ndarray, float, int],
    job: np.ndarray,
    *results: np.ndarray,
) -> np.ndarray:
    """Task: the next model."""
    curvatures, l1, n_rows = problem
    curvature = curvatures[job]
    target = curvature * model[job] + sum(results) / n_rows
    changed = model.copy()
    changed[job] = np.sign(target) * np.maximum(np.abs(target) - l1, 0) / curvature
    return changed


def run_futures(
    client: Client, shards: dict[str, Any], lasso: Lasso, args: Any, depth: int, n: int
) -> tuple[float, np.ndarray]:
    """Seconds for `n` iterations from the first task on, and the model."""
    n_rows, n_features = lasso.X.shape
    constants = client.scatter(
        (lasso.curvatures, lasso.l1, n_rows), broadcast=True, hash=False
    )
    start = client.scatter(np.zeros(n_features), broadcast=True, hash=False)
    models = deque([start] * depth, maxlen=depth)
    begin = perf_counter()
    for t in range(n):
        job = (t * args.candidates + np.arange(args.candidates)) % n_features
        results = [
            client.submit(update, shard, models[0], job, workers=[place], pure=False)
            for place, shard in shards.items()
        ]
        models.append(
            client.submit(aggregate, models[-1], constants, job, *results, pure=False)
        )
    model = models[-1].result()
    return perf_counter() - begin, model


# The program on the engine -----------------------------------------------------------


def run_engine(
    data: tuple[Any, Any], lasso: Lasso, args: Any, depth: int, n: int, n_rounds: int
) -> tuple[float, float, np.ndarray]:
    """Seconds of an iteration, seconds of the whole call, and the model.

    The pipeline runs empty at the end of a round. With two, the iterations are timed
    between the ends of the two, without the launch.
    """
    n_features = lasso.X.shape[1]
    program = CoordinateDescent(
        losses.SquaredError(),
        schedules.Cyclic(args.candidates),
        np.full(n_features, lasso.l1),
        np.zeros(n_features),
        fit_intercept=False,
    )
    begin = perf_counter()
    result = run(
        program, *data, n_iterations=n, pipeline_depth=depth, report_every=n // n_rounds
    )
    whole = perf_counter() - begin
    times = [record["time"] for record in result.history]
    each = (times[-1] - times[0]) / (n - n // n_rounds) if n_rounds > 1 else np.nan
    return each, whole, result.model


# The comparison ----------------------------------------------------------------------


def place(client: Client, lasso: Lasso) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """The rows as Dask arrays, and as a future for each worker."""
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    chunk = -(-len(lasso.y) // len(workers))
    arrays = client.persist(
        [da.from_array(lasso.X, (chunk, -1)), da.from_array(lasso.y, chunk)]
    )
    wait(arrays)
    shards = {}
    for number, address in enumerate(workers):
        rows = slice(number * chunk, (number + 1) * chunk)
        shard = np.asfortranarray(lasso.X[rows]), lasso.y[rows]
        shards[address] = client.scatter(shard, workers=[address], hash=False)
    return tuple(arrays), shards


def compare(n_workers: int, lasso: Lasso, args: argparse.Namespace) -> None:
    """Print the rates on some worker processes, for each depth."""
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        data, shards = place(client, lasso)
        for depth in args.depths:
            run_engine(data, lasso, args, depth, 20, 2)  # loads modules
            run_futures(client, shards, lasso, args, depth, 20)
            engine, whole, futures = [], [], []
            for _ in range(args.repeats):
                seconds, call, _ = run_engine(
                    data, lasso, args, depth, args.iterations, 2
                )
                engine.append(1 / seconds)
                whole.append(args.iterations / call)
                seconds, _ = run_futures(
                    client, shards, lasso, args, depth, args.futures_iterations
                )
                futures.append(args.futures_iterations / seconds)
            ratio = median(a / b for a, b in zip(engine, futures))
            print(
                f"{n_workers:>7}{depth:>7}{median(engine):>10.0f}{median(whole):>12.0f}"
                f"{median(futures):>10.0f}{ratio:>8.1f}",
                flush=True,
            )


def make_problem(args: argparse.Namespace) -> Lasso:
    """Rows with a sparse model and noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((args.rows, args.columns))
    coef = np.where(rng.random(args.columns) < 0.05, 1.0, 0.0)
    y = X @ coef + rng.standard_normal(args.rows)
    return Lasso(X, y, 0.1 * float(np.abs(X.T @ y).max()) / args.rows)


def check_agreement(lasso: Lasso, args: argparse.Namespace) -> None:
    """See that both ways make the same steps."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        data, shards = place(client, lasso)
        for depth in args.depths:
            model = run_engine(data, lasso, args, depth, 60, 1)[2]
            other = run_futures(client, shards, lasso, args, depth, 60)[1]
            np.testing.assert_allclose(model, other, rtol=1e-8, atol=1e-12)


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=int, default=400)
    add("--columns", type=int, default=400)
    add("--candidates", type=int, default=16, help="coordinates in an iteration")
    add("--workers", type=int, nargs="+", default=[2, 4])
    add("--depths", type=int, nargs="+", default=[1, 3])
    add("--iterations", type=int, default=1_000, help="of the engine")
    add("--futures-iterations", type=int, default=100)
    add("--repeats", type=int, default=5)
    args = parser.parse_args()
    lasso = make_problem(args)
    check_agreement(lasso, args)
    half = len(lasso.y) // 2
    shard = np.asfortranarray(lasso.X[:half]), lasso.y[:half]
    job, model = np.arange(args.candidates), np.ones(args.columns)
    begin = perf_counter()
    for _ in range(200):
        update(shard, model, job)
    each = (perf_counter() - begin) / 200
    print(f"an update of half the rows takes {1e6 * each:.0f} us; iterations/s:")
    print(
        f"{'workers':>7}{'depth':>7}{'engine':>10}{'whole call':>12}{'futures':>10}"
        f"{'ratio':>8}"
    )
    for n_workers in args.workers:
        compare(n_workers, lasso, args)


if __name__ == "__main__":
    main()
