"""Neighbours by distances that are learnt with defaults, on five sets of others.

To be run in the folder asv_bench:

    python -m peers.distances --data FOLDER --python PYTHON --write FILE
    python -m peers.distances --python PYTHON --only "metric-learn ITML" --write FILE

A distance is judged by the part of the rows that their three nearest neighbours in the
training rows name rightly; each row is held out once, in three folds. Columns are
standardised, but for images. metric-learn needs an older scikit-learn, so it runs in a
Python of its own, and is left out without one; without a folder, so is Fashion-MNIST,
of which a fold takes ITML more than ten minutes. Lines of a table that are not run
again stay. One thread and process each; times are
of the processor, of the three fits together.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from dask_ma import SFBMetricLearner

from .metric import images

HEADS = ("set", "rows", "features", "distance", "accuracy", "seconds")
_FOLDS = StratifiedKFold(3, shuffle=True, random_state=0)
# What the other Python runs: rows and labels in, components out.
_METRIC_LEARN = """
import sys, time, warnings
import numpy as np
import metric_learn
warnings.simplefilter("ignore")
data = np.load(sys.argv[1])
kinds = {
    "NCA": lambda: metric_learn.NCA(random_state=0),
    "ITML": lambda: metric_learn.ITML_Supervised(random_state=0),
    "LMNN": lambda: metric_learn.LMNN(random_state=0),
}
model = kinds[sys.argv[2]]()
start = time.process_time()
model.fit(data["X"], data["y"])
seconds = time.process_time() - start
np.savez(sys.argv[3], components=model.components_, seconds=seconds)
"""


class Fit(NamedTuple):
    """Components, and the seconds that they took."""

    components: np.ndarray
    seconds: float


Learn = Callable[[np.ndarray, np.ndarray], Fit]


def sets(folder: Path | None) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Names, rows and labels."""
    for name, loader in (
        ("iris", load_iris),
        ("wine", load_wine),
        ("breast cancer", load_breast_cancer),
    ):
        X, y = loader(return_X_y=True)
        yield name, StandardScaler().fit_transform(X), y
    X, y = load_digits(return_X_y=True)
    yield "digits", X / 16, y
    if folder is not None:
        X, y = images(folder, "train", 1500)
        # Pieces of 2 x 2 pixels: the peers take hours with all of them.
        X = X.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(len(X), -1)
        yield "Fashion-MNIST", X.astype(np.float64), y


def fitted(make: Callable[[], Any]) -> Learn:
    """Learns in this process."""

    def learn(X: np.ndarray, y: np.ndarray) -> Fit:
        start = time.process_time()
        components = make().fit(X, y).components_
        return Fit(components, time.process_time() - start)

    return learn


def elsewhere(python: str, kind: str) -> Learn:
    """Learns with metric-learn."""

    def learn(X: np.ndarray, y: np.ndarray) -> Fit:
        with tempfile.TemporaryDirectory() as folder:
            data, found = Path(folder) / "rows.npz", Path(folder) / "found.npz"
            np.savez(data, X=X, y=y)
            command = [python, "-c", _METRIC_LEARN, str(data), kind, str(found)]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": ""})
            with np.load(found) as loaded:
                return Fit(loaded["components"], float(loaded["seconds"]))

    return learn


def contestants(python: str | None, kinds: list[str]) -> dict[str, Learn]:
    """Who learns, with defaults."""
    found: dict[str, Learn] = {
        "Euclidean": lambda X, y: Fit(np.eye(X.shape[1]), 0.0),
        "SFBMetricLearner": fitted(lambda: SFBMetricLearner(random_state=0, n_ranks=1)),
        "scikit-learn NCA": fitted(
            lambda: NeighborhoodComponentsAnalysis(random_state=0)
        ),
    }
    if python is not None:
        found |= {f"metric-learn {kind}": elsewhere(python, kind) for kind in kinds}
    return found


def judge(learn: Learn, X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Part of the rows that are named rightly, and seconds."""
    n_hits, seconds = 0, 0.0
    for train, test in _FOLDS.split(X, y):
        fit = learn(X[train], y[train])
        Z = X @ fit.components.T
        model = KNeighborsClassifier(3).fit(Z[train], y[train])
        n_hits += int((model.predict(Z[test]) == y[test]).sum())
        seconds += fit.seconds
    return n_hits / len(y), seconds


def main() -> None:
    """Print a line for each fit, and write the table if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--python", help="a Python with metric-learn and a scikit-learn before 1.8")
    add("--kinds", nargs="*", default=["NCA", "ITML"], help="of metric-learn")
    add("--only", nargs="*", help="distances, of all those in the table")
    add("--write", type=Path, help="file for the table")
    options = parser.parse_args()
    folder = None if options.data is None else Path(options.data)
    rows = []
    with threadpool_limits(1):
        for name, X, y in sets(folder):
            for who, learn in contestants(options.python, options.kinds).items():
                if options.only and who not in options.only:
                    continue
                accuracy, seconds = judge(learn, X, y)
                row = name, *X.shape, who, f"{accuracy:.3f}", f"{seconds:.2f}"
                print(*row, sep=", ", flush=True)
                rows.append(tuple(map(str, row)))
    if options.write is not None:
        write(rows, options.write)


def write(rows: list[tuple[str, ...]], path: Path) -> None:
    """Put lines into a table, those of a set together, in the place of older ones."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    if path.exists():
        with path.open(newline="") as file:
            found = {(row[0], row[3]): tuple(row) for row in list(csv.reader(file))[1:]}
    found |= {(row[0], row[3]): row for row in rows}
    order = list(dict.fromkeys(name for name, _ in found))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADS)
        writer.writerows(sorted(found.values(), key=lambda row: order.index(row[0])))


if __name__ == "__main__":
    main()
