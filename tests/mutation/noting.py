"""Plugin of pytest: note which test runs which function, and how long each takes.

Of a test with many cases only a few are run: its cases are much alike. Time is that of
the processor, so that it does not matter what else the machine does.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from mutmut.mutation import trampoline

from mutation.selection import a_few

#: Name of the variable with the path of the file to write.
NOTES = "DASK_MA_MUTATION_NOTES"
#: Most cases of a test that are run.
CASES = 3


class Notes:
    """What a run of the tests tells of them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.tests_of: dict[str, list[str]] = defaultdict(list)
        self.failed: list[str] = []
        self._passed: set[str] = set()
        self._hits: set[str] = set()
        # Changed functions call this before they run.
        trampoline.record_trampoline_hit = lambda name, caller=None: self._hits.add(
            name
        )

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        cases = defaultdict(list)
        for item in items:
            cases[item.nodeid.partition("[")[0]].append(item)
        kept = {id(item) for own in cases.values() for item in a_few(own, CASES)}
        left = [item for item in items if id(item) not in kept]
        items[:] = [item for item in items if id(item) in kept]
        config.hook.pytest_deselected(items=left)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self._hits.clear()
        start = process_time()
        yield
        if item.nodeid in self._passed:
            self.seconds[item.nodeid] = process_time() - start
            for function in self._hits:
                self.tests_of[function].append(item.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
            self._passed.discard(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        found = {k: getattr(self, k) for k in ("seconds", "tests_of", "failed")}
        Path(os.environ[NOTES]).write_text(json.dumps(found, indent=1))


def pytest_configure(config: Any) -> None:
    """Take notes of this run."""
    config.pluginmanager.register(Notes())
