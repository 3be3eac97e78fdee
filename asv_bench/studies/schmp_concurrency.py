"""How many coordinates can be updated at once where columns depend on each other?

Lasso by coordinate descent on correlated data, with several numbers of candidates for
an iteration: drawn evenly (random), by the size of their last change (priority), and by
that without those that depend on each other (dynamic). The columns come in blocks with
the same correlation between any two of a block.

For each run: the data that it touches until the objective is within a tolerance of the
optimum, and how far it has come at the end. A run that diverges ends early.

Run ``python schmp_concurrency.py --help``; the defaults take some five minutes.
"""

from __future__ import annotations

import argparse
import warnings
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

from dask_ma import losses
from dask_ma.schmp import CoordinateDescent, Schedule, run, schedules

EXCESSES = (1e-1, 1e-2, 1e-3)
SCHEDULES = ("random", "priority", "dynamic")


class Problem(NamedTuple):
    """Rows, targets, weight of the penalty, objectives of zeros and of the optimum."""

    X: np.ndarray
    y: np.ndarray
    alpha: float
    start: float
    best: float


class Course(NamedTuple):
    """The course of a run.

    Attributes
    ----------
    passes : ndarray
        Elements of the data touched so far, over all elements.
    excess : ndarray
        Objective less the optimum, over that without coefficients less the optimum.
    updates : float
        Coordinates changed in an iteration, on average.
    diverged : bool
        Whether the run ended with numbers that are not finite, or above its start.
    """

    passes: np.ndarray
    excess: np.ndarray
    updates: float
    diverged: bool

    def passes_to(self, excess: float) -> float:
        """Passes until the excess is that small for good; infinity if it never is."""
        above = np.flatnonzero(~(self.excess <= excess))
        last = above[-1] + 1 if len(above) else 0
        return float(self.passes[last]) if last < len(self.passes) else np.inf


class UntilDone(CoordinateDescent):
    """Least squares that end at an objective, or when they have diverged."""

    def __init__(self, *args: Any, target: float, highest: float) -> None:
        super().__init__(*args)
        self.target = target
        self.highest = highest

    def has_converged(self, records: list[dict[str, Any]]) -> bool:
        """Whether it makes no sense to go on."""
        objective = records[-1]["objective"]
        return not self.target < objective < self.highest


def make_problem(args: argparse.Namespace) -> Problem:
    """Rows with blocks of columns that depend on each other."""
    rng = np.random.default_rng(0)
    X = np.empty((args.rows, args.columns), order="F")
    for start in range(0, args.columns, args.block):
        stop = min(start + args.block, args.columns)
        common = rng.standard_normal((args.rows, 1))
        own = rng.standard_normal((args.rows, stop - start))
        X[:, start:stop] = np.sqrt(args.correlation) * common
        X[:, start:stop] += np.sqrt(1 - args.correlation) * own
    coef = np.zeros(args.columns)
    chosen = rng.choice(args.columns, args.true, replace=False)
    coef[chosen] = rng.standard_normal(len(chosen))
    y = X @ coef
    y += 0.1 * y.std() * rng.standard_normal(args.rows)
    alpha = float(np.abs(X.T @ (y - y.mean())).max()) / len(y) / args.divisor
    return Problem(X, y, alpha, float(np.var(y)) / 2, optimum(X, y, alpha))


def optimum(X: np.ndarray, y: np.ndarray, alpha: float) -> float:
    """Objective of scikit-learn's solution."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = Lasso(alpha, tol=1e-10, max_iter=100_000).fit(X, y)
    residuals = y - model.predict(X)
    return float(residuals @ residuals / (2 * len(y)) + alpha * abs(model.coef_).sum())


def make_schedule(name: str, n: int, args: argparse.Namespace) -> Schedule:
    """One of the schedules, with its number of candidates."""
    if name == "random":
        return schedules.Random(n)
    if name == "priority":
        return schedules.Priority(n)
    return schedules.Dynamic(n, args.threshold)


def follow(schedule: Schedule, problem: Problem, seed: int, args: Any) -> Course:
    """Run a schedule until it is done, has diverged, or has touched too much."""
    X, y, alpha, start, best = problem
    n_features = X.shape[1]
    program = UntilDone(
        losses.SquaredError(),
        schedule,
        np.full(n_features, alpha),
        np.zeros(n_features),
        target=best + EXCESSES[-1] * (start - best),
        highest=100 * start,
    )
    n_iterations = max(1, round(args.passes * n_features / schedule.n_candidates))
    diverged = False
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            history = run(
                program,
                X,
                y,
                n_iterations=n_iterations,
                pipeline_depth=args.depth,
                report_every=max(1, n_iterations // args.reports),
                random_state=seed,
            ).history
    except ValueError as error:
        if "finite" not in str(error):
            raise
        return Course(np.array([0.0]), np.array([np.inf]), np.nan, True)
    objectives = np.array([record["objective"] for record in history])
    excess = (objectives - best) / (start - best)
    diverged = bool(objectives[-1] > start)
    passes = np.cumsum([record["n_touched"] for record in history]) / X.size
    updates = sum(record["n_updates"] for record in history) / history[-1]["iteration"]
    return Course(passes, excess, updates, diverged)


def print_courses(name: str, n: int, courses: list[Course]) -> list[float]:
    """Line of the table; returns the passes to each excess, medians over seeds."""
    passes = [median(c.passes_to(excess) for c in courses) for excess in EXCESSES]
    last = median(course.excess[-1] for course in courses)
    updates = median(course.updates for course in courses)
    cells = "".join(f"{value:>10.3g}" for value in passes)
    n_diverged = sum(course.diverged for course in courses)
    note = f"  {n_diverged} of {len(courses)} diverged" if n_diverged else ""
    print(f"{name:<10}{n:>6}{updates:>9.1f}{cells}{last:>12.1e}{note}", flush=True)
    return passes


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=int, default=400)
    add("--columns", type=int, default=10_000)
    add("--block", type=int, default=50)
    add("--correlation", type=float, default=0.7)
    add("--true", type=int, default=20, help="columns with a coefficient")
    add("--divisor", type=float, default=10, help="of the smallest alpha of zeros")
    add("--candidates", type=int, nargs="+", default=[8, 32, 128, 256])
    add("--threshold", type=float, default=0.3, help="of dependence")
    add("--depth", type=int, default=1, help="of the pipeline")
    add("--passes", type=float, default=30, help="over the data, at most")
    add("--reports", type=int, default=1_000, help="of the objective, at most")
    add("--seeds", type=int, default=3, help="of the schedules")
    args = parser.parse_args()
    problem = make_problem(args)
    print(
        f"{args.rows} x {args.columns}, optimum {problem.best:.6f} from "
        f"{problem.start:.6f}; passes until the excess is below"
    )
    heads = "".join(f"{excess:>10g}" for excess in EXCESSES)
    print(f"{'schedule':<10}{'cand.':>6}{'updated':>9}{heads}{'at the end':>12}")
    passes: dict[str, list[list[float]]] = {name: [] for name in SCHEDULES}
    for n in args.candidates:
        for name, found in passes.items():
            courses = [
                follow(make_schedule(name, n, args), problem, seed, args)
                for seed in range(args.seeds)
            ]
            found.append(print_courses(name, n, courses))
    print("\nrandom / dynamic, each with its best number of candidates:")
    fewest = {name: np.min(found, axis=0) for name, found in passes.items()}
    for excess, ratio in zip(EXCESSES, fewest["random"] / fewest["dynamic"]):
        print(f"excess {excess:g}: {ratio:.1f}")


if __name__ == "__main__":
    main()
