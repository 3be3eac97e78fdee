"""Linear models on two processes next to Spark's on two threads, to one objective.

To be run in the folder asv_bench:

    python -m peers.spark --part gradients          hinge loss, MLlib's SVMWithSGD
    python -m peers.spark --part logistic           log loss, spark.ml's L-BFGS
    python -m peers.spark --write ../docs/measured/spark.csv     both

Spark has its rows in memory; those of MASGDClassifier lie on two worker processes.
SVMWithSGD makes a number of iterations, and MASGDClassifier as many rounds as it takes
to an objective that is not higher: one, after which it is far lower than that of Spark
after some hundred iterations, so that the ratio of the times is at least what is shown.
The logistic model is fitted to its end by MASGDClassifier, and LogisticRegression makes
as few iterations as it takes to 1.001 times that objective. Launch and result count.
All parameters of MASGDClassifier but `loss` and `alpha` are the defaults. Fits take
turns; seconds are medians. `pyspark` and Java 17 are needed.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import dump_svmlight_file

from benchmarks._data import load_classification, persist
from dask_ma import MASGDClassifier

from ._problem import Problem
from ._solvers import fit_spark, load_spark, local_cluster, spark_session
from .ranks import rounds_needed

HEADS = ("loss", "method of Spark", "Spark", "MASGDClassifier", "ratio", "objectives")
PARTS = ("gradients", "logistic")
FEWER = (5, 10, 15, 20, 30, 50)  # iterations of LogisticRegression that are tried
WITHIN = 1.001  # times the objective of MASGDClassifier


#: ``fit(loss, rounds)``; None for a whole fit.
Fit = Callable[[str, int | None], Any]


class Row(NamedTuple):
    """Seconds of both, and the objectives that they reach."""

    loss: str
    method: str
    theirs: float
    ours: float
    objectives: tuple[float, float]


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--part", choices=PARTS, help="both by default")
    add("--rows", type=int, default=400_000)
    add("--columns", type=int, default=50_000)
    add("--nonzeros", type=int, default=33, help="per row")
    add("--alpha", type=float, default=1e-5)
    add("--iterations", type=int, default=300, help="of Spark")
    add("--steps", type=float, nargs="+", default=[1.0, 10.0, 30.0], help="tried first")
    add("--limit", type=int, default=60, help="of rounds")
    add("--repeats", type=int, default=3)
    add("--seed", type=int, default=0)
    add("--write", type=Path, help="file for the figures")
    return parser.parse_args()


def log_objective(problem: Problem, weights: np.ndarray, intercept: float) -> float:
    """Mean logistic loss + alpha / 2 * squared norm of the weights."""
    margins = problem.labels * (problem.features @ weights + intercept)
    loss = np.logaddexp(0.0, -margins).mean()
    return float(loss + 0.5 * problem.alpha * (weights @ weights))


class Pairing(NamedTuple):
    """Two fits to one objective; each of Spark's returns its seconds and objective."""

    method: str
    theirs: Callable[[], tuple[float, float]]
    ours: Callable[[], Any]


def by_gradients(
    session: Any, problem: Problem, fit: Fit, options: argparse.Namespace
) -> Pairing:
    """SVMWithSGD, from a step size that is best after 20 iterations."""
    with tempfile.TemporaryDirectory() as folder:
        rows = load_spark(session, problem, Path(folder))
        tried = {
            step: fit_spark(session, problem, rows, 20, step)[1]
            for step in options.steps
        }
    step = min(tried, key=tried.__getitem__)
    run = partial(fit_spark, session, problem, rows, options.iterations, step)
    rounds = rounds_needed(fit("hinge", options.limit), run()[1])
    return Pairing(
        f"SVMWithSGD, {options.iterations} iterations, step {step:g}",
        run,
        partial(fit, "hinge", rounds),
    )


def by_quasi_newton(
    session: Any, problem: Problem, fit: Fit, options: argparse.Namespace
) -> Pairing:
    """LogisticRegression of spark.ml, on the same objective."""
    from pyspark.ml.classification import LogisticRegression

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "train.libsvm")
        labels = (problem.labels > 0).astype(int)
        dump_svmlight_file(problem.features, labels, path, zero_based=False)
        reader = session.read.format("libsvm")
        reader = reader.option("numFeatures", problem.features.shape[1])
        rows = reader.load(path).repartition(2).cache()
        if rows.count() != len(labels):
            raise RuntimeError("Spark did not read back all rows")

    def run(iterations: int) -> tuple[float, float]:
        model = LogisticRegression(
            regParam=problem.alpha, maxIter=iterations, standardization=False
        )
        start = time.perf_counter()
        fitted = model.fit(rows)
        elapsed = time.perf_counter() - start
        weights = np.asarray(fitted.coefficients.toArray())
        return elapsed, log_objective(problem, weights, fitted.intercept)

    target = WITHIN * fit("log_loss", None).history_[-1]["objective"]
    enough = (n for n in FEWER if run(n)[1] <= target)
    iterations = next(enough, options.iterations)
    return Pairing(
        f"LogisticRegression, {iterations} iterations",
        partial(run, iterations),
        partial(fit, "log_loss", None),
    )


def compare(loss: str, pairing: Pairing, repeats: int) -> Row:
    """Fit in turns."""
    theirs, own = [], []
    for _ in range(repeats):
        seconds, objective = pairing.theirs()
        theirs.append(seconds)
        start = time.perf_counter()
        model = pairing.ours()
        own.append(time.perf_counter() - start)
    reached = float(model.history_[-1]["objective"])
    medians = statistics.median(theirs), statistics.median(own)
    return Row(loss, pairing.method, *medians, (objective, reached))


WAYS = {"gradients": ("hinge", by_gradients), "logistic": ("log_loss", by_quasi_newton)}


def cells_of(row: Row) -> list[str]:
    """What a row shows, in the order of the heads."""
    return [
        row.loss,
        row.method,
        f"{row.theirs:.2f}",
        f"{row.ours:.3f}",
        f"{row.theirs / row.ours:.1f}",
        f"{row.objectives[0]:.5f}, {row.objectives[1]:.5f}",
    ]


def main() -> None:
    """Measure, print the rows, write the figures if asked to."""
    options = parse_arguments()
    features, labels = load_classification(
        options.rows, options.columns, options.nonzeros, options.seed
    )
    problem = Problem(features, labels, options.alpha)
    shape = f"{features.shape[0]:,} x {features.shape[1]:,}, {features.nnz:,} non-zeros"
    print(shape, flush=True)
    rows = []
    with local_cluster(2) as client, spark_session() as session:
        X, y = persist(features, labels, client)

        def fit(loss: str, rounds: int | None) -> MASGDClassifier:
            ends = {} if rounds is None else {"max_iter": rounds, "tol": None}
            model = MASGDClassifier(
                loss=loss, alpha=options.alpha, random_state=options.seed, **ends
            )
            return model.fit(X, y)

        for part in PARTS if options.part is None else (options.part,):
            loss, prepare = WAYS[part]
            pairing = prepare(session, problem, fit, options)
            rows.append(compare(loss, pairing, options.repeats))
            print(", ".join(map(" ".join, zip(HEADS, cells_of(rows[-1])))), flush=True)
    if options.write:
        with options.write.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(HEADS)
            writer.writerows(map(cells_of, rows))


# Worker processes import this file again.
if __name__ == "__main__":
    main()
