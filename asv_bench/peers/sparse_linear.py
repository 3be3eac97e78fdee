"""Time to a duality gap: SchMPLasso next to celer and scikit-learn, on the same data.

To be run in the folder asv_bench:

    python -m peers.sparse_linear --data FOLDER             all problems and peers
    python -m peers.sparse_linear --problems synthetic      what needs no folder
    python -m peers.sparse_linear --peers none --pairs 5    two processes against one

Each solver gets the data in the order of memory that it likes, and one thread. The gap
is computed by one function for all; a peer's tolerance is the largest one that gives
the gap asked for. The folder (or ``$DASK_MA_DATA``) holds ``imdb`` and
``gene_expression``. The defaults take some 20 minutes, most of them scikit-learn's on
the synthetic problem.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks._data import persist

from ._solvers import PeerAbsentError, local_cluster
from ._sparse_solvers import (
    NAMES,
    SOLVERS,
    Result,
    SparseProblem,
    load_problem,
    make_correlated,
    measure,
)

PEERS = ("celer", "sklearn")
_STEPS = (1.0, 0.3)
TOLERANCES = [step * 10.0**-power for power in range(4, 13) for step in _STEPS]


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--problems", nargs="+", choices=NAMES, default=NAMES)
    add("--peers", nargs="+", choices=[*PEERS, "none"], default=PEERS)
    add("--divisors", type=float, nargs="+", default=[10, 50, 100], help="of alpha_max")
    add("--gap", type=float, default=1e-6, help="relative duality gap to reach")
    add("--largest-tol", type=float, default=1e-4, help="that peers are tried with")
    add("--pairs", type=int, default=0, help="fits by one process and by two")
    add("--output", type=Path, default=Path(__file__).with_name("results"))
    return parser.parse_args()


def compare(problem: SparseProblem, options: argparse.Namespace) -> list[dict]:
    """Measure all solvers on a problem; print and return a row for each penalty."""
    columns = problem.by_columns()
    rows = []
    for divisor in options.divisors:
        alpha = problem.alpha_max / divisor
        row: dict[str, Any] = {"problem": problem.name, "divisor": divisor}
        for name in ("dask_ma", *options.peers):
            tolerances = [t for t in TOLERANCES if t <= options.largest_tol * 1.01]
            if name == "dask_ma":
                tolerances = [options.gap]  # its tolerance is this very gap
            try:
                row[name] = measure(
                    SOLVERS[name], problem, columns, alpha, options.gap, tolerances
                )
            except PeerAbsentError as absent:
                print(f"{name} left out: {absent}", flush=True)
        rows.append(row)
        print(format_row(row), flush=True)
    return rows


def format_row(row: dict[str, Any]) -> str:
    """Line of the table."""
    cells = []
    for name in SOLVERS:
        result: Result | None = row.get(name)
        if result is None:
            cells.append(f"{'-':>10}{'':>9}")
        else:
            cells.append(f"{result.seconds:>10.4f}{result.gap:>9.1e}")
    ratios = "".join(f"{ratio(row, peer):>9.3f}" for peer in PEERS)
    head = f"{row['problem']:<11}{row['divisor']:>5g}{row['dask_ma'].n_nonzero:>6}"
    return head + "".join(cells) + ratios


def ratio(row: dict[str, Any], peer: str) -> float:
    """Time of SchMPLasso over that of a peer; NaN without it."""
    if peer not in row:
        return np.nan
    return row["dask_ma"].seconds / row[peer].seconds


def format_head() -> str:
    """First line of the table."""
    cells = "".join(f"{name + ' [s]':>13}{'gap':>6}" for name in SOLVERS)
    ratios = "".join(f"{'/' + peer:>9}" for peer in PEERS)
    return f"{'problem':<11}{'max/':>5}{'coef':>6}{cells}{ratios}"


def format_means(rows: list[dict[str, Any]]) -> str:
    """Geometric means of the ratios."""
    lines = []
    for peer in PEERS:
        found = [ratio(row, peer) for row in rows if peer in row]
        if found:
            mean = float(np.exp(np.mean(np.log(found))))
            lines.append(
                f"geometric mean of SchMPLasso / {peer}: {mean:.3f} "
                f"({min(found):.3f} to {max(found):.3f}, {len(found)} fits)"
            )
    return "\n".join(lines)


def compare_processes(
    problem: SparseProblem, divisor: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Fit by one and by two worker processes in turn, the data lying with them."""
    from dask_ma import SchMPLasso

    model = SchMPLasso(problem.alpha_max / divisor, tol=options.gap)
    found: dict[int, list[tuple[float, list[dict[str, Any]]]]] = {1: [], 2: []}
    with local_cluster(1) as one, local_cluster(2) as two:
        clusters = {1: one, 2: two}
        data = {
            n: persist(problem.features, problem.targets, client)
            for n, client in clusters.items()
        }
        for _ in range(options.pairs + 1):
            for n, client in clusters.items():
                with client.as_current():
                    start = time.perf_counter()
                    model.fit(*data[n])
                    found[n].append((time.perf_counter() - start, model.history_))
    # The first fits load the modules.
    timed = {n: runs[1:] for n, runs in found.items()}
    pairs = [(a[0], b[0]) for a, b in zip(timed[1], timed[2], strict=True)]
    print(format_processes(problem.name, divisor, pairs, timed), flush=True)
    return {"problem": problem.name, "divisor": divisor, "pairs": pairs}


