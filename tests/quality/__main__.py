"""Fit all cells from the command line, and write the table of the pages."""

from __future__ import annotations

import argparse
from pathlib import Path

from .runs import judge_all, tasks_of
from .table import format_rows, summarise, write


def main() -> None:
    """Judge, say what breaks the rule, print the table, write it if asked to."""
    parser = argparse.ArgumentParser(
        prog="quality",
        description="Fit every estimator with default parameters on every set, in "
        "every layout of its rows, on 1 to 8 ranks, and compare with the optimum.",
    )
    parser.add_argument("--cells", type=int, help="a sample of so many per estimator")
    parser.add_argument("--only", default="", help="names of estimators that hold this")
    parser.add_argument("--write", type=Path, help="file for the table")
    parser.add_argument(
        "--processes", type=int, default=1, help="that fit side by side"
    )
    options = parser.parse_args()
    tasks = list(tasks_of(options.only, options.cells))
    results = []
    for result in judge_all(tasks, options.processes):
        results.append(result)
        if not result.keeps:
            print(result, flush=True)
    rows = summarise(results)
    print(format_rows(rows), flush=True)
    if options.write is not None:
        write(rows, options.write)


if __name__ == "__main__":
    main()
