"""How many modules does a fit pass through?

Whoever follows a fit through the sources reads these modules. Counted are those of the
package in which a function is called while ``fit`` runs, on rows in memory, without a
cluster, in all threads; what an import runs does not count. The columns: modules of a
folder, the lines that they have, and how many of these a fit runs.

Run ``python modules_of_a_fit.py --help``; each fit takes seconds.
"""

from __future__ import annotations

import argparse
import sys
import threading
import warnings
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import dask_ma

ROOT = Path(dask_ma.__file__).parent
ESTIMATORS = (
    "MASGDClassifier",
    "ButterflySGDClassifier",
    "SFBLogisticRegression",
    "MPCAClassifier",
    "SchMPLasso",
)


def lines_of_fit(name: str) -> dict[Path, set[int]]:
    """The lines that a fit runs, by modules; a fit before it has imported them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    y = (X[:, 0] > 0).astype(int)
    lines: dict[Path, set[int]] = defaultdict(set)

    def follow(frame: FrameType, event: str, argument: Any) -> Any:
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(ROOT) or frame.f_code.co_name == "<module>":
            return None
        if event == "line":
            lines[path.relative_to(ROOT)].add(frame.f_lineno)
        return follow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 60 rows are too few for some
        getattr(dask_ma, name)().fit(X, y)
        estimator = getattr(dask_ma, name)()
        before = sys.gettrace()
        threading.settrace(follow)
        sys.settrace(follow)
        try:
            estimator.fit(X, y)
        finally:
            sys.settrace(before)
            threading.settrace(before)  # type: ignore[arg-type]
    return lines


def main() -> None:
    """Print a table of folders for each estimator, or of modules."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("estimators", nargs="*", default=ESTIMATORS)
    parser.add_argument("--modules", action="store_true", help="each module, too")
    options = parser.parse_args()
    for name in options.estimators:
        lines = lines_of_fit(name)
        folders: dict[str, list[Path]] = defaultdict(list)
        for path in sorted(lines):
            folders[str(path.parent)].append(path)
        total = {path: len((ROOT / path).read_text().splitlines()) for path in lines}
        print(f"{name}: {len(lines)} modules of {sum(total.values()):,} lines")
        for folder, paths in folders.items():
            n_lines = sum(total[path] for path in paths)
            n_run = sum(len(lines[path]) for path in paths)
            print(f"  {folder:22} {len(paths):3} {n_lines:6} {n_run:5}")
            for path in paths if options.modules else ():
                print(f"    {path.name:24} {total[path]:6} {len(lines[path]):5}")


if __name__ == "__main__":
    main()
