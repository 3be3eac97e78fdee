"""What do the import and the first fit on new workers cost?

Processor time and memory of fresh processes: of imports, each beside what it rests on,
and of the first fit of each estimator on new workers beside workers that have loaded
NumPy; and what scikit-learn, pandas and Dask's own collections by themselves cost such
workers: ranks of MASGDClassifier need scikit-learn for steps of SGD, and it loads
pandas, as blocks of a DataFrame do. All modules have been compiled before. Where pandas
is not installed, what rests on it is left out.

Memory of a worker in three ways: "resident" is all that it has in memory, "shared out"
counts what several processes have mapped, such as libraries, in equal parts for each,
and "own" is what would be free if the worker ended.

Run ``python first_fit.py --help``; it takes some seconds of the processor. For Linux.
"""

from __future__ import annotations

import argparse
import importlib.util
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
    "SFBMetricLearner": {"max_iter": 1, "random_state": 0},
    "SFBDictionaryLearning": {"n_components": 4, "max_iter": 1, "random_state": 0},
    "SchMPLogisticRegression": {"alpha": 0.01},
    "SchMPMatrixFactorization": {"max_iter": 1, "random_state": 0},
    "MASGDClassifier, few rows": {"random_state": 0},
    # Workers have loaded that by themselves.
    "MASGDClassifier, dask.dataframe": {"max_iter": 1, "tol": None, "random_state": 0},
}
#: What workers load by themselves, for comparison.
MODULES = {
    "scikit-learn": "sklearn.linear_model",
    "pandas": "pandas",
    "dask.array": "dask.array",
    "dask.dataframe": "dask.dataframe",
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


def usage() -> tuple[float, ...]:
    """Seconds of processor time and megabytes of this process, as they are printed."""
    import psutil

    process = psutil.Process()
    memory = process.memory_full_info()
    megabytes = (n_bytes / 1e6 for n_bytes in (memory.rss, memory.pss, memory.uss))
    return sum(process.cpu_times()[:2]), *megabytes


def load_numpy() -> None:
    """On a worker: load what its rows need without any of this package."""
    import numpy
    import scipy.sparse

    numpy.ones(2), scipy.sparse.csr_array((1, 1))


def load(module: str) -> None:
    """On a worker: load a module."""
    import importlib

    importlib.import_module(module)


def grown(client: Client, action: Callable[[], Any]) -> list[float]:
    """Seconds and megabytes of a worker, the mean, above those before."""
    before = client.run(usage)
    action()
    after = client.run(usage)
    changes = [np.subtract(after[address], before[address]) for address in before]
    return [float(mean) for mean in np.mean(changes, axis=0)]


def fit(name: str) -> None:
    """A short fit on all workers."""
    rng = np.random.default_rng(0)
    n_rows, n_columns = (100, 200) if "few rows" in name else (2000, 10)
    X, y = rng.random((n_rows, n_columns)), np.arange(n_rows) % 2
    if "Factorization" in name:
        X, y = rng.integers(0, 100, (2000, 2)), rng.random(2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = getattr(dask_ma, name.split(",")[0])
        kind(**ESTIMATORS[name]).fit(X, y)


def measure_fits(name: str, n_workers: int) -> list[list[float]]:
    """What the first two fits of an estimator cost new workers."""
    with cluster_of_processes(n_workers) as (client, _):
        client.run(load_numpy)
        if name.endswith("dask.dataframe"):
            client.run(load, "dask.dataframe")
        return [grown(client, lambda: fit(name)) for _ in range(2)]


def measure_module(name: str, n_workers: int) -> list[list[float]]:
    """What a module costs new workers."""
    with cluster_of_processes(n_workers) as (client, _):
        client.run(load_numpy)
        return [grown(client, lambda: client.run(load, MODULES[name]))]


def show(title: str, usages: list[list[list[float]]]) -> None:
    """Print medians of seconds and megabytes, and the seconds of a second fit."""
    first, *second = np.median(usages, axis=0).tolist()
    memory = "".join(f"{megabytes:12.0f}" for megabytes in first[1:])
    again = "".join(f"{row[0]:12.2f}" for row in second)
    print(f"{title:<32}{first[0]:8.2f}{memory}{again}", flush=True)


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
        print(
            f"\n{'a worker with Dask and NumPy':<32}{'seconds':>8}"
            f"{'resident MB':>12}{'shared out':>12}{'own':>12}{'second fit':>12}"
        )
        measures = dict.fromkeys(MODULES, measure_module)
        measures |= dict.fromkeys(options.estimators, measure_fits)
        if importlib.util.find_spec("pandas") is None:
            measures = {
                name: measure
                for name, measure in measures.items()
                if not name.endswith(("pandas", "dask.dataframe"))
            }
        for name, measure in measures.items():
            usages = [measure(name, options.workers) for _ in range(options.repeats)]
            show(name, usages)


if __name__ == "__main__":
    main()
