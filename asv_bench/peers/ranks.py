"""Is it faster? Whole fits of MASGDClassifier next to SGDClassifier, in one run.

To be run in the folder asv_bench:

    python -m peers.ranks                                      400,000 sparse rows
    DASK_MA_DATA=folder python -m peers.ranks                  reviews from folder/imdb
    python -m peers.ranks --write ../docs/measured/ranks.csv  the figures of the pages

    python -m peers.ranks --columns 47236 --nonzeros 75 --within 1.02
    python -m peers.ranks --rows 1000000 --columns 47236 --nonzeros 75 --alpha 1e-6 \\
        --within 1.02 --only "2 processes" --write ../docs/measured/ranks_within.csv

SGDClassifier makes a number of passes; the others make as many rounds of SGD as it
takes to an objective that is not higher. With ``--within`` the figures are those of the
way to so many times the objective of MASGDClassifier's whole fit, which ends within
0.1 % of the optimum: SGDClassifier makes as few passes as that takes, and of whole fits
of ours, refinement and all, the time after the round that gets there is taken off;
their processor seconds are in proportion. All other parameters but `alpha` are the
defaults, and `average` with ``--average``. The fits take turns, so that what else the
machine does strikes all of them alike; the figures are medians, and processor seconds
stand beside those of the clock.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import sklearn
from dask.distributed import Client, LocalCluster
from sklearn.linear_model import SGDClassifier

from benchmarks._data import load_classification, persist
from dask_ma import MASGDClassifier

from ._problem import Problem

REFERENCE = "SGDClassifier"
HEADS = ("passes", "seconds", "CPU seconds", "ratio", "objective")


class Contestant(NamedTuple):
    """A way to fit the problem.

    Attributes
    ----------
    name : str
    fit : callable
        Called with the number of passes or rounds, or with None for a whole fit;
        returns the fitted estimator.
    cpu_seconds : callable
        Processor time, so far, of all processes that take part.
    """

    name: str
    fit: Callable[[int | None], Any]
    cpu_seconds: Callable[[], float]


class Timing(NamedTuple):
    """One fit, or its way to a target: seconds of clock and processors, and its end."""

    wall: float
    cpu: float
    passes: float
    objective: float


class Row(NamedTuple):
    """Medians over the turns of one contestant; `ratio` is that of the seconds."""

    name: str
    passes: float
    wall: float
    cpu: float
    ratio: float
    objective: float


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
    parser.add_argument("--passes", type=int, default=10, help="of SGDClassifier")
    parser.add_argument("--within", type=float, help="times the optimum, for all")
    parser.add_argument("--limit", type=int, default=20, help="of rounds")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="ours to run, such as '2 processes'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--average", action="store_true", help="ours return the mean of their rounds"
    )
    parser.add_argument("--write", type=Path, help="file for the figures")
    return parser.parse_args()


@contextmanager
def quiet_cluster() -> Iterator[Client]:
    """Client of two worker processes that fits use only where they are told to."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def contestants(
    problem: Problem, client: Client, options: argparse.Namespace
) -> list[Contestant]:
    """scikit-learn, and MASGDClassifier here and on the workers of the client."""
    X, y, seed = problem.features, problem.labels, options.seed
    with client.as_current():
        X_there, y_there = persist(X, y, client)

    def theirs(passes: int | None) -> Any:
        model = SGDClassifier(
            alpha=problem.alpha, max_iter=passes, tol=None, random_state=seed
        )
        return model.fit(X, y)

    def ours(rounds: int | None, n_ranks: int | None = None) -> MASGDClassifier:
        limits = {} if rounds is None else {"max_iter": rounds, "tol": None}
        return MASGDClassifier(
            alpha=problem.alpha,
            n_ranks=n_ranks,
            average=options.average,
            random_state=seed,
            **limits,
        )

    def on_workers(rounds: int | None) -> MASGDClassifier:
        with client.as_current():
            return ours(rounds).fit(X_there, y_there)

    def everywhere() -> float:
        return time.process_time() + sum(client.run(time.process_time).values())

    return [
        Contestant(REFERENCE, theirs, time.process_time),
        Contestant("1 rank", lambda n: ours(n, 1).fit(X, y), time.process_time),
        Contestant("2 threads", lambda n: ours(n, 2).fit(X, y), time.process_time),
        Contestant("2 processes", on_workers, everywhere),
    ]


def rounds_needed(fitted: Any, target: float) -> int:
    """Rounds after which the objective was not above `target` for the first time."""
    for number, record in enumerate(fitted.history_, start=1):
        if record["objective"] <= target:
            return number
    raise RuntimeError(
        f"{len(fitted.history_)} rounds ended at "
        f"{fitted.history_[-1]['objective']:.5f}, the target is {target:.5f}: raise "
        "--limit"
    )


