"""Fewer cases than all combinations: those in which each pair of values occurs."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable
from itertools import combinations
from typing import TypeVar

Case = TypeVar("Case")


def pairwise(
    cases: Iterable[Case], values: Callable[[Case], Iterable[Hashable]]
) -> list[Case]:
    """Some of the cases, in their order, with each pair of values that one of all has.

    Those with the most new pairs are taken first (greedy), in an order drawn at random,
    the same each time, so that other values vary as well.
    """
    table = list(cases)
    pairs = [set(combinations(enumerate(values(case)), 2)) for case in table]
    left = set[object]().union(*pairs)
    order = random.Random(0).sample(range(len(table)), len(table))
    taken = []
    for n_new in range(max(map(len, pairs), default=0), 0, -1):
        for index in order:
            if len(left & pairs[index]) >= n_new:
                left -= pairs[index]
                taken.append(index)
    return [table[index] for index in sorted(taken)]
