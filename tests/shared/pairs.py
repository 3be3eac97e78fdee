"""Fewer cases than all combinations: each value occurs, or each pair of values."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable
from itertools import combinations
from typing import TypeVar

Case = TypeVar("Case")
Values = Callable[[Case], Iterable[Hashable]]


def pairwise(cases: Iterable[Case], values: Values[Case]) -> list[Case]:
    """Some of the cases, in their order, with each pair of values that one of all has.

    Those with the most new pairs are taken first (greedy), in an order drawn at random,
    the same each time, so that other values vary as well.
    """
    table = list(cases)
    return [table[index] for index in _covering(table, values, 2)]


def each(cases: Iterable[Case], values: Values[Case], times: int = 1) -> list[Case]:
    """Some of the cases, in their order, with each value `times` times if there are.

    They are drawn as by `pairwise`; those for the second time are of what is left.
    """
    left = list(enumerate(cases))
    taken: list[tuple[int, Case]] = []
    for _ in range(times):
        for index in reversed(_covering([case for _, case in left], values, 1)):
            taken.append(left.pop(index))
    return [case for _, case in sorted(taken, key=lambda item: item[0])]


def _covering(table: list[Case], values: Values[Case], size: int) -> list[int]:
    """Where cases are that have each combination of `size` values."""
    parts = [set(combinations(enumerate(values(case)), size)) for case in table]
    left = set[object]().union(*parts)
    order = random.Random(0).sample(range(len(table)), len(table))
    taken = []
    for n_new in range(max(map(len, parts), default=0), 0, -1):
        for index in order:
            if len(left & parts[index]) >= n_new:
                left -= parts[index]
                taken.append(index)
    return sorted(taken)