def find_target(
    problem: Problem, everybody: list[Contestant], options: argparse.Namespace
) -> tuple[int, float]:
    """Passes of SGDClassifier, and the objective that the others have to reach."""
    theirs = everybody[0].fit
    if options.within is None:
        return options.passes, problem.objective_of(theirs(options.passes))
    whole = MASGDClassifier(
        alpha=options.alpha, n_ranks=2, random_state=options.seed
    ).fit(problem.features, problem.labels)
    target = options.within * problem.objective_of(whole)
    for passes in range(1, options.limit + 1):
        if problem.objective_of(theirs(passes)) <= target:
            return passes, target
    raise RuntimeError(
        f"{options.limit} passes of {REFERENCE} do not reach {target:.5f}: raise "
        "--limit"
    )


def measure(
    problem: Problem, everybody: list[Contestant], options: argparse.Namespace
) -> list[Row]:
    """Fit in turns; the first fit of each, which finds the rounds, is not timed."""
    reference, *others = everybody
    passes_of_reference, target = find_target(problem, everybody, options)
    to_target = options.within is not None
    steps: dict[str, int | None] = {reference.name: passes_of_reference}
    for one in others:
        fitted = one.fit(None if to_target else options.limit)
        steps[one.name] = None if to_target else rounds_needed(fitted, target)
    timings: dict[str, list[Timing]] = {one.name: [] for one in everybody}
    for _ in range(options.repeats):
        for one in everybody:
            fitted, timing = timed(one, steps[one.name], problem)
            if steps[one.name] is None:
                timing = way_to(fitted, timing, target)
            timings[one.name].append(timing)
    return [summarise(name, timings) for name in timings]


def timed(
    contestant: Contestant, steps: int | None, problem: Problem
) -> tuple[Any, Timing]:
    """One fit, and what it took."""
    cpu, wall = contestant.cpu_seconds(), time.perf_counter()
    fitted = contestant.fit(steps)
    wall = time.perf_counter() - wall
    cpu = contestant.cpu_seconds() - cpu
    passes = passes_of(fitted)
    return fitted, Timing(wall, cpu, passes, problem.objective_of(fitted))


def way_to(fitted: Any, whole: Timing, target: float) -> Timing:
    """What a fit took until its objective was not above the target.

    Launch and end of the fit are counted, the rounds after that one are not.
    """
    history = fitted.history_[: rounds_needed(fitted, target)]
    wall = whole.wall - (fitted.history_[-1]["time"] - history[-1]["time"])
    passes = sum(record["local_epochs"] for record in history)
    cpu = whole.cpu * wall / whole.wall
    return Timing(wall, cpu, float(passes), history[-1]["objective"])


def passes_of(fitted: Any) -> float:
    """How often a fit has gone over all the rows."""
    if isinstance(fitted, SGDClassifier):
        return float(fitted.n_iter_)
    return float(sum(record["local_epochs"] for record in fitted.history_))


def summarise(name: str, timings: dict[str, list[Timing]]) -> Row:
    """Medians over the turns."""
    own = Timing(*(statistics.median(values) for values in zip(*timings[name])))
    reference = statistics.median(timing.wall for timing in timings[REFERENCE])
    return Row(
        name,
        round(own.passes, 2),
        own.wall,
        own.cpu,
        own.wall / reference,
        own.objective,
    )


def cells_of(row: Row) -> list[str]:
    """What a row shows, in the order of the heads."""
    return [
        f"{row.passes:g}",
        f"{row.wall:.2f}",
        f"{row.cpu:.2f}",
        f"{row.ratio:.2f}",
        f"{row.objective:.4f}",
    ]


def format_rows(rows: list[Row]) -> str:
    """The table that is printed."""
    lines = [f"{'':<14}" + "".join(f"{head:>13}" for head in HEADS)]
    for row in rows:
        lines.append(
            f"{row.name:<14}" + "".join(f"{cell:>13}" for cell in cells_of(row))
        )
    return "\n".join(lines)


def write(rows: list[Row], path: Path) -> None:
    """The table as CSV, with the heads that the pages show."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["fit", *HEADS])
        for row in rows:
            writer.writerow([row.name, *cells_of(row)])


def main() -> None:
    """Measure, print the table, write the figures if asked to."""
    options = parse_arguments()
    problem = Problem(
        *load_classification(
            options.rows, options.columns, options.nonzeros, options.seed
        ),
        options.alpha,
    )
    n_rows, n_columns = problem.features.shape
    facts = {
        "rows": n_rows,
        "columns": n_columns,
        "nonzeros": problem.features.nnz,
        "alpha": options.alpha,
        "repeats": options.repeats,
        "cores": len(os.sched_getaffinity(0)),
        "sklearn": sklearn.__version__,
    }
    print(facts, flush=True)
    with quiet_cluster() as client:
        everybody = contestants(problem, client, options)
        if options.only:
            chosen = (REFERENCE, *options.only)
            everybody = [one for one in everybody if one.name in chosen]
        rows = measure(problem, everybody, options)
    print(format_rows(rows))
    if options.write:
        write(rows, options.write)


# Worker processes import this file again.
if __name__ == "__main__":
    main()
