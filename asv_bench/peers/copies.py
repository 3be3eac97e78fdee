"""How much memory a fit of each estimator takes on workers, by the kind of rows.

To be run in the folder asv_bench:

    python -m peers.copies
    python -m peers.copies --write ../docs/measured/copies.csv    the table of the pages

Peaks of the resident memory of two worker processes during a fit to rows of the client,
above what they had before, as multiples of the rows that they get; on Linux. What a fit
needs whatever the rows are, such as the matrices of a batch, counts as well: it weighs
less where there are more rows.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from dask.distributed import Client, LocalCluster
from scipy import sparse

from benchmarks._data import peak_rss
from dask_ma import (
    MALDA,
    ButterflySGDClassifier,
    MASGDClassifier,
    MPCAClassifier,
    SchMPLasso,
    SchMPLDA,
    SFBDictionaryLearning,
    SFBLogisticRegression,
    SFBMetricLearner,
)

from .memory import _reset

MEGABYTE = 1e6
_SHORT = {"max_iter": 1, "tol": None, "random_state": 0}
_TOPICS = {"n_components": 3, "max_iter": 1, "random_state": 0}
ESTIMATORS: dict[str, Callable[[], Any]] = {
    "MASGDClassifier": lambda: MASGDClassifier(**_SHORT),
    "ButterflySGDClassifier": lambda: ButterflySGDClassifier(**_SHORT),
    "SFBLogisticRegression": lambda: SFBLogisticRegression(**_SHORT),
    "MPCAClassifier": lambda: MPCAClassifier((4,), batch_size=2000, **_SHORT),
    "SchMPLasso": lambda: SchMPLasso(0.05, max_iter=1),
    "SchMPLasso, cyclic": lambda: SchMPLasso(0.05, max_iter=1, schedule="cyclic"),
    "MALDA": lambda: MALDA(**_TOPICS, max_doc_update_iter=1),
    "SchMPLDA": lambda: SchMPLDA(**_TOPICS),
    "SFBMetricLearner": lambda: SFBMetricLearner(2, max_iter=1, random_state=0),
    "SFBDictionaryLearning": lambda: SFBDictionaryLearning(
        8, max_iter=1, random_state=0
    ),
}
# Whose memory is that of the tokens, or of a matrix for all columns, on such rows.
LEFT_OUT = {
    "CSR": ("SFBMetricLearner", "SFBDictionaryLearning"),
    "NumPy": ("SchMPLDA", "SchMPLasso, cyclic"),
}


def make_rows(megabytes: float) -> dict[str, Any]:
    """Counts that are whole numbers, as CSR and as a full NumPy array."""
    rng = np.random.default_rng(0)
    per_row, columns = 75, 50_000
    n = int(megabytes * MEGABYTE / (12 * per_row))
    step = columns // per_row
    places = rng.integers(0, step, (n, per_row)) + np.arange(per_row) * step
    values = np.ceil(3 * rng.random(n * per_row))
    indptr = np.arange(0, n * per_row + 1, per_row, dtype=np.int32)
    stored = sparse.csr_matrix(
        (values, places.astype(np.int32).ravel(), indptr), shape=(n, columns)
    )
    dense = np.ceil(3 * rng.random((int(megabytes * MEGABYTE / 1600), 200)))
    return {"CSR": stored, "NumPy": dense}


def nbytes(X: Any) -> int:
    """Size of the rows."""
    if not sparse.issparse(X):
        return int(X.nbytes)
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes)


def fit(make: Callable[[], Any], X: Any) -> None:
    """Fit to the rows, with targets of no meaning."""
    y = np.random.default_rng(1).integers(0, 2, X.shape[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make().fit(X, y)


def measure(make: Callable[[], Any], X: Any, client: Client) -> float:
    """Largest growth of a worker, as a multiple of the rows that it gets."""
    fit(make, X[:200])  # loads what it needs
    before = client.run(_reset)
    fit(make, X)
    grown = [peak - before[address] for address, peak in client.run(peak_rss).items()]
    return max(grown) * len(grown) / nbytes(X)


def main() -> None:
    """Measure, print the table, write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=400)
    parser.add_argument("--only", nargs="+", default=list(ESTIMATORS))
    parser.add_argument("--kinds", nargs="+", default=["CSR", "NumPy"])
    parser.add_argument("--write", type=Path, help="file for the table, CSV")
    options = parser.parse_args()
    made = make_rows(options.megabytes)
    kinds = {kind: made.pop(kind) for kind in options.kinds}
    made.clear()
    table = [["", *kinds]]
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        for name in options.only:
            cells = [
                ""
                if name in LEFT_OUT[kind]
                else f"{measure(ESTIMATORS[name], X, client):.2f}"
                for kind, X in kinds.items()
            ]
            table.append([name, *cells])
            print("".join(f"{cell:<26}" for cell in table[-1]), flush=True)
    if options.write:
        with options.write.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)


# Worker processes import this file again.
if __name__ == "__main__":
    main()
