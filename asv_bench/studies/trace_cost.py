"""What does it cost to note what the ranks do?

The cost of one span is timed by itself and multiplied by the spans of a fit, since the
difference between two fits, with and without, is smaller than their scatter. Fits on
small data are the worst case: their rounds are short. The last two columns are medians
over fits with and without the notes, taken in turn.

Run ``python trace_cost.py --help``; the defaults take a minute.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter
from typing import Any

import dask
import numpy as np

from dask_ma import ButterflySGDClassifier, MASGDClassifier
from dask_ma.comm import Trace
from dask_ma.datasets import make_sparse_classification

# Rows, features, ranks.
SHAPES = [(1_000, 100, 2), (1_000, 100, 8), (20_000, 5_000, 4), (100_000, 50_000, 4)]
ESTIMATORS = {
    "MASGD": (MASGDClassifier, {"tol": None}),
    "Butterfly": (ButterflySGDClassifier, {"tol": None, "loss": "log_loss"}),
}


def seconds_per_span(n_spans: int = 20_000) -> dict[str, float]:
    """Cost of one span by the way it is noted."""
    trace = Trace()
    start = perf_counter()
    for _ in range(n_spans):
        with trace.span("compute"):
            pass
    around = (perf_counter() - start) / n_spans
    start = perf_counter()
    for _ in range(n_spans):
        trace.add(4, 1.0, 2.0, 0, 100)
    return {"around a body": around, "afterwards": (perf_counter() - start) / n_spans}


def seconds_of(timeline: np.ndarray, costs: dict[str, float]) -> float:
    """Cost of the spans of a fit: waits are noted afterwards, others around a body."""
    n_waits = int((timeline["kind"] == "wait").sum())
    n_others = len(timeline) - n_waits
    return n_waits * costs["afterwards"] + n_others * costs["around a body"]


def fit(kind: str, data: Any, n_ranks: int, n_rounds: int, max_spans: int) -> Any:
    """A fit of ranks that are threads, and how long it took."""
    cls, parameters = ESTIMATORS[kind]
    model = cls(max_iter=n_rounds, n_ranks=n_ranks, random_state=0, **parameters)
    with dask.config.set({"dask-ma.trace.max-spans": max_spans}):
        start = perf_counter()
        model.fit(*data)
    return model, perf_counter() - start


def main() -> None:
    """Print the cost of a span, and of the spans of some fits."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    costs = seconds_per_span()
    for way, cost in costs.items():
        print(f"a span noted {way}: {1e6 * cost:.2f} us")
    print(
        f"\n{'estimator':10} {'rows':>8} {'features':>8} {'ranks':>5} "
        f"{'spans/rank':>10} {'of the fit':>10} {'with (s)':>9} {'without':>9}"
    )
    for n_rows, n_features, n_ranks in SHAPES:
        data = make_sparse_classification(n_rows, n_features, random_state=0)[:2]
        for kind in ESTIMATORS:
            times: dict[int, list[float]] = {0: [], 100_000: []}
            for _ in range(options.repeats):
                for max_spans, found in times.items():
                    model, taken = fit(kind, data, n_ranks, options.rounds, max_spans)
                    found.append(taken)
                    if max_spans:
                        timeline = model.timeline_
            without, taken = (median(found) for found in times.values())
            # The ranks are threads of one process here: their costs add up.
            share = seconds_of(timeline, costs) / taken
            print(
                f"{kind:10} {n_rows:8} {n_features:8} {n_ranks:5} "
                f"{len(timeline) / n_ranks:10.0f} {share:10.2%} "
                f"{taken:9.3f} {without:9.3f}"
            )


if __name__ == "__main__":
    main()
