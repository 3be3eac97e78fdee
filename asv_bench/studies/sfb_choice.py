"""Does ``communication="auto"`` take what is faster?

For matrices and batches of several shapes, dense and sparse, on ranks that are threads
of one process: what is chosen, and the time of an iteration of a pass with factors and
with whole matrices, by turns, the median of some passes. A choice is right if what it
takes is faster, or slower by no more than a tenth.

Run ``python sfb_choice.py --help``; the defaults take half a minute.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from dask_ma.comm import Group, LocalGroup, barrier
from dask_ma.data import Block, Shard
from dask_ma.engine import RankContext, RoundLog
from dask_ma.sfb import Batch, FactorModel, ParameterMatrix
from dask_ma.sfb._engine import BroadcastEngine
from dask_ma.sfb.exchange._settings import Exchange, RunSettings

_WAYS = ("factors", "full_matrix")
_TIE = 1.1


class Shape(NamedTuple):
    """What is learnt from what.

    Attributes
    ----------
    outputs, columns : int
        Shape of the matrix (J, D).
    batch : int
        Pairs of a rank in an iteration (K).
    nonzeros : int
        Of a sparse row; 0 for dense rows.
    """

    outputs: int
    columns: int
    batch: int
    nonzeros: int = 0


SHAPES = (
    Shape(300, 2000, 10),
    Shape(300, 2000, 100),
    Shape(300, 2000, 400),
    Shape(10, 50, 100),
    Shape(10, 50, 2000),
    Shape(1000, 500, 20),
    Shape(100, 20_000, 64, 30),
    Shape(100, 20_000, 1000, 30),
    Shape(3, 1000, 1000, 30),
)


class Ones(FactorModel):
    """Factors that are rows and ones: next to nothing is computed to find them."""

    learning_rate = 1e-6

    def __init__(self, n_outputs: int) -> None:
        self.n_outputs = n_outputs

    def initial_matrix(self, n_features: int) -> np.ndarray:
        return np.zeros((self.n_outputs, n_features))

    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        return np.ones((batch.n_rows, self.n_outputs)), batch.X


def make_shard(rank: int, shape: Shape, n_steps: int) -> Shard:
    """Rows of a rank."""
    rng = np.random.default_rng(rank)
    n_rows = shape.batch * n_steps
    X: Any = rng.random((n_rows, shape.columns)) if not shape.nonzeros else None
    if shape.nonzeros:
        columns = rng.integers(0, shape.columns, (n_rows, shape.nonzeros))
        starts = np.arange(n_rows + 1) * shape.nonzeros
        data = rng.random(columns.size)
        parts = data, np.sort(columns).ravel(), starts
        X = sparse.csr_matrix(parts, (n_rows, shape.columns))
        X.sum_duplicates()
    block = Block(X, None, None, rank, None)
    return Shard([block], X.shape[1], X.dtype)


def run_rank(
    group: Group, shape: Shape, n_steps: int, repeats: int
) -> tuple[str, dict[str, float]]:
    """What is chosen, and seconds of an iteration of each way."""
    shard, model = make_shard(group.rank, shape, n_steps), Ones(shape.outputs)

    def engine(content: str) -> BroadcastEngine:
        context = RankContext(group, 0)
        settings = RunSettings(
            exchange=Exchange(content), batch_size=shape.batch, shuffle=False
        )
        return BroadcastEngine(context, model, shard, settings, RoundLog(context))

    chosen = engine("auto").communication
    engines = {name: engine(name) for name in _WAYS}
    seconds: dict[str, list[float]] = {name: [] for name in _WAYS}
    for _ in range(1 + repeats):
        for name in _WAYS:
            barrier(group)
            start = perf_counter()
            engines[name].run_pass()
            barrier(group)
            seconds[name].append((perf_counter() - start) / n_steps)
    return chosen, {name: median(taken[1:]) for name, taken in seconds.items()}


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--ranks", type=int, default=4, help="P")
    parser.add_argument("--iterations", type=int, default=3, help="of a pass")
    parser.add_argument("--repeats", type=int, default=5, help="passes that count")
    args = parser.parse_args()
    print(f"{'J':>6}{'D':>7}{'K':>6}{'elements':>10}", end="")
    print(f"{'factors':>11}{'matrices':>11}   {'chosen':<13}right")
    n_right = 0
    with threadpool_limits(1), ThreadPoolExecutor(args.ranks) as pool:
        for shape in SHAPES:
            groups = LocalGroup.create(args.ranks, ranks_per_node=1)
            rest = [(shape, args.iterations, args.repeats)] * args.ranks
            found = pool.map(lambda g, r: run_rank(g, *r), groups, rest)
            chosen, seconds = list(found)[0]
            is_right = seconds[chosen] <= _TIE * min(seconds.values())
            n_right += is_right
            print(f"{shape.outputs:>6}{shape.columns:>7}{shape.batch:>6}", end="")
            print(f"{shape.nonzeros or 'all':>10}", end="")
            for name in _WAYS:
                print(f"{1e3 * seconds[name]:>8.2f} ms", end="")
            print(f"   {chosen:<13}{'yes' if is_right else 'no'}", flush=True)
    print(f"{n_right} of {len(SHAPES)} choices are right")


if __name__ == "__main__":
    main()
