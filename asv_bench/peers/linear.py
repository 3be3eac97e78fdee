"""Objective against time: MASGDClassifier next to other libraries, on the same data.

To be run in the folder asv_bench:

    python -m peers.linear                          400,000 sparse rows, all peers
    python -m peers.linear --pairs 5 --peers none   two processes against one
    DASK_MA_DATA=folder python -m peers.linear      reviews from folder/imdb

Peers that are not installed are left out with a message.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._data import load_classification

from ._pairs import format_pairs, measure_pairs
from ._problem import Curve, Problem, best_known
from ._solvers import PeerAbsentError, run_dask_ma, run_dask_ml, run_sklearn, run_spark

PEERS = ("sklearn", "dask-ml", "spark")
RELATIVE_TARGETS = (1.10, 1.05, 1.02, 1.01)


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--columns", type=int, default=50_000)
    parser.add_argument("--nonzeros", type=int, default=33, help="per row")
    parser.add_argument("--alpha", type=float, default=1e-5)
    parser.add_argument("--rounds", type=int, default=20, help="of MASGDClassifier")
    parser.add_argument("--epochs", type=int, default=20, help="of the SGD peers")
    parser.add_argument(
        "--iterations",
        type=int,
        nargs="+",
        default=[1, 2, 5, 10, 20, 50, 100],
        help="of MLlib, one run each",
    )
    parser.add_argument(
        "--spark-steps",
        type=float,
        nargs="+",
        default=[1.0, 3.0, 10.0, 30.0],
        help="initial step sizes to choose from",
    )
    parser.add_argument("--peers", nargs="+", choices=[*PEERS, "none"], default=PEERS)
    parser.add_argument("--pairs", type=int, default=0, help="paired speed measures")
    parser.add_argument("--limit", type=int, default=60, help="of rounds in a pair")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).with_name("results")
    )
    return parser.parse_args()


def collect_curves(problem: Problem, options: argparse.Namespace) -> list[Curve]:
    """Run MASGDClassifier and the chosen peers, one after the other."""
    solvers: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("dask_ma", run_dask_ma, (problem, 1, options.rounds, options.seed)),
        ("dask_ma", run_dask_ma, (problem, 2, options.rounds, options.seed)),
        ("sklearn", run_sklearn, (problem, options.epochs, options.seed)),
        ("dask-ml", run_dask_ml, (problem, options.epochs, options.seed)),
    ]
    chosen = {"dask_ma", *options.peers}
    curves = []
    with tempfile.TemporaryDirectory() as folder:
        solvers.append(
            (
                "spark",
                run_spark,
                (problem, options.iterations, options.spark_steps, Path(folder)),
            )
        )
        for peer, solver, arguments in solvers:
            if peer not in chosen:
                continue
            try:
                curves.append(solver(*arguments))
            except PeerAbsentError as absent:
                print(f"{peer} left out: {absent}", flush=True)
            else:
                print(f"{curves[-1].name}: done", flush=True)
    return curves


def format_curves(curves: list[Curve], best: float) -> str:
    """Table of the time to reach multiples of the best objective known."""
    heads = [f"{target:.2f} x best" for target in RELATIVE_TARGETS]
    width = max(len(curve.name) for curve in curves) + 2
    lines = [
        f"{'seconds to':<{width}}"
        + "".join(f"{head:>13}" for head in heads)
        + f"{'last objective':>16}{'after':>26}"
    ]
    for curve in curves:
        cells = [_seconds(curve.seconds_to(t * best)) for t in RELATIVE_TARGETS]
        last = f"{curve.steps[-1]} {curve.unit}s, {curve.seconds[-1]:.2f} s"
        lines.append(
            f"{curve.name:<{width}}"
            + "".join(f"{cell:>13}" for cell in cells)
            + f"{curve.objectives[-1]:>16.5f}{last:>26}"
        )
    return "\n".join(lines)


def format_against_mllib(curves: list[Curve]) -> str:
    """How long the others need for what MLlib has at its end; empty without MLlib."""
    mllib = [curve for curve in curves if curve.unit == "iteration"]
    if not mllib:
        return ""
    target, reference = mllib[0].objectives[-1], mllib[0].seconds[-1]
    lines = [f"\nTime to MLlib's last objective, {target:.5f} ({reference:.2f} s):"]
    for curve in curves:
        seconds = curve.seconds_to(target)
        if curve is not mllib[0] and seconds is not None:
            lines.append(
                f"  {curve.name}: {seconds:.3f} s, "
                f"{reference / seconds:.0f} times sooner"
            )
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    """Cell of a table."""
    return "-" if value is None else f"{value:.3f}"


def draw(curves: list[Curve], best: float, path: Path) -> None:
    """Plot the distance to the best objective against time, both on log scales."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for curve in curves:
        above = np.array(curve.objectives) / best - 1
        axes.plot(curve.seconds, above, marker="o", markersize=3, label=curve.name)
    axes.axhline(0.02, color="grey", linewidth=0.8, linestyle="--")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="seconds of training",
        ylabel="objective / best objective - 1",
    )
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main() -> None:
    """Run what the command line asks for; print the tables, write plot and figures."""
    options = parse_arguments()
    features, labels = load_classification(
        options.rows, options.columns, options.nonzeros, options.seed
    )
    problem = Problem(features, labels, options.alpha)
    rows, columns = problem.features.shape
    print(
        f"{rows:,} rows, {columns:,} columns, {problem.features.nnz:,} non-zeros, "
        f"hinge loss, alpha {problem.alpha:g}",
        flush=True,
    )
    best = best_known(problem, options.seed)
    report: dict[str, Any] = {"rows": rows, "columns": columns, "alpha": problem.alpha}
    if "none" not in options.peers:
        curves = collect_curves(problem, options)
        best = min(best, *(min(curve.objectives) for curve in curves))
        print(f"best objective known {best:.5f}\n\n{format_curves(curves, best)}")
        print(format_against_mllib(curves))
        options.output.mkdir(parents=True, exist_ok=True)
        draw(curves, best, options.output / "linear.png")
        report["curves"] = [curve._asdict() for curve in curves]
    if options.pairs:
        target = 1.02 * best
        print(f"\nPairs: until {target:.5f} = 1.02 x best", flush=True)
        pairs = measure_pairs(
            problem, target, options.pairs, options.limit, options.seed
        )
        print(format_pairs(pairs))
        report["pairs"] = [pair._asdict() for pair in pairs]
    options.output.mkdir(parents=True, exist_ok=True)
    report["best"] = best
    (options.output / "linear.json").write_text(json.dumps(report, indent=1))
    print(f"\nWritten to {options.output}")


# Worker processes import this file again.
if __name__ == "__main__":
    main()
