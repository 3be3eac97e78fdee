"""Time and quality of learnt distances: SFBMetricLearner next to other libraries.

To be run in the folder asv_bench:

    python -m peers.metric --data FOLDER                    labels, one process
    python -m peers.metric --data FOLDER --python PYTHON    pairs, next to metric-learn
    python -m peers.metric --data FOLDER --processes 5      two processes against one

Labels are those of Fashion-MNIST, 784 features to 50; a distance is judged by the part
of the test rows whose three nearest training rows name their class. scikit-learn's
NeighborhoodComponentsAnalysis is run at its best there: float32, from the principal
components, two iterations. Pairs are of digits, half of them similar; a distance is
judged by the area under the curve on other pairs, of other rows. metric-learn needs an
older scikit-learn, so its ITML runs in a Python of its own. Each has one thread, and
the median of several seeds counts; times are those of the processor, but of processes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from threadpoolctl import threadpool_limits

from benchmarks._data import persist
from dask_ma import SFBMetricLearner

from ._solvers import local_cluster

# What the other Python runs: pairs of rows in, components out.
_ITML = """
import sys, time
import numpy as np
from metric_learn import ITML
data = np.load(sys.argv[1])
start = time.process_time()
model = ITML(max_iter=int(sys.argv[2]), random_state=0).fit(data["pairs"], data["y"])
seconds = time.process_time() - start
np.savez(sys.argv[3], components=model.components_, seconds=seconds)
"""


class Result(NamedTuple):
    """Seconds of a fit, and how good it is."""

    seconds: float
    quality: float


def images(folder: Path, name: str, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of Fashion-MNIST, from 0 to 1, and labels."""
    parts = []
    for kind, offset in (("images-idx3", 16), ("labels-idx1", 8)):
        path = folder / "fashion_mnist" / f"{name}-{kind}-ubyte.gz"
        parts.append(np.frombuffer(gzip.open(path).read(), np.uint8, offset=offset))
    X = parts[0].reshape(-1, 784)[:n_rows].astype(np.float32) / 255
    return X, parts[1][:n_rows]


def neighbours(components: np.ndarray, train: Any, test: Any) -> float:
    """Part of the test rows that three neighbours name rightly."""
    model = KNeighborsClassifier(3).fit(train[0] @ components.T, train[1])
    return float(model.score(test[0] @ components.T, test[1]))


def timed(
    fit: Callable[[], np.ndarray], judge: Callable[[np.ndarray], float]
) -> Result:
    """Processor seconds of a fit that gives components."""
    start = time.process_time()
    components = fit()
    return Result(time.process_time() - start, judge(components))


