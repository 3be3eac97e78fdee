"""What do the import and the first fit on new workers cost?

Processor time and memory of fresh processes: of imports, each beside what it rests on,
and of the first fit on two new workers beside workers that have loaded NumPy, and what
scikit-learn by itself costs such workers. All modules have been compiled before. Run
``python first_fit.py --help``; it takes some seconds of the processor. For Linux.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from dask.distributed import Client
from many_ranks import cluster_of_processes

from dask_ma import MASGDClassifier

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


def fit() -> None:
    """One round on all workers."""
    rng = np.random.default_rng(0)
    X, y = rng.random((2000, 10)), np.arange(2000) % 2
    MASGDClassifier(max_iter=1, tol=None, random_state=0).fit(X, y)


def measure_workers(n_workers: int) -> dict[str, tuple[float, float]]:
    """What fits cost new workers, and what scikit-learn costs others."""
    with cluster_of_processes(n_workers) as (client, _):
        client.run(load_numpy)
        rows = {name: grown(client, fit) for name in ("first fit", "second fit")}
    with cluster_of_processes(n_workers) as (client, _):
        client.run(load_numpy)
        rows["scikit-learn"] = grown(client, lambda: client.run(load_sklearn))
        rows["first fit after it"] = grown(client, fit)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        print(f"{'import':<30}{'seconds':>8}{'MB':>7}{'modules':>9}")
        for name, statement in IMPORTS.items():
            measure_import(statement, 1)  # compiles
            seconds, megabytes, modules = measure_import(statement, options.repeats)
            print(f"{name:<30}{seconds:8.2f}{megabytes:7.0f}{modules:9}", flush=True)
        measure_workers(1)
        rows = measure_workers(options.workers)
    print(f"\n{'a worker with Dask and NumPy':<30}{'seconds':>8}{'MB':>7}")
    for name, (seconds, megabytes) in rows.items():
        print(f"{name:<30}{seconds:8.2f}{megabytes:7.0f}")


if __name__ == "__main__":
    main()
