"""What does a deep pipeline gain where messages take long?

Lasso by dynamic scheduled coordinate descent over four ranks that are threads of one
process, with messages that arrive a while after they were sent. For each delay and
depth: iterations per second, elements of the data touched per second, and the time to
an objective near the optimum.

Run ``python schmp_pipeline.py --help``; the defaults take some three minutes.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import Lasso
from threadpoolctl import threadpool_limits

from dask_ma import losses
from dask_ma.comm import Group, LocalGroup, allreduce
from dask_ma.data import Block, Shard
from dask_ma.engine import RankContext
from dask_ma.schmp import CoordinateDescent, DynamicEngine, schedules


class Data(NamedTuple):
    """Rows, targets, weight of the penalty, and the objectives at start and optimum."""

    X: np.ndarray
    y: np.ndarray
    alpha: float
    start: float
    best: float


class Rates(NamedTuple):
    """What a run has come to.

    Attributes
    ----------
    iterations, touched : float
        In a second.
    seconds, needed : float
        Time and iterations to the objective; infinity if it was not reached.
    """

    iterations: float
    touched: float
    seconds: float
    needed: float


def make_data(args: argparse.Namespace) -> Data:
    """Rows with neighbouring columns that depend on each other."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((args.rows, args.columns))
    X[:, 1:] += 0.5 * X[:, :-1]
    coef = np.zeros(args.columns)
    chosen = rng.choice(args.columns, args.columns // 20, replace=False)
    coef[chosen] = rng.standard_normal(len(chosen))
    y = X @ coef + rng.standard_normal(args.rows)
    centred = y - y.mean()
    alpha = float(np.abs(X.T @ centred).max()) / args.rows / args.divisor
    model = Lasso(alpha, tol=1e-10, max_iter=100_000).fit(X, y)
    residuals = y - model.predict(X)
    best = residuals @ residuals / (2 * args.rows) + alpha * abs(model.coef_).sum()
    return Data(X, y, alpha, float(np.var(y)) / 2, float(best))


def run_rank(group: Group, data: Data, depth: int, args: Any) -> Rates:
    """One rank's part of a run, with the time of its iterations alone."""
    rows = slice(group.rank, None, group.size)
    X, y = data.X[rows], data.y[rows]
    block = Block(X, y, None, group.rank, None)
    shard = Shard([block], X.shape[1], X.dtype)
    n_features = X.shape[1]
    program = CoordinateDescent(
        losses.SquaredError(),
        schedules.Dynamic(args.candidates, args.threshold),
        np.full(n_features, data.alpha),
        np.zeros(n_features),
    )
    engine = DynamicEngine(
        RankContext(group, args.seed), program, shard, pipeline_depth=depth
    )
    seconds, touched, reached = 0.0, 0, np.inf
    needed = np.inf
    target = data.best + args.excess * (data.start - data.best)
    while engine.iteration < args.iterations:
        begin = perf_counter()
        touched += engine.run(args.report_every).n_touched
        seconds += perf_counter() - begin
        objective = engine.report(allreduce(group, engine.measure()))["objective"]
        if objective <= target and reached == np.inf:
            reached, needed = seconds, engine.iteration
    total = float(allreduce(group, np.array(float(touched))))
    return Rates(engine.iteration / seconds, total / seconds, reached, needed)


def run_once(data: Data, depth: int, delay: float, args: Any) -> Rates:
    """A run over ranks that are threads."""
    groups = LocalGroup.create(args.ranks, delay=delay)
    with ThreadPoolExecutor(args.ranks) as pool:
        runs = [pool.submit(run_rank, group, data, depth, args) for group in groups]
        return runs[0].result()


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=int, default=2_000)
    add("--columns", type=int, default=1_000)
    add("--divisor", type=float, default=20, help="of the smallest alpha of zeros")
    add("--ranks", type=int, default=4)
    add("--candidates", type=int, default=16)
    add("--threshold", type=float, default=0.1)
    add("--delays", type=float, nargs="+", default=[1, 2, 5], help="in ms")
    add("--depths", type=int, nargs="+", default=[1, 2, 3, 6])
    add("--iterations", type=int, default=1_000)
    add("--report-every", type=int, default=50)
    add("--excess", type=float, default=1e-3, help="of the objective, of its range")
    add("--repeats", type=int, default=3)
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    data = make_data(args)
    print(
        f"{'delay [ms]':>10}{'depth':>7}{'iterations/s':>14}{'touched/s':>12}"
        f"{'seconds to the objective':>26}{'iterations':>12}"
    )
    with threadpool_limits(1):
        run_once(data, 1, 0.0, args)  # the first run is slower
        for delay in args.delays:
            runs: dict[int, list[Rates]] = {depth: [] for depth in args.depths}
            for _ in range(args.repeats):
                for depth, found in runs.items():
                    found.append(run_once(data, depth, delay / 1000, args))
            for depth, found in runs.items():
                rates = Rates(*(median(values) for values in zip(*found)))
                print(
                    f"{delay:>10g}{depth:>7}{rates.iterations:>14.0f}"
                    f"{rates.touched:>12.3g}{rates.seconds:>26.3f}"
                    f"{rates.needed:>12.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
