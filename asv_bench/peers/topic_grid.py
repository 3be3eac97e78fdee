"""Seconds of a pass by numbers of topics and documents: MALDA and other libraries.

To be run in the folder asv_bench:

    python -m peers.topic_grid --corpus imdb --documents 8192 --data DIR
    python -m peers.topic_grid --write ../docs/measured/topic_grid.csv

MALDA on one rank of this process, scikit-learn and gensim take turns, each with one
BLAS thread: a pass over the documents with the same priors, learning rate and end of a
document's inference (``peers.topics``). A line has MALDA's seconds, how many times as
long the others took, and the perplexity of held-out documents by completion of each.
Seconds are medians of ``--repeats`` fits. gensim is left out if it is not installed.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from ._solvers import PeerAbsentError
from ._topic_systems import Result, Setting, Watch, malda, run_gensim, run_sklearn
from .topics import held_out_perplexity, load

HEADS = ("topics", "documents of an update", "MALDA, s", "scikit-learn", "gensim")
Fit = Callable[[sparse.csr_matrix, Setting], Result]


def run_here(X: sparse.csr_matrix, setting: Setting) -> Result:
    """A pass of MALDA on one rank of this process."""
    model = malda(X, setting, n_ranks=1)
    clone(model).partial_fit(X[:2])  # the first loads the modules
    watch = Watch()
    model.partial_fit(X)
    return Result("MALDA", *watch.read(), model.components_)


SYSTEMS: dict[str, Fit] = {
    "MALDA": run_here,
    "scikit-learn": run_sklearn,
    "gensim": partial(run_gensim, n_workers=1),
}


def cell(
    X: sparse.csr_matrix, test: sparse.csr_matrix, setting: Setting, repeats: int
) -> list[str]:
    """The line of one setting."""
    seconds: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    values: dict[str, float] = {}
    for _ in range(repeats):
        for name, fit in SYSTEMS.items():
            try:
                result = fit(X, setting)
            except PeerAbsentError:
                continue
            seconds[name].append(result.processor)
            if name not in values:
                values[name] = held_out_perplexity(result.topics, test)
    own = statistics.median(seconds["MALDA"])
    line = [f"{setting.n_components:,}", f"{setting.local_batch_size:,}", f"{own:.2f}"]
    for name in list(SYSTEMS)[1:]:
        there = seconds[name]
        line.append(f"{statistics.median(there) / own:.1f}" if there else "")
    return [
        *line,
        *(f"{values[name]:.0f}" if name in values else "" for name in SYSTEMS),
    ]


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--corpus", choices=["newsgroups20", "imdb"], default="imdb")
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--documents", type=int, default=8192, help="the first ones of each part only")
    add("--held-out", type=int, default=2000, help="documents of the test part")
    add("--components", type=int, nargs="+", default=[50, 100, 500])
    add("--batches", type=int, nargs="+", default=[128, 256, 1024, 4096])
    add("--repeats", type=int, default=1)
    add("--seed", type=int, default=0)
    add("--write", type=Path, help="file for the figures")
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data or DASK_MA_DATA must name the folder with the corpus")
    return options


def main() -> None:
    """Fit, print a line for each setting, and write all of them."""
    options = parse_arguments()
    X, test = load(options)
    X, test = X.astype(np.float32), test[: options.held_out]
    heads = [*HEADS, *(f"perplexity of {name}" for name in SYSTEMS)]
    print(*heads, sep=" | ")
    lines = []
    for n_components in options.components:
        for size in options.batches:
            setting = Setting(
                n_components, 1, size, size, size, "float32", options.seed
            )
            lines.append(cell(X, test, setting, options.repeats))
            print(*lines[-1], sep=" | ", flush=True)
    if options.write is not None:
        with options.write.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([heads, *lines])


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
