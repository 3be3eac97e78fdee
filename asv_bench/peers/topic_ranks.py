"""Do two processes fit topics faster than one? Whole fits of MALDA, in one run.

To be run in the folder asv_bench:

    python -m peers.topic_ranks --data FOLDER            25,000 documents of imdb
    python -m peers.topic_ranks --data FOLDER --batch-size 4096

FOLDER (or ``$DASK_MA_DATA``) holds ``imdb``. All parameters but the number of topics
and of passes are the defaults unless they are given. Documents lie on the workers: on
one of them for one rank, and evenly on all. The fits take turns on the same cluster, so
that what else the machine does strikes both alike; the figures are medians of the
pairs. Topics are compared by the perplexity of test documents, by
completion.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks._data import persist
from dask_ma import MALDA

from ._solvers import local_cluster
from .topics import held_out_perplexity, load

HEADS = ("processes", "seconds", "busiest CPU", "to last round", "perplexity", "ratio")


class Fit(NamedTuple):
    """What a fit took, and what it has learned.

    Attributes
    ----------
    wall, busiest : float
        Seconds of the clock, and of the processor on the busiest worker.
    rounds : float
        Seconds of the clock from launch to the last round.
    perplexity : float
        Of the test documents.
    """

    wall: float
    busiest: float
    rounds: float
    perplexity: float


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--corpus", choices=["newsgroups20", "imdb"], default="imdb")
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--documents", type=int, help="the first ones of each part only")
    add("--components", type=int, default=100)
    add("--passes", type=int, default=2)
    add("--batch-size", type=int, help="of a round; the default chooses by the corpus")
    add("--pairs", type=int, default=5)
    add("--processes", type=int, default=2, help="to compare with one")
    add("--seed", type=int, default=0)
    add("--write", type=Path, help="file for the figures")
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data or DASK_MA_DATA must name the folder with the corpus")
    return options


def fit(
    client: Any,
    X: Any,
    n_ranks: int,
    X_test: Any,
    options: argparse.Namespace,
    seed: int,
) -> Fit:
    """Fit once, by so many ranks."""
    model = MALDA(
        options.components,
        max_iter=options.passes,
        batch_size=options.batch_size or "auto",
        random_state=seed,
        n_ranks=n_ranks,
    )
    before = client.run(time.process_time)
    wall = time.perf_counter()
    model.fit(X)
    wall = time.perf_counter() - wall
    after = client.run(time.process_time)
    busiest = max(after[worker] - before[worker] for worker in after)
    rounds = model.history_[-1]["time"]
    return Fit(wall, busiest, rounds, held_out_perplexity(model.components_, X_test))


def compare(X: Any, X_test: Any, options: argparse.Namespace) -> list[tuple[Fit, Fit]]:
    """Pairs of fits with the same seed, after one of each that loads the modules."""
    pairs = []
    with local_cluster(options.processes) as client:
        places = []
        for n_ranks in (1, options.processes):
            documents, _ = persist(X, np.zeros(X.shape[0]), client, n_ranks)
            MALDA(2, max_iter=1, n_ranks=n_ranks).fit(documents)
            places.append((client, documents, n_ranks))
        for seed in range(options.seed, options.seed + options.pairs):
            pair = [fit(*place, X_test, options, seed) for place in places]
            pairs.append((pair[0], pair[1]))
            print(f"seed {seed}: done", flush=True)
    return pairs


def rows_of(pairs: list[tuple[Fit, Fit]], n_processes: int) -> list[list[str]]:
    """A row for each number of processes, of medians; ratios are those of the pairs."""
    rows = []
    for place, count in enumerate((1, n_processes)):
        columns = zip(*(pair[place] for pair in pairs), strict=True)
        medians = [f"{statistics.median(column):.2f}" for column in columns]
        ratio = statistics.median(pair[0].wall / pair[place].wall for pair in pairs)
        rows.append([str(count), *medians, f"{ratio:.2f}"])
    return rows


def write(rows: list[list[str]], path: Path) -> None:
    """The table as CSV, with the heads that the pages show."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADS)
        writer.writerows(rows)


def main() -> None:
    """Measure, and print the table."""
    options = parse_arguments()
    X, X_test = load(options)
    print(
        f"{options.corpus}: {X.shape[0]:,} documents, {X.shape[1]:,} words; "
        f"{options.components} topics, {options.passes} passes",
        flush=True,
    )
    rows = rows_of(compare(X, X_test[:2000], options), options.processes)
    for row in (HEADS, *rows):
        print("".join(f"{cell:>16}" for cell in row))
    if options.write:
        write(rows, options.write)


# Worker processes import this file again.
if __name__ == "__main__":
    main()
