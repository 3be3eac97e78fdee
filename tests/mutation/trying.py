"""Try mutants, each in a fork of a process that has imported the tests.

``python -m mutation.trying PLAN`` reads a plan, a file of JSON with ``tests``, the
names of the tests of each mutant in their order, ``seconds``, what they take together,
``select``, where the tests are, ``n_processes`` and ``outputs``, a folder for what is
printed. It writes what has become of each to standard output.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from mutmut.mutation.trampoline import set_mutant_under_test

from mutation.selection import Chosen

STATUSES = {0: "survived", 1: "killed", 3: "killed", 5: "no tests"}
#: How much longer than without a change tests may take, and what is added to that.
PATIENCE, GRACE = 10, 20.0
#: The same for the clock on the wall, on a machine that does other work as well.
WALL_PATIENCE, WALL_GRACE = 30, 120.0
OPTIONS = ["-q", "-p", "no:cacheprovider", "--rootdir=."]


class Child(NamedTuple):
    """A process that tries a mutant."""

    name: str
    deadline: float


def main() -> None:
    """Try the mutants of a plan."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    with open(os.devnull, "w") as nothing:
        # Forks have the test modules, and all that those import.
        shown, sys.stdout = sys.stdout, nothing
        pytest.main([*OPTIONS, "--collect-only", *plan["select"]])
        sys.stdout = shown
    running: dict[int, Child] = {}
    statuses: dict[str, str] = {}
    for name, tests in plan["tests"].items():
        if not tests:
            statuses[name] = "no tests"
            continue
        while len(running) >= plan["n_processes"]:
            statuses |= reap(running)
        seconds = plan["seconds"][name]
        pid = os.fork()
        if not pid:
            run(name, tests, PATIENCE * seconds + GRACE, Path(plan["outputs"]))
        wait = WALL_PATIENCE * seconds + WALL_GRACE
        running[pid] = Child(name, time.monotonic() + wait)
    while running:
        statuses |= reap(running)
    print(json.dumps(statuses))


def run(name: str, tests: list[str], seconds: float, outputs: Path) -> None:
    """Run tests with a mutant until one fails, and end this process."""
    status = 3
    try:
        with open(outputs / name, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        limit = int(time.process_time() + seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        set_mutant_under_test(name)
        # Not by their names: those of some cases cannot be given as arguments.
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        options = [*OPTIONS, "-x", "--tb=short", *files]
        status = int(pytest.main(options, plugins=[Chosen(tests)]))
        sys.stdout.flush()
    finally:
        os._exit(status)


def reap(running: dict[int, Child]) -> dict[str, str]:
    """Wait for a process to end, end those that take too long; what became of them."""
    pid, status = os.waitpid(-1, os.WNOHANG)
    if pid:
        return {running.pop(pid).name: status_of(os.waitstatus_to_exitcode(status))}
    for pid, child in running.items():
        if time.monotonic() > child.deadline:
            os.kill(pid, signal.SIGKILL)
    time.sleep(0.05)
    return {}


def status_of(exit_code: int) -> str:
    """What an exit status says of a mutant."""
    if exit_code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timeout"
    return "segfault" if exit_code < 0 else STATUSES.get(exit_code, "not checked")


if __name__ == "__main__":
    main()