def format_processes(
    name: str,
    divisor: float,
    pairs: list[tuple[float, float]],
    timed: dict[int, list[tuple[float, list[dict[str, Any]]]]],
) -> str:
    """Times of whole fits, and what they were spent on."""
    median = statistics.median(two / one for one, two in pairs)
    lines = [f"{name}, alpha_max / {divisor:g}: two processes / one: {median:.2f}"]
    for n, runs in timed.items():
        seconds = [run[0] for run in runs]
        _, history = sorted(runs, key=lambda run: run[0])[len(runs) // 2]
        spent = {
            key: sum(record[key] for record in history)
            for key in ("seconds_computing", "seconds_waiting")
        }
        lines.append(
            f"  {n} process{'es' if n > 1 else '  '} {statistics.median(seconds):.3f} s"
            f" ({min(seconds):.3f} to {max(seconds):.3f}); {len(history)} rounds, "
            f"{history[-1]['time']:.3f} s of them on the ranks: computing "
            f"{spent['seconds_computing']:.3f} s, waiting "
            f"{spent['seconds_waiting']:.3f} s"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what the command line asks for; print tables and write the figures."""
    options = parse_arguments()
    folder = None if options.data is None else Path(options.data)
    rows, processes = [], []
    with threadpool_limits(1):
        # The first fits load modules and compile.
        small = make_correlated(50, 200)
        for name in ("dask_ma", *(set(options.peers) - {"none"})):
            try:
                SOLVERS[name](small, small.by_columns(), small.alpha_max / 10, 1e-6)
            except PeerAbsentError:
                continue
        if "none" not in options.peers:
            print(format_head(), flush=True)
        for name in options.problems:
            problem = load_problem(name, folder)
            if "none" not in options.peers:
                rows += compare(problem, options)
            if options.pairs and name in ("imdb", "synthetic"):
                for divisor in options.divisors:
                    processes.append(compare_processes(problem, divisor, options))
    print(format_means(rows))
    options.output.mkdir(parents=True, exist_ok=True)
    report = {
        "gap": options.gap,
        "rows": [{k: _plain(v) for k, v in row.items()} for row in rows],
        "processes": processes,
    }
    (options.output / "sparse_linear.json").write_text(json.dumps(report, indent=1))


def _plain(value: Any) -> Any:
    """What JSON takes."""
    return value._asdict() if isinstance(value, Result) else value


# Worker processes import this file again.
if __name__ == "__main__":
    main()
