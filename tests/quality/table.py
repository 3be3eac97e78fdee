"""The table of the pages: one row per estimator and penalty."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from .rule import Result

HEADS = (
    "estimator",
    "penalty",
    "cells",
    "within 1 %",
    "warned",
    "silent",
    "behind its peer",
    "errors",
    "worst",
)


class Row(NamedTuple):
    """What became of the cells of an estimator with a penalty."""

    estimator: str
    penalty: str
    cells: int
    within: str
    warned: int
    silent: int
    behind: int
    failed: int
    worst: str


def summarise(results: Iterable[Result]) -> list[Row]:
    """A row per estimator and penalty, in the order in which they come."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        key = result.contestant.name, result.contestant.penalty
        groups.setdefault(key, []).append(result)
    return [_row(*key, group) for key, group in groups.items()]


def _row(estimator: str, penalty: str, results: list[Result]) -> Row:
    """One row."""
    verdicts = [result.verdict for result in results]
    within, *others = (
        verdicts.count(name)
        for name in ("within", "warned", "silent", "behind", "failed")
    )
    worst = max(result.excess for result in results)
    return Row(
        estimator,
        penalty,
        len(results),
        f"{100 * within // len(results)} %",
        *others,
        _percent(worst),
    )


def _percent(excess: float) -> str:
    """An excess for people, with about two digits."""
    percent = 100 * max(0.0, excess)
    if percent < 10:
        return f"{percent:.2g} %" if percent >= 0.01 else "0 %"
    return f"{percent:,.0f} %" if percent < 1e6 else f"{percent:.0e} %"


def format_rows(rows: Iterable[Row]) -> str:
    """The table that is printed."""
    lines = [f"{HEADS[0]:<26}{HEADS[1]:<12}" + "".join(f"{h:>16}" for h in HEADS[2:])]
    for row in rows:
        cells = "".join(f"{cell:>16}" for cell in row[2:])
        lines.append(f"{row.estimator:<26}{row.penalty:<12}{cells}")
    return "\n".join(lines)


def write(rows: Iterable[Row], path: Path) -> None:
    """The table as CSV, for the pages; rows of others stay as they are."""
    table = {row[:2]: row for row in _read(path)}
    table |= {row[:2]: row for row in rows}
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADS)
        writer.writerows(table.values())


def _read(path: Path) -> list[tuple[str, ...]]:
    """The rows of a table, in text."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [tuple(row) for row in csv.reader(file)][1:]
