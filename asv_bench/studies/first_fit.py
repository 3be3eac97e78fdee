"""What do the import and the first fit on new workers cost?

Processor time and memory of fresh processes: of imports, each beside what it rests on,
and of the first fit of each estimator on new workers beside workers that have loaded
NumPy, and what scikit-learn by itself costs such workers: ranks of MASGDClassifier need
it for steps of SGD, of SchMPLasso rank 0. All modules have been compiled before. Run
``python first_fit.py --help``; it takes some seconds of the processor. For Linux.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from dask.distributed import Client
from many_ranks import cluster_of_processes

import dask_ma

IMPORTS = {
    "numpy, scipy.sparse": "import numpy, scipy.sparse",
    "dask, distributed": "import dask, distributed",
    "and scikit-learn": "import dask, distributed, sklearn.linear_model",
    "dask_ma": "import dask_ma",
    "dask, scikit-learn, dask_ma": (
        "import dask, distributed, sklearn.linear_model, dask_ma"
    ),
    "MASGDClassifier": "from dask_ma import MASGDClassifier",
}
#: Short fits to 2,000 x 10 numbers.
ESTIMATORS: dict[str, dict[str, Any]] = {
    "MASGDClassifier": {"max_iter": 1, "tol": None, "random_state": 0},
    "MASGDClassifier, gradients": {
        "paradigm": "gradient",
        "max_iter": 1,
        "tol": None,
        "random_state": 0,
    },
    "ButterflySGDClassifier": {"max_iter": 1, "tol": None, "random_state": 0},
    "SFBLogisticRegression": {"max_iter": 1, "refine": False, "random_state": 0},
    "MPCAClassifier": {"max_iter": 1, "random_state": 0},
    "MALDA": {"max_iter": 1, "random_state": 0},
    "SchMPLasso": {"alpha": 0.1},
    "SchMPLDA": {"max_iter": 1, "fractions": "round", "random_state": 0},
}
_REPORT = """
import sys, time
[peak] = [line.split()[1] for line in open("/proc/self/status") if "VmHWM" in line]
print(time.process_time(), int(peak) / 1e3, len(sys.modules))
"""


def measure_import(statement: str, repeats: int) -> tuple[float, float, int]:
    """Seconds of processor time, megabytes at most, modules of a new process."""
    rows = []
    for _ in range(repeats):
        command = [sys.executable, "-c", statement + "\n" + _REPORT]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append([float(word) for word in found.stdout.split()])
    seconds, megabytes, modules = (median(column) for column in zip(*rows, strict=True))
    return seconds, megabytes, int(modules)


def usage() -> tuple[float, float]:
    """Seconds of processor time and resident megabytes of this process."""
    import psutil

    process = psutil.Process()
    return sum(process.cpu_times()[:2]), process.memory_info().rss / 1e6


def load_numpy() -> None:
    """On a worker: load what its rows need without any of this package."""
    import numpy
    import scipy.sparse

    numpy.ones(2), scipy.sparse.csr_array((1, 1))


def load_sklearn() -> None:
    """On a worker: load what SGD of scikit-learn needs."""
    import sklearn.linear_model  # noqa: F401


def grown(client: Client, action: Callable[[], Any]) -> tuple[float, float]:
    """Seconds and megabytes of a worker, the mean, above those before."""
    before = client.run(usage)
    action()
    after = client.run(usage)
    changes = [np.subtract(after[address], before[address]) for address in before]
    seconds, megabytes = np.mean(changes, axis=0).tolist()
    return seconds, megabytes


def fit(name: str) -> None:
    """A short fit on all workers."""
    rng = np.random.default_rng(0)
    X, y = rng.random((2000, 10)), np.arange(2000) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = getattr(dask_ma, name.split(",")[0])
        kind(**ESTIMATORS[name]).fit(X, y)


def measure_fits(name: str, n_workers: int) -> None:
    """Print what the first fits of an estimator cost new workers."""
    with cluster_of_processes(n_workers) as (client, _):
        client.run(load_numpy)
        for number in ("first", "second"):
            show(f"{name}, {number} fit", grown(client, lambda: fit(name)))


def measure_sklearn(n_workers: int) -> None:
    """Print what scikit-learn costs new workers, and a fit after it."""
    with cluster_of_processes(n_workers) as (client, _):
        client.run(load_numpy)
        show("scikit-learn", grown(client, lambda: client.run(load_sklearn)))
        name = next(iter(ESTIMATORS))
        show(f"{name}, first fit after it", grown(client, lambda: fit(name)))


def show(title: str, usage: tuple[float, float]) -> None:
    """Print seconds and megabytes."""
    print(f"{title:<36}{usage[0]:8.2f}{usage[1]:7.0f}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--estimators", nargs="*", default=list(ESTIMATORS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        print(f"{'import':<30}{'seconds':>8}{'MB':>7}{'modules':>9}")
        for name, statement in IMPORTS.items():
            measure_import(statement, 1)  # compiles
            seconds, megabytes, modules = measure_import(statement, options.repeats)
            print(f"{name:<30}{seconds:8.2f}{megabytes:7.0f}{modules:9}", flush=True)
        package = str(Path(dask_ma.__file__).parent)
        subprocess.run([sys.executable, "-m", "compileall", "-q", package], check=True)
        print(f"\n{'a worker with Dask and NumPy':<36}{'seconds':>8}{'MB':>7}")
        measure_sklearn(options.workers)
        for name in options.estimators:
            measure_fits(name, options.workers)


if __name__ == "__main__":
    main()
