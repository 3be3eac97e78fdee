"""Which of the tests that run a function are worth their time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def quickest(
    tests: Iterable[str], durations: Mapping[str, float], seconds: float
) -> list[str]:
    """Tests that together take no longer than so many seconds.

    Tests of one file are much alike, so the quickest of each file comes first, then the
    second of each, and so on; what would take too long is left out.

    Parameters
    ----------
    tests : iterable of str
        Names of tests, ``file::function``.
    durations : mapping of str to float
        Seconds that tests take.
    seconds : float
        Time for all of them; infinity takes all tests.

    Returns
    -------
    chosen : list of str
        In this order; the quickest of all is in it however long it takes.
    """
    files = defaultdict(list)
    for test in sorted(tests, key=lambda test: (durations[test], test)):
        files[test.partition("::")[0]].append(test)
    ranked = sorted(
        (rank, durations[test], test)
        for own in files.values()
        for rank, test in enumerate(own)
    )
    chosen: list[str] = []
    for _, duration, test in ranked:
        if chosen and duration > seconds:
            continue
        chosen.append(test)
        seconds -= duration
    return chosen


def a_few(cases: Sequence[Any], most: int) -> list[Any]:
    """Some of many, the first and the last among them, evenly spread.

    Parameters
    ----------
    cases : sequence
    most : int
        How many at most, at least 2.

    Returns
    -------
    chosen : list
        In their order.
    """
    if len(cases) <= most:
        return list(cases)
    return [cases[i * (len(cases) - 1) // (most - 1)] for i in range(most)]


class Chosen:
    """Plugin of pytest: run some of the tests of its files, in a given order.

    Parameters
    ----------
    tests : iterable of str
        Their names.
    """

    def __init__(self, tests: Iterable[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Put the tests that are to be run in their order, without the others."""
        wanted = [item for item in items if item.nodeid in self._places]
        items[:] = sorted(wanted, key=lambda item: self._places[item.nodeid])
