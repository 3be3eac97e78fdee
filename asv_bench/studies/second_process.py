"""Two worker processes against one: outputs shared out, and learnt distances.

There is a cluster of two worker processes of one thread, with rows that lie with one of
them, and with rows that lie evenly on both; fits of one rank and of two take turns. The
first fit of each loads modules and does not count. Cases are

- ``outputs``: softmax with ``communication="outputs"`` on sparse rows of a few words,
  with labels of many classes, one pass of "sgd" with batches of the same rows;
- ``metric``: learnt distances of Fashion-MNIST, 784 features to 50, by default passes
  (``--metric-passes``), with a rank for each process, which share the steps out, also
  where "auto" would not; and the part of the test rows that three neighbours name
  rightly.

For each number of processes the seconds by the clock and their median, those until the
end of the last pass, what of it was computing and waiting (means over ranks), seconds
of the processor of each worker, messages, and the objective; at last the medians of the
ratios of neighbouring fits.

Run ``python second_process.py --help``; ``--data`` names the folder of data sets.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# Worker processes import the modules by this path as well.
sys.path.append(str(Path(__file__).parent.parent))

import numpy as np  # noqa: E402
from peers._solvers import local_cluster  # noqa: E402
from peers.metric import images, neighbours  # noqa: E402

from benchmarks._data import persist  # noqa: E402
from dask_ma import SFBLogisticRegression, SFBMetricLearner  # noqa: E402
from dask_ma.datasets import make_sparse_classification  # noqa: E402


class Case(NamedTuple):
    """What is fitted.

    Attributes
    ----------
    rows : tuple
        X and y.
    model : callable
        ``model(n_processes)`` makes an estimator.
    quality : callable
        Of a fitted estimator.
    """

    rows: tuple[Any, Any]
    model: Callable[[int], Any]
    quality: Callable[[Any], float]


def outputs(args: argparse.Namespace) -> Case:
    """Softmax with many classes."""
    n_rows, n_columns, n_classes, n_nonzero = args.shape
    X, y, _ = make_sparse_classification(
        n_rows, n_columns, n_nonzero=n_nonzero, n_classes=n_classes, random_state=0
    )

    def model(n_processes: int) -> SFBLogisticRegression:
        return SFBLogisticRegression(
            solver="sgd",
            communication="outputs" if n_processes > 1 else "auto",
            batch_size=args.batch // n_processes,
            max_iter=1,
            tol=None,
            refine=False,
            random_state=0,
            n_ranks=n_processes,
        )

    def quality(fitted: SFBLogisticRegression) -> float:
        return float(fitted.history_[-1]["objective"])

    return Case((X.astype(np.float32), y), model, quality)


def metric(args: argparse.Namespace) -> Case:
    """Learnt distances."""
    train = images(args.data, "train", args.metric_rows)
    test = images(args.data, "t10k", 10_000)
    passes = args.metric_passes

    def model(n_processes: int) -> SFBMetricLearner:
        return SFBMetricLearner(
            50,
            max_iter=passes or "auto",
            communication=args.metric_content if n_processes > 1 else "auto",
            random_state=0,
            n_ranks=n_processes,
        )

    def quality(fitted: SFBMetricLearner) -> float:
        return neighbours(fitted.components_, train, test)

    return Case(train, model, quality)


def measure(case: Case, n_pairs: int) -> None:
    """Fits of a case in turn, and what they took."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    processor: dict[int, list[Any]] = {1: [], 2: []}
    fitted: dict[int, Any] = {}
    with local_cluster(max(seconds)) as client:
        data = {n: persist(*case.rows, client, n) for n in seconds}
        for number in range(n_pairs + 1):
            for n_processes, rows in data.items():
                model = case.model(n_processes)
                before = client.run(time.process_time)
                start = time.perf_counter()
                model.fit(*rows)
                taken = time.perf_counter() - start
                after = client.run(time.process_time)
                if number:
                    seconds[n_processes].append(taken)
                    processor[n_processes].append(
                        [after[name] - before[name] for name in sorted(after)]
                    )
                    fitted[n_processes] = model
    for n_processes, times in seconds.items():
        show(n_processes, times, processor[n_processes], fitted[n_processes])
        print(f"   quality {case.quality(fitted[n_processes]):.5f}", flush=True)
    ratios = [two / one for one, two in zip(*seconds.values(), strict=True)]
    shown = " ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"   two / one: {statistics.median(ratios):.3f} of {shown}", flush=True)


def show(n: int, times: list[float], processor: list[Any], model: Any) -> None:
    """Print what the fits of a number of processes took."""
    history = model.history_
    sums = {
        name: sum(record[name] for record in history)
        for name in ("seconds_computing", "seconds_waiting", "messages_sent")
    }
    of_workers = " ".join(f"{value:.2f}" for value in np.median(processor, axis=0))
    print(
        f"   {n} process{'es' * (n > 1)}: {statistics.median(times):.3f} s of "
        f"{' '.join(f'{one:.3f}' for one in times)}; passes {history[-1]['time']:.3f}, "
        f"computing {sums['seconds_computing']:.3f}, "
        f"waiting {sums['seconds_waiting']:.3f}; processor {of_workers}; "
        f"{sums['messages_sent']} messages, {model.communication_}"
    )


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--cases", nargs="+", default=["outputs", "metric"])
    add("--shape", type=int, nargs=4, default=[200_000, 50_000, 1000, 30])
    add("--batch", type=int, default=1024, help="rows of all processes")
    add("--metric-rows", type=int, default=20_000)
    add("--metric-content", default="full_matrix", help="of two processes")
    add("--metric-passes", type=int, default=0, help="0 for the default")
    add(
        "--pairs",
        type=int,
        help="of fits; two of outputs and seven of metric if not told",
    )
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    cases = {"outputs": (outputs, 2), "metric": (metric, 7)}
    for name in args.cases:
        print(name, flush=True)
        case, n_pairs = cases[name]
        measure(case(args), args.pairs or n_pairs)


# Worker processes import this file again.
if __name__ == "__main__":
    main()
