"""How many bytes, and how much time, does an iteration cost with factors and matrices?

A model whose factors are random numbers runs over ranks that are threads of one process
and count their messages like ranks of several processes. For each way to communicate:
bytes that all ranks together send in an iteration by the counters of their groups, the
same by the formulas of section 4.1 of the paper, bytes of the mean at the end of a pass
where there is one, and the time of an iteration.

Run ``python sfb_traffic.py --help``. The defaults, a matrix of 400 MB for each of four
ranks, need some 10 GB of memory and some minutes.
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

from dask_ma.comm import Group, LocalGroup, allreduce, barrier
from dask_ma.data import Block, Shard
from dask_ma.engine import RankContext, RoundLog
from dask_ma.sfb import Batch, FactorModel, ParameterMatrix
from dask_ma.sfb._engine import BroadcastEngine
from dask_ma.sfb.exchange._cost import factor_bytes, full_matrix_bytes, iteration_bytes
from dask_ma.sfb.exchange._settings import Exchange, RunSettings
from dask_ma.sfb.topology import Topology


class Way(NamedTuple):
    """A way to communicate.

    Attributes
    ----------
    name : str
        For the table.
    n_peers : int or None
        Ranks that each rank sends its factors to; None for whole matrices.
    relayed : bool
        Whether they pass them on.
    exchange : Exchange
        Of the engine.
    """

    name: str
    n_peers: int | None
    relayed: bool
    exchange: Exchange


class Cost(NamedTuple):
    """What one rank has sent, and how long it took.

    Attributes
    ----------
    iteration, mean : float
        Bytes in an iteration, and for the mean at the end of a pass.
    seconds : float
        Time of an iteration.
    """

    iteration: float
    mean: float
    seconds: float


class Random(FactorModel):
    """Factors that are rows and random numbers."""

    learning_rate = 1e-3

    def __init__(self, n_outputs: int, dtype: str) -> None:
        self.n_outputs = n_outputs
        self.dtype = dtype

    def initial_matrix(self, n_features: int) -> np.ndarray:
        return np.zeros((self.n_outputs, n_features), dtype=self.dtype)

    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        rng = np.random.default_rng(batch.rows[:1])
        u = rng.random((batch.n_rows, self.n_outputs))
        return u.astype(self.dtype, copy=False), batch.X


def make_shard(rank: int, args: argparse.Namespace) -> Shard:
    """Rows of a rank: as many batches as there are iterations in a pass."""
    rng = np.random.default_rng(rank)
    shape = args.batch * args.iterations, args.columns
    if args.nonzeros:
        data = rng.random(shape[0] * args.nonzeros).astype(args.dtype)
        parts = [
            rng.choice(args.columns, args.nonzeros, replace=False)
            for _ in range(shape[0])
        ]
        starts = np.arange(shape[0] + 1) * args.nonzeros
        X = sparse.csr_matrix((data, np.concatenate(parts), starts), shape)
        X.sort_indices()
    else:
        X = rng.random(shape, dtype=args.dtype)
    block = Block(X, None, None, rank, None)
    return Shard([block], shape[1], X.dtype)


def run_rank(group: Group, way: Way, args: argparse.Namespace) -> Cost:
    """A pass on one rank."""
    context = RankContext(group, 0)
    settings = RunSettings(exchange=way.exchange, batch_size=args.batch, shuffle=False)
    model, shard = Random(args.outputs, args.dtype), make_shard(group.rank, args)
    log = RoundLog(context)
    engine = BroadcastEngine(context, model, shard, settings, log)
    barrier(group)
    before, begin = group.counters.bytes_sent, perf_counter()
    engine.run_pass()
    seconds = (perf_counter() - begin) / args.iterations
    sent = group.counters.bytes_sent - before
    mean = 0
    if way.n_peers is not None and way.n_peers < group.size - 1:
        # The same arrays once more: the one of the pass cannot be told from the rest.
        before = group.counters.bytes_sent
        allreduce(group, [engine.matrix.values])
        mean = group.counters.bytes_sent - before
    return Cost((sent - mean) / args.iterations, mean, seconds)


def run_once(way: Way, args: argparse.Namespace) -> Cost:
    """A pass on all ranks; the sums of their bytes, and the mean of their times."""
    groups = LocalGroup.create(args.ranks, ranks_per_node=1)
    with ThreadPoolExecutor(args.ranks) as pool:
        costs = list(pool.map(lambda group: run_rank(group, way, args), groups))
    iteration, mean, seconds = np.sum(costs, axis=0)
    return Cost(iteration, mean, seconds / args.ranks)


def predicted(way: Way, args: argparse.Namespace) -> int:
    """Bytes of an iteration by the formulas."""
    itemsize = np.dtype(args.dtype).itemsize
    if way.n_peers is None:
        return full_matrix_bytes(args.ranks, args.outputs, args.columns, itemsize)
    per_row = args.nonzeros or args.columns
    message = factor_bytes(
        args.batch, args.outputs, per_row, itemsize, 4, bool(args.nonzeros)
    )
    return iteration_bytes(message, args.ranks, way.n_peers, way.relayed)


def ways(args: argparse.Namespace) -> list[Way]:
    """All ways to compare."""
    found = [Way("factors, to all", args.ranks - 1, False, Exchange("factors"))]
    for n_peers in args.peers:
        topology = Topology.optimal(args.ranks, n_peers)
        for relayed in (False, True):
            name = f"factors, Q = {n_peers}" + (", relayed" if relayed else "")
            exchange = Exchange("factors", broadcast=topology, relay=relayed)
            found.append(Way(name, n_peers, relayed, exchange))
    for name in ("full_matrix", "server"):
        found.append(Way(name, None, False, Exchange(name)))
    return found


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--outputs", type=int, default=1_000, help="rows of the matrix (J)")
    add("--columns", type=int, default=50_000, help="columns of the matrix (D)")
    add("--batch", type=int, default=100, help="pairs of a rank (K)")
    add("--ranks", type=int, default=4, help="P")
    add("--peers", type=int, nargs="*", default=[1, 2], help="Q, below P - 1")
    add("--nonzeros", type=int, default=0, help="of a sparse row; 0 for dense rows")
    add("--dtype", default="float64", choices=["float32", "float64"])
    add("--iterations", type=int, default=2, help="of a pass")
    add("--repeats", type=int, default=1)
    args = parser.parse_args()
    print(
        f"J = {args.outputs}, D = {args.columns}, K = {args.batch}, P = {args.ranks}, "
        f"{args.nonzeros or 'all'} elements in a row, {args.dtype}"
    )
    print(
        f"{'':<26}{'MB an iteration':>17}{'formula':>12}{'ratio':>9}"
        f"{'MB of the mean':>16}{'seconds':>10}"
    )
    with threadpool_limits(1):
        for way in ways(args):
            costs = [run_once(way, args) for _ in range(args.repeats)]
            formula, cost = predicted(way, args), costs[0]
            seconds = median(cost.seconds for cost in costs)
            print(
                f"{way.name:<26}{cost.iteration / 1e6:>17.3f}{formula / 1e6:>12.3f}"
                f"{cost.iteration / formula:>9.4f}{cost.mean / 1e6:>16.3f}"
                f"{seconds:>10.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
