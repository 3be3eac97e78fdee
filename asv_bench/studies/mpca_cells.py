"""Fits of ``mpca_lead.py``: kept in a file, so that a study is made in pieces."""

from __future__ import annotations

import csv
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mpca_strategies import Course, medians


class Row(NamedTuple):
    """What a setting of a strategy has come to on a link."""

    task: str
    link: str
    strategy: str
    setting: str
    course: Course


class Cell(NamedTuple):
    """A fit of the study; `kind` is a name, a number or nothing for its period."""

    task: str
    link: str
    strategy: str
    kind: str
    rate: float
    seed: int


class Cells:
    """What fits have come to, also in a file.

    Parameters
    ----------
    path : Path or None
        File to begin with and to add to; None for none.
    seconds : float
        After so many no fit begins.
    """

    def __init__(self, path: Path | None, seconds: float) -> None:
        self.known: dict[Cell, Course] = {}
        self.n_left = 0
        self._path, self._end = path, time.monotonic() + seconds
        if path is not None and path.exists():
            with path.open(newline="") as file:
                self.known.update(map(self._read, csv.reader(file)))

    def find(self, cell: Cell, fit: Callable[[], Course]) -> None:
        """Make a fit, unless it is known or there is no time."""
        if cell in self.known:
            return
        if time.monotonic() > self._end:
            self.n_left += 1
            return
        course = self.known[cell] = fit()
        print(*cell, course, file=sys.stderr, flush=True)
        if self._path is not None:
            with self._path.open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow([*cell, *course])

    def rows(self) -> list[Row]:
        """Medians over seeds."""
        found = defaultdict(list)
        for cell, course in self.known.items():
            found[cell[:-1]].append(course)
        return [
            Row(
                task,
                link,
                strategy,
                f"period {kind}, rate {rate:g}" if kind else f"rate {rate:g}",
                medians(own),
            )
            for (task, link, strategy, kind, rate), own in found.items()
        ]

    @staticmethod
    def _read(line: list[str]) -> tuple[Cell, Course]:
        """Take a line of the file apart."""
        *names, rate, seed = line[: len(Cell._fields)]
        course = Course(*map(float, line[len(Cell._fields) :]))
        return Cell(*names, float(rate), int(seed)), course


def best_of(rows: list[Row]) -> list[Row]:
    """The best setting of each strategy, by task and link."""
    best: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = row.task, row.link, row.strategy
        if key not in best or row.course.seconds < best[key].course.seconds:
            best[key] = row
    return list(best.values())


def number(value: float, places: int, unknown: str = "") -> str:
    """As the table has it: nothing for what is not known."""
    if np.isnan(value):
        return ""
    return f"{value:.{places}f}" if np.isfinite(value) else unknown


def table(rows: list[Row], limit: float) -> list[list[str]]:
    """The best setting of each strategy, and how long it takes by "mpca".

    Where none has come to the target, the table says after how many seconds.
    """
    best = best_of(rows)
    ours = {row[:2]: row.course.seconds for row in best if row.strategy == "mpca"}
    head = ["task", "link", "strategy", "setting", "seconds", "epochs", "computing"]
    lines = [[*head, "steps between exchanges", "test accuracy", "times mpca"]]
    for row in best:
        course, base = row.course, ours.get(row[:2], np.nan)
        values = [number(course.seconds, 1, f"not within {limit:g} s")]
        values += [number(course.epochs, 2)]
        values += [number(course.computing, 2), number(course.tau, 1)]
        values += [number(course.accuracy, 4), number(course.seconds / base, 2)]
        lines.append([row.task, row.link, row.strategy, row.setting, *values])
    return lines
