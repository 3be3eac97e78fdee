"""How much memory data of the client cost, by ranks and by where the rows lie.

To be run in the folder asv_bench:

    python -m peers.memory
    python -m peers.memory --write ../docs/measured/memory.csv    the table of the pages

Peaks of the resident memory while something is done, above what the process had before;
in megabytes, on Linux. The scheduler of the cluster lives in the client's process.
"""

from __future__ import annotations

import argparse
import csv
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dask.distributed import Client, LocalCluster
from scipy import sparse
from sklearn.linear_model import SGDClassifier

from benchmarks._data import load_classification, peak_rss, persist, reset_peak_rss
from dask_ma import MASGDClassifier

MEGABYTE = 1e6


class Case(NamedTuple):
    """Something that is done with the data, and what it took, in bytes.

    Attributes
    ----------
    name : str
    client : int
        Peak of this process.
    workers : int
        Peaks of all worker processes, added up.
    """

    name: str
    client: int
    workers: int


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=230_000)
    parser.add_argument("--columns", type=int, default=20_000)
    parser.add_argument("--nonzeros", type=int, default=33, help="per row")
    parser.add_argument("--write", type=Path, help="file for the table, CSV")
    return parser.parse_args()


def nbytes(X: sparse.csr_matrix) -> int:
    """Size of a CSR matrix."""
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes)


@contextmanager
def two_processes() -> Iterator[Client]:
    """Client of two worker processes that have loaded the library."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        X, y = load_classification(1000, 100)
        classifier().fit(X, y)
        classifier().fit(*persist(X, y, client))
        yield client


def classifier(n_ranks: int | None = None) -> MASGDClassifier:
    """Two passes over the rows."""
    return MASGDClassifier(max_iter=2, tol=None, n_ranks=n_ranks, random_state=0)


def measure(name: str, action: Callable[[], Any], client: Client | None = None) -> Case:
    """Do something and note how far the memory rises meanwhile."""
    gc.collect()
    before = reset_peak_rss()
    there = {} if client is None else client.run(_reset)
    kept = action()
    workers = 0
    if client is not None:
        peaks = client.run(peak_rss)
        workers = sum(peaks[address] - there[address] for address in there)
    case = Case(name, peak_rss() - before, workers)
    del kept
    print(f"{name:<48}{case.client / MEGABYTE:>8.0f}{case.workers / MEGABYTE:>8.0f}")
    sys.stdout.flush()
    return case


def _reset() -> int:
    """On a worker: forget the peak so far, give the resident memory."""
    gc.collect()
    return reset_peak_rss()


def measure_all(X: sparse.csr_matrix, y: Any) -> list[Case]:
    """All cases, first those of this process."""
    SGDClassifier().fit(X[:1000], y[:1000])
    classifier(n_ranks=2).fit(X[:1000], y[:1000])
    theirs = SGDClassifier(max_iter=2, tol=None, random_state=0)
    cases = [
        measure("scikit-learn's SGDClassifier", lambda: theirs.fit(X, y)),
        measure("no client, 1 rank", lambda: classifier().fit(X, y)),
        measure("no client, 2 ranks", lambda: classifier(n_ranks=2).fit(X, y)),
    ]
    with two_processes() as client:
        for name in ("first fit", "second fit"):
            cases.append(
                measure(
                    f"2 worker processes, rows of the client, {name}",
                    lambda: classifier().fit(X, y),
                    client,
                )
            )
        there: list[Any] = []
        cases.append(
            measure(
                "2 worker processes, rows made a Dask array",
                lambda: there.extend(persist(X, y, client)),
                client,
            )
        )
        for name in ("first fit", "second fit"):
            cases.append(
                measure(
                    f"2 worker processes, Dask array, {name}",
                    lambda: classifier().fit(*there),
                    client,
                )
            )
    return cases


def write(cases: list[Case], size: int, path: Path) -> None:
    """The table as CSV, sizes in MB and as multiples of the data."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["", "client", "workers together"])
        for case in cases:
            cells = (case.client, case.workers)
            writer.writerow(
                [case.name, *(f"{n / MEGABYTE:.0f} ({n / size:.1f})" for n in cells)]
            )


def main() -> None:
    """Measure, print the table, write it if asked to."""
    options = parse_arguments()
    X, y = load_classification(options.rows, options.columns, options.nonzeros)
    size = nbytes(X)
    print(f"{X.shape[0]:,} rows, {X.nnz:,} non-zeros, {size / MEGABYTE:.0f} MB as CSR")
    print(f"{'MB at most, above what there was':<48}{'client':>8}{'workers':>8}")
    cases = measure_all(X, y)
    if options.write:
        write(cases, size, options.write)


# Worker processes import this file again.
if __name__ == "__main__":
    main()
