"""Test the tests: change the code in small ways and count the changes that are noticed.

mutmut makes the mutants, chooses the tests that run a changed function, and runs them
in a process of its own for each mutant. Here, a package's mutants are sampled by a seed
and its score is added up. Everything happens in a copy of the tracked files.
"""

from __future__ import annotations

import argparse
import configparser
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

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
UNNOTICED = frozenset({"survived", "no tests"})
NOTICED = frozenset({"killed", "timeout", "segfault"})


def main() -> int:
    """Run, and return the exit status: 0 if enough mutants are noticed."""
    parser = argparse.ArgumentParser(
        prog="mutation",
        description="Mutate a package of dask_ma and count the mutants that its tests "
        "notice. A mutant that only a time-out ends has been noticed.",
    )
    parser.add_argument("package", choices=sorted(TESTS))
    parser.add_argument("--mutants", type=int, default=200, help="how many are tried")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", default="", help="a module, without dask_ma.PACKAGE.")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--at-least", type=float, default=0.0, help="per cent noticed")
    parser.add_argument("--folder", type=Path, help="of the copy; kept and used again")
    args = parser.parse_args()
    folder = args.folder or ROOT / "build" / "mutation" / args.package
    copy = Copy(folder.resolve(), args.package)
    names = copy.mutants(args.only)
    chosen = sorted(
        random.Random(args.seed).sample(names, min(args.mutants, len(names)))
    )
    print(f"{len(chosen)} of {len(names)} mutants of {args.package}, seed {args.seed}")
    statuses = copy.run(chosen, args.processes)
    for name in chosen:
        if statuses[name] in UNNOTICED:
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
    """A copy of the tracked files in which mutmut works on one package.

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
        """Tell mutmut what to change and which tests to run."""
        path = self._folder / "setup.cfg"
        config = configparser.ConfigParser(interpolation=None)
        config.read(path)
        config["mutmut"] = {
            "source_paths": "dask_ma",
            "only_mutate": f"dask_ma/{self._package}/*",
            "pytest_add_cli_args_test_selection": "\n".join(TESTS[self._package]),
            "pytest_add_cli_args": f"\n-m\n{DESELECTED}\n-p\nno:cacheprovider",
            # Readme, examples and documents belong to what some tests read.
            "also_copy": "\nREADME.md\ndocs\nexamples",
            # Clusters of the tests leave threads behind that a fork would not have.
            "process_isolation": "forkserver",
        }
        with path.open("w") as file:
            config.write(file)

    def mutants(self, module: str) -> list[str]:
        """Names of all mutants, after their tests have been run without any."""
        # mutmut cannot only prepare: with a name that no mutant has, it ends in an
        # error when it has made the mutants and knows which test runs what.
        prepared = self._call("run", "none")
        prefix = f"dask_ma.{self._package}.{module}"
        names = sorted(name for name in self.statuses() if name.startswith(prefix))
        if not names or "nothing matches" not in prepared.stderr:
            sys.exit(f"there is nothing to try:\n{_last_words(prepared)}")
        return names

    def run(self, names: list[str], n_processes: int) -> dict[str, str]:
        """Try mutants; return what has become of each."""
        self._mutmut("run", "--max-children", str(n_processes), *names)
        return self.statuses()

    def statuses(self) -> dict[str, str]:
        """What has become of each mutant so far."""
        lines = self._mutmut("results", "--all", "true").splitlines()
        found = (line.strip().rsplit(": ", 1) for line in lines if ": " in line)
        return {name: status for name, status in found}

    def diff(self, name: str) -> str:
        """What a mutant changes."""
        return self._mutmut("show", name)

    def _mutmut(self, *args: str) -> str:
        """Output of mutmut, which must end well."""
        done = self._call(*args)
        if done.returncode:
            sys.exit(f"mutmut {args[0]} failed:\n{_last_words(done)}")
        return done.stdout

    def _call(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run mutmut in the copy."""
        return subprocess.run(
            [sys.executable, "-m", "mutmut", *args],
            cwd=self._folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    """The end of what a command has printed."""
    return f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


if __name__ == "__main__":
    sys.exit(main())
