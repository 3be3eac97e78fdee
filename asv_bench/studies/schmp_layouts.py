"""Does ``layout="auto"`` of SchMPLasso choose what is quicker?

Dense and sparse data of several shapes, from few stored elements for each column to
many, lie on worker processes. Each is fitted with the rows shared out and with the
columns, in turns; medians by the clock are printed with what "auto" chooses. Where it
has chosen the slower one, the last column says how much slower.

Run ``python schmp_layouts.py``; the defaults take about two minutes. On hosts with
links of a given rate, with that rate for the choice:

    DASK_DASK_MA__COMM__LINK_BANDWIDTH="12 MB" \\
        python shaped_hosts.py --rate 100mbit schmp_layouts.py --processes 4
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from scipy import sparse

# Worker processes import the modules by this path as well.
sys.path.append(str(Path(__file__).parent.parent))

from dask.distributed import Client  # noqa: E402
from peers._solvers import local_cluster  # noqa: E402

from benchmarks._data import persist  # noqa: E402
from dask_ma import SchMPLasso  # noqa: E402
from dask_ma.schmp.l1 import _agent  # noqa: E402

LAYOUTS = ("rows", "columns")
# Rows, columns, and stored elements of a row; 0 for dense ones.
SHAPES = [
    (16, 200_000, 0),
    (60, 100_000, 0),
    (240, 50_000, 0),
    (1_000, 500_000, 400),
    (2_000, 500_000, 1_000),
    (4_000, 500_000, 2_000),
    (6_000, 100_000, 1_000),
]


def make_data(
    n_rows: int, n_columns: int, per_row: int, seed: int = 0
) -> tuple[Any, np.ndarray, float]:
    """Features, targets of a few columns, and the smallest alpha of zeros."""
    rng = np.random.default_rng(seed)
    if per_row:
        indices = rng.integers(n_columns, size=(n_rows, per_row)).ravel()
        data = rng.standard_normal(n_rows * per_row)
        starts = np.arange(n_rows + 1) * per_row
        X = sparse.csr_matrix((data, indices, starts), shape=(n_rows, n_columns))
        X.sum_duplicates()
        chosen = np.argsort(-np.bincount(indices, minlength=n_columns))[:50]
    else:
        X = rng.standard_normal((n_rows, n_columns))
        chosen = np.arange(50)
    y = np.asarray(X[:, chosen] @ rng.standard_normal(len(chosen)))
    y += 0.1 * y.std() * rng.standard_normal(n_rows)
    return X, y, float(np.abs(X.T @ (y - y.mean())).max()) / n_rows


def take_choice(dask_worker: Any) -> str:
    """What a worker has chosen the last time."""
    return str(dask_worker.chosen_layout)


def watch(dask_worker: Any) -> None:
    """Keep what is chosen on a worker."""
    choose = _agent.choose_layout

    def chosen(*args: Any, **kwargs: Any) -> str:
        dask_worker.chosen_layout = choose(*args, **kwargs)
        return str(dask_worker.chosen_layout)

    _agent.choose_layout = chosen  # type: ignore[assignment]


def measure(client: Client, shape: tuple[int, ...], args: Any) -> str:
    """Time fits of one set in both layouts."""
    X, y, alpha_max = make_data(*shape)
    data = persist(X, y, client)
    seconds: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
    for repeat in range(args.repeats + 1):
        for layout in LAYOUTS:
            model = SchMPLasso(alpha_max / args.divisor, tol=args.gap, layout=layout)
            start = perf_counter()
            model.fit(*data)
            if repeat:
                seconds[layout].append(perf_counter() - start)
    SchMPLasso(alpha_max / args.divisor, tol=args.gap).fit(*data)
    [choice] = set(client.run(take_choice).values())
    medians = {layout: statistics.median(seconds[layout]) for layout in LAYOUTS}
    lost = medians[choice] / min(medians.values())
    kind = f"{shape[2]} of a row" if shape[2] else "dense"
    times = ", ".join(f"{medians[layout]:.3f}" for layout in LAYOUTS)
    rounds = model.n_iter_
    return f"{shape[0]} x {shape[1]}, {kind}, {rounds}, {times}, {choice}, {lost:.2f}"


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--processes", type=int, nargs="+", default=[2, 4])
    add("--scheduler", help="address; clusters of this machine unless given")
    add("--divisor", type=float, default=10, help="of the smallest alpha of zeros")
    add("--gap", type=float, default=1e-6, help="relative duality gap to reach")
    add("--repeats", type=int, default=3)
    args = parser.parse_args()
    for n_processes in args.processes:
        print(
            f"{n_processes} processes\ndata, stored, rounds, rows, columns, auto, lost"
        )
        cluster = Client(args.scheduler) if args.scheduler else None
        with cluster or local_cluster(n_processes) as client:
            client.run(watch)
            for shape in SHAPES:
                print(measure(client, shape, args), flush=True)


if __name__ == "__main__":
    main()
