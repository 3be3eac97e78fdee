"""Fit all cells from the command line, and write the table of the pages."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from .entries import ENTRIES
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
    options = parser.parse_args()
    say = partial(print, flush=True)
    results = []
    for entry in ENTRIES:
        if options.only not in entry.name:
            continue
        whole = options.cells is None
        for cell in entry.cells if whole else entry.sample(options.cells):
            results.append(entry.judge(cell))
            if not results[-1].keeps:
                say(results[-1])
    rows = summarise(results)
    say(format_rows(rows))
    if options.write is not None:
        write(rows, options.write)


if __name__ == "__main__":
    main()
