"""Test the tests: change the code in small ways and count the changes that are noticed.

mutmut makes the mutants. A package's are sampled by a seed; each is tried with the
quickest of the tests that run the changed function, in a process of its own; and the
package's score is added up. Everything happens in a copy of the tracked files.
"""

from __future__ import annotations

import argparse
import configparser
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from mutation.selection import quickest

ROOT = Path(__file__).parents[2]
#: Packages, and where their tests are.
TESTS = {
    "kernels": ("tests/kernels",),
    "linear": ("tests/linear", "tests/ma", "tests/butterfly"),
    "ma": ("tests/ma",),
    "butterfly": ("tests/butterfly",),
    "schmp": ("tests/schmp",),
    "sfb": ("tests/sfb",),
    "mpca": ("tests/mpca",),
}
# Tests of worker processes say little more about a function than those of threads, and
# take a hundred times as long.
DESELECTED = "not slow"
MAKE = """
from mutmut.__main__ import copy_also_copy_files, copy_src_dir, create_mutants
copy_src_dir()
copy_also_copy_files()
create_mutants({})
"""
UNNOTICED = frozenset({"survived", "no tests"})
NOTICED = frozenset({"killed", "timeout", "segfault"})


def main() -> int:
    """Run, and return the exit status: 0 if enough mutants are noticed."""
    parser = argparse.ArgumentParser(
        prog="mutation",
        description="Mutate a package of dask_ma and count the mutants that its tests "
        "notice. A mutant that only a time-out ends has been noticed. Tests that a "
        "mutant was not tried with might notice it: the score is a lower bound.",
    )
    parser.add_argument("package", choices=sorted(TESTS))
    parser.add_argument("--mutants", type=int, default=200, help="how many are tried")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", default="", help="a module, without dask_ma.PACKAGE.")
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="of the processor that the tests of a mutant take at most without it",
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--at-least", type=float, default=0.0, help="per cent noticed")
    parser.add_argument("--folder", type=Path, help="of the copy; kept and used again")
    args = parser.parse_args()
    folder = args.folder or ROOT / "build" / "mutation" / args.package
    copy = Copy(folder.resolve(), args.package)
    copy.make(args.processes)
    names = copy.mutants(args.only)
    chosen = sorted(
        random.Random(args.seed).sample(names, min(args.mutants, len(names)))
    )
    print(f"{len(chosen)} of {len(names)} mutants of {args.package}, seed {args.seed}")
    statuses = copy.run(chosen, args.seconds, args.processes)
    for name in chosen:
        if statuses[name] != "killed":
            print(f"\n{statuses[name]}: {name}\n{copy.diff(name)}")
    return report(args.package, Counter(statuses[n] for n in chosen), args.at_least)


def report(package: str, counts: Counter[str], at_least: float) -> int:
    """Print the score; return 1 if it is below what is asked for."""
    noticed = sum(counts[status] for status in NOTICED)
    judged = noticed + sum(counts[status] for status in UNNOTICED)
    score = 100 * noticed / max(1, judged)
    shown = ", ".join(f"{n} {status}" for status, n in counts.most_common())
    print(f"\n{package}: {noticed} of {judged} noticed, {score:.1f} % ({shown})")
    return int(score < at_least or judged < sum(counts.values()))


class Copy:
    """A copy of the tracked files in which one package is changed.

    Parameters
    ----------
    folder : Path
        Where it is; what an earlier run has left there is used again.
    package : str
        The package, a key of `TESTS`.
    """

    def __init__(self, folder: Path, package: str) -> None:
        self._folder = folder
        self._package = package
        self._changed = folder / "mutants"
        self._notes = folder / "notes.json"
        folder.mkdir(parents=True, exist_ok=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        self._configure()

    def _configure(self) -> None:
        """Tell mutmut what to change."""
        path = self._folder / "setup.cfg"
        config = configparser.ConfigParser(interpolation=None)
        config.read(path)
        config["mutmut"] = {
            "source_paths": "dask_ma",
            "only_mutate": f"dask_ma/{self._package}/*",
            # Readme, examples and documents belong to what some tests read.
            "also_copy": "\nREADME.md\ndocs\nexamples",
        }
        with path.open("w") as file:
            config.write(file)

    def make(self, n_processes: int) -> None:
        """Make all mutants, and note which test runs which function."""
        self._python("-c", MAKE.format(n_processes), cwd=self._folder)
        self._notes.unlink(missing_ok=True)
        said = self._python(
            *("-m", "pytest", "-q", "-m", DESELECTED, "-p", "no:cacheprovider"),
            *("--rootdir=.", "-p", "mutation.noting", *TESTS[self._package]),
            can_fail=True,
            MUTANT_UNDER_TEST="stats",
            DASK_MA_MUTATION_NOTES=str(self._notes),
        )
        if not self._notes.exists():
            sys.exit(f"the tests did not run:\n{said[-4000:]}")
        notes = json.loads(self._notes.read_text())
        n_tests, seconds = len(notes["seconds"]), sum(notes["seconds"].values())
        print(f"{n_tests} tests take {seconds:.0f} s without a change")
        for test in notes["failed"]:
            print(f"fails without a change, and is left out: {test}")

    def mutants(self, module: str) -> list[str]:
        """Names of all mutants."""
        prefix = f"dask_ma.{self._package}.{module}"
        names: list[str] = []
        for path in (self._changed / "dask_ma" / self._package).rglob("*.meta"):
            names += json.loads(path.read_text())["exit_code_by_key"]
        names = sorted(name for name in names if name.startswith(prefix))
        if not names:
            sys.exit(f"there is no mutant of {prefix}")
        return names

    def run(self, names: list[str], seconds: float, n_processes: int) -> dict[str, str]:
        """Try mutants; return what has become of each."""
        notes = json.loads(self._notes.read_text())
        tests, durations = {}, notes["seconds"]
        for name in names:
            function = name.partition("__mutmut_")[0]
            tests[name] = quickest(
                notes["tests_of"].get(function, []), durations, seconds
            )
        outputs = self._folder / "outputs"
        outputs.mkdir(exist_ok=True)
        plan = {
            "tests": tests,
            "seconds": {n: sum(durations[t] for t in tests[n]) for n in names},
            "select": TESTS[self._package],
            "n_processes": n_processes,
            "outputs": str(outputs),
        }
        path = self._folder / "plan.json"
        path.write_text(json.dumps(plan, indent=1))
        statuses = self._python("-m", "mutation.trying", str(path)).splitlines()[-1]
        found: dict[str, str] = json.loads(statuses)
        return found

    def diff(self, name: str) -> str:
        """What a mutant changes."""
        shown = self._python("-m", "mutmut", "show", name, cwd=self._folder)
        return shown.partition("\n")[2]  # the first line is of mutmut's own results

    def _python(
        self,
        *args: str,
        cwd: Path | None = None,
        can_fail: bool = False,
        **variables: str,
    ) -> str:
        """What Python prints where the changed package is."""
        done = subprocess.run(
            [sys.executable, *args],
            cwd=cwd or self._changed,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": f"{self._changed}{os.pathsep}{self._changed / 'tests'}",
                **variables,
            },
            capture_output=True,
            text=True,
        )
        if done.returncode and not can_fail:
            sys.exit(f"{' '.join(args)} failed:\n{_last_words(done)}")
        return done.stdout


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    """The end of what a command has printed."""
    return f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


if __name__ == "__main__":
    sys.exit(main())
