"""All cells of all estimators, by several processes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import groupby
from multiprocessing import get_context
from operator import attrgetter

from .cells import Cell
from .entries import ENTRIES
from .rule import Result

Task = tuple[int, list[Cell]]  # number of an entry, and cells with the same rows


def tasks_of(only: str, n_cells: int | None) -> Iterator[Task]:
    """What there is to fit; the optimum of a set is sought once for all its cells."""
    for number, entry in enumerate(ENTRIES):
        if only not in entry.name:
            continue
        cells = entry.cells if n_cells is None else entry.sample(n_cells)
        rows = attrgetter("rows")
        for _, same in groupby(sorted(cells, key=rows), rows):
            yield number, list(same)


def judge_all(tasks: list[Task], n_processes: int) -> Iterator[Result]:
    """The results in the order of the tasks."""
    if n_processes == 1:
        found = map(judge_task, tasks)
        yield from with_names(tasks, found)
        return
    with ProcessPoolExecutor(n_processes, mp_context=get_context("spawn")) as pool:
        yield from with_names(tasks, pool.map(judge_task, tasks))


def judge_task(task: Task) -> list[Result]:
    """Fit the cells; who was judged cannot be sent between processes."""
    number, cells = task
    return [replace(ENTRIES[number].judge(c), contestant=None) for c in cells]


def with_names(tasks: list[Task], found: Iterator[list[Result]]) -> Iterator[Result]:
    """The results, with who was judged."""
    for (number, _), results in zip(tasks, found, strict=True):
        for result in results:
            yield replace(result, contestant=ENTRIES[number].contestant)
