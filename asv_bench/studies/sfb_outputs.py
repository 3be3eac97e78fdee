"""Softmax with outputs shared out: time and memory of two processes against one.

Rows of a few words each, with labels of many classes that a model drawn first has
given, lie with one worker process and then with two, in turn. Each fits one pass of
"sgd" with batches of the same rows. For each way the medians: seconds by the clock,
processor seconds of each worker and by how much its memory grew at most, megabytes that
were sent, and the objective.

Run ``python sfb_outputs.py --help``. The defaults take two minutes and 2 GB of memory;
``--shape 200000 50000 1000 30`` is the size that figures of the user guide are of.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

# Worker processes import the modules by this path as well.
sys.path.append(str(Path(__file__).parent.parent))

import numpy as np  # noqa: E402
from distributed import Client  # noqa: E402
from peers._solvers import local_cluster  # noqa: E402

from benchmarks._data import persist  # noqa: E402
from dask_ma import SFBLogisticRegression  # noqa: E402
from dask_ma.datasets import make_sparse_classification  # noqa: E402


class Fit(NamedTuple):
    """What a fit took.

    Attributes
    ----------
    clock : float
    processor : list of float
        Seconds of each worker.
    growth : list of float
        Megabytes by which the memory of each worker grew at most.
    sent : float
        Megabytes.
    objective : float
    passes, computing, waiting : float
        Seconds until the end of the last pass, and of them those of computing and of
        waiting, the means over ranks.
    """

    clock: float
    processor: list[float]
    growth: list[float]
    sent: float
    objective: float
    passes: float
    computing: float
    waiting: float


def begin() -> dict[str, float]:
    """Processor time of a worker, and its memory, which is watched from here on."""
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")  # forget the peak
    return {"processor": time.process_time(), "memory": _memory("VmRSS")}


def end() -> dict[str, float]:
    """Processor time of a worker, and the most memory it has had."""
    return {"processor": time.process_time(), "memory": _memory("VmHWM")}


def _memory(name: str) -> float:
    """A size of this process in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = next(line for line in lines if line.startswith(name))
    return int(found.split()[1]) * 1024 / 1e6


def fit(client: Client, data: Any, way: str, args: argparse.Namespace) -> Fit:
    """One fit."""
    n_processes = len(client.run(begin))
    model = SFBLogisticRegression(
        solver="sgd",
        communication=way,
        alpha=args.alpha,
        batch_size=args.batch // n_processes,
        max_iter=args.passes,
        tol=None,
        refine=False,
        random_state=0,
    )
    before = client.run(begin)
    start = time.perf_counter()
    with client.as_current():
        model.fit(*data)
    clock = time.perf_counter() - start
    after = client.run(end)
    change = {
        key: [after[name][key] - before[name][key] for name in sorted(after)]
        for key in ("processor", "memory")
    }
    history = model.history_
    sent = sum(record["bytes_sent"] for record in history) / 1e6
    return Fit(
        clock,
        change["processor"],
        change["memory"],
        sent,
        history[-1]["objective"],
        history[-1]["time"],
        sum(record["seconds_computing"] for record in history),
        sum(record["seconds_waiting"] for record in history),
    )


def shown(name: str, fits: list[Fit]) -> float:
    """Print the medians; return that of the clock."""
    clock = statistics.median(one.clock for one in fits)
    processor, growth = (
        "".join(
            f"{value:8.{digits}f}"
            for value in np.median([getattr(one, key) for one in fits], axis=0)
        )
        for key, digits in (("processor", 2), ("growth", 0))
    )
    last = fits[-1]
    print(
        f"{name:<14}{clock:7.2f} s; processor{processor} s; passes{last.passes:7.2f}, "
        f"computing{last.computing:7.2f}, waiting{last.waiting:7.2f}; "
        f"grew{growth} MB; sent{last.sent:7.1f} MB; objective {last.objective:.6f}",
        flush=True,
    )
    return clock


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--shape", type=int, nargs=4, default=[40_000, 20_000, 1000, 30])
    add("--dtype", default="float32", choices=["float32", "float64"])
    add("--batch", type=int, default=1024, help="rows of all processes")
    add("--passes", type=int, default=1)
    add("--alpha", type=float, default=1e-4)
    add("--processes", type=int, nargs="+", default=[1, 2])
    add(
        "--ways", nargs="+", default=["outputs", "factors"], help="of several processes"
    )
    add("--repeats", type=int, default=3)
    args = parser.parse_args()
    n_rows, n_columns, n_classes, n_nonzero = args.shape
    X, y, _ = make_sparse_classification(
        n_rows, n_columns, n_nonzero=n_nonzero, n_classes=n_classes, random_state=0
    )
    X = X.astype(args.dtype)
    fits: dict[tuple[int, str], list[Fit]] = {}
    for n_processes in args.processes:
        with local_cluster(n_processes) as client:
            data = persist(X, y, client)
            for way in args.ways if n_processes > 1 else ["auto"]:
                fit(client, data, way, args)  # loads what is to be loaded
                fits[n_processes, way] = [
                    fit(client, data, way, args) for _ in range(args.repeats)
                ]
    clocks = {
        key: shown(f'{key[0]}, "{key[1]}"' if key[0] > 1 else "1", found)
        for key, found in fits.items()
    }
    one = next(iter(clocks.values()))
    for (n_processes, way), clock in list(clocks.items())[1:]:
        print(f'{n_processes}, "{way}" / 1: {clock / one:.2f}')


# Worker processes import this file again.
if __name__ == "__main__":
    main()