def digit_pairs(
    y: np.ndarray, n_pairs: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rows, half of them drawn to be similar, and their labels."""
    first = rng.integers(0, len(y), n_pairs)
    second = rng.integers(0, len(y), n_pairs)
    for place in range(n_pairs // 2):
        second[place] = rng.choice(np.flatnonzero(y == y[first[place]]))
    keep = first != second
    pairs = np.column_stack([first[keep], second[keep]])
    return pairs, np.where(y[pairs[:, 0]] == y[pairs[:, 1]], 1, -1)


def itml(python: str, pairs: np.ndarray, labels: np.ndarray, n_iter: int) -> Any:
    """Components and seconds of metric-learn's ITML."""
    with tempfile.TemporaryDirectory() as folder:
        data, found = Path(folder) / "pairs.npz", Path(folder) / "found.npz"
        np.savez(data, pairs=pairs, y=labels)
        command = [python, "-c", _ITML, str(data), str(n_iter), str(found)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": ""})
        with np.load(found) as loaded:
            return loaded["components"], float(loaded["seconds"])


def compare_labels(
    folder: Path, n_rows: int, n_test: int, seeds: int
) -> dict[str, Any]:
    """Fits to labels of Fashion-MNIST."""
    train, test = images(folder, "train", n_rows), images(folder, "t10k", n_test)

    def judge(components: np.ndarray) -> float:
        return neighbours(components, train, test)

    found: dict[str, list[Result]] = {}
    for seed in range(seeds):
        contestants = {
            "SFBMetricLearner(max_iter=20)": SFBMetricLearner(
                50, max_iter=20, random_state=seed, n_ranks=1
            ),
            "SFBMetricLearner(max_iter=5)": SFBMetricLearner(
                50, max_iter=5, random_state=seed, n_ranks=1
            ),
            "SFBMetricLearner()": SFBMetricLearner(50, random_state=seed, n_ranks=1),
            "NCA(init='pca', max_iter=2)": NeighborhoodComponentsAnalysis(
                50, init="pca", max_iter=2, random_state=seed
            ),
        }
        for name, model in contestants.items():
            if n_rows > 5000 and name.startswith("NCA"):
                continue  # all pairs of the rows do not fit
            result = timed(lambda m=model: m.fit(*train).components_, judge)
            found.setdefault(name, []).append(result)
    return {name: medians(results) for name, results in found.items()}


def compare_pairs(python: str | None, seeds: int) -> dict[str, Any]:
    """Fits to pairs of digits."""
    X, y = load_digits(return_X_y=True)
    parts = train_test_split(X / 16, y, test_size=0.3, random_state=0, stratify=y)
    train, test, of_train, of_test = parts
    rng = np.random.default_rng(0)
    pairs, labels = digit_pairs(of_train, 4000, rng)
    others, truth = digit_pairs(of_test, 20_000, rng)

    def judge(components: np.ndarray) -> float:
        d = (test[others[:, 0]] - test[others[:, 1]]) @ components.T
        return float(roc_auc_score(truth, -(d**2).sum(axis=1)))

    found: dict[str, list[Result]] = {"Euclidean": [Result(0, judge(np.eye(64)))]}
    for seed in range(seeds):
        for n_iter in (5, 10, 20):
            model = SFBMetricLearner(
                32, loss="logistic", max_iter=n_iter, random_state=seed, n_ranks=1
            )
            name = f"SFBMetricLearner(loss='logistic', max_iter={n_iter})"
            result = timed(
                lambda m=model: (
                    m.fit(train, pairs=pairs, pair_labels=labels).components_
                ),
                judge,
            )
            found.setdefault(name, []).append(result)
    if python is not None:
        components, seconds = itml(python, train[pairs], labels, 10)
        found["ITML(max_iter=10)"] = [Result(seconds, judge(components))]
    return {name: medians(results) for name, results in found.items()}


def compare_processes(folder: Path, n_rows: int, n_runs: int) -> dict[str, Any]:
    """Seconds of fits on one and on two worker processes, in turn."""
    X, y = images(folder, "train", n_rows)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(n_runs):
        for n_workers, taken in seconds.items():
            with local_cluster(n_workers) as client:
                rows = persist(X, y, client)
                model = SFBMetricLearner(50, random_state=0)
                model.fit(*rows)
                start = time.perf_counter()
                model.fit(*rows)
                taken.append(time.perf_counter() - start)
    ratios = [b / a for a, b in zip(*seconds.values(), strict=True)]
    return {**seconds, "ratio": statistics.median(ratios)}


def medians(results: list[Result]) -> dict[str, float]:
    """Medians of seconds and qualities."""
    return {
        "seconds": round(statistics.median(r.seconds for r in results), 4),
        "quality": round(statistics.median(r.quality for r in results), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--python", help="a Python with metric-learn and a scikit-learn before 1.8")
    add("--rows", type=int, default=5000)
    add("--test-rows", type=int, default=2000)
    add("--seeds", type=int, default=3)
    add("--processes", type=int, default=0, help="runs on one and two processes")
    options = parser.parse_args()
    with threadpool_limits(1):
        if options.processes:
            found = compare_processes(options.data, options.rows, options.processes)
        else:
            folder = Path(options.data)
            found = {
                "labels": compare_labels(
                    folder, options.rows, options.test_rows, options.seeds
                ),
                "pairs": compare_pairs(options.python, options.seeds),
            }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
