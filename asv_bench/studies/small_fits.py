"""Does a fit of few rows suffer by a second process?

Every estimator is fitted with default parameters, but for those in the table, to little
data in the memory of the client, by one rank, by two and by as many as it chooses, on
two worker processes of one thread. Figures are the least seconds of the clock of the
fits after a first one of each.

    python small_fits.py
    python small_fits.py --only MALDA --fits 5
    python small_fits.py --write ../../docs/measured/small_fits.csv

Nothing else should run on the machine, which needs two cores.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import dask
import numpy as np
from scipy import sparse
from sklearn.datasets import load_digits, make_classification, make_regression
from sklearn.exceptions import ConvergenceWarning

# Worker processes import the package by this path as well.
sys.path.append(str(Path(__file__).parent.parent))

from peers._solvers import local_cluster  # noqa: E402

import dask_ma  # noqa: E402

HEADS = ("estimator", "data", "one rank", "two ranks", "n_ranks=None")
_CHOICES = (1, 2, None)


def digits() -> tuple[Any, ...]:
    """Images of digits, with values from 0 to 1."""
    X, y = load_digits(return_X_y=True)
    return X / 16, y


def classes(n_rows: int) -> tuple[Any, ...]:
    """Two classes in 50 columns."""
    data: tuple[Any, ...] = make_classification(
        n_rows, 50, n_informative=20, random_state=0
    )
    return data


def documents(n_rows: int) -> tuple[Any, ...]:
    """Counts of 500 words in documents of 60, by 20 topics."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(500, 0.05), 20)
    weights = rng.dirichlet(np.full(20, 0.1), n_rows) @ topics
    return (sparse.csr_matrix(rng.multinomial(60, weights)),)


def ratings(n_users: int) -> tuple[Any, ...]:
    """Ratings of a fourth as many items by users, one in fifty."""
    return (sparse.random(n_users, n_users // 4, 0.02, "csr", random_state=0),)


def targets(n_rows: int, n_columns: int) -> tuple[Any, ...]:
    """A regression by ten of the columns."""
    data: tuple[Any, ...] = make_regression(n_rows, n_columns, noise=10, random_state=0)
    return data


class Case(NamedTuple):
    """An estimator with its parameters, and what it is fitted to."""

    name: str
    words: str
    load: Callable[[], tuple[Any, ...]]
    parameters: dict[str, Any] = {}  # noqa: RUF012


_OF_CLASSES: dict[str, dict[str, Any]] = {
    "MASGDClassifier": {},
    "ButterflySGDClassifier": {},
    "SFBLogisticRegression": {},
    "SchMPLogisticRegression": {"alpha": 1e-3},
    "MPCAClassifier": {"max_iter": 5},
}
CASES = [
    Case(name, words, load, parameters)
    for name, parameters in _OF_CLASSES.items()
    for words, load in (
        ("1,797 x 64, ten classes", digits),
        ("20,000 x 50", lambda: classes(20_000)),
        ("200,000 x 50", lambda: classes(200_000)),
    )
] + [
    Case("SchMPLasso", "442 x 10", lambda: targets(442, 10)),
    Case("SchMPLassoCV", "442 x 10", lambda: targets(442, 10)),
    Case("MALDA", "500 documents", lambda: documents(500), {"n_components": 20}),
    Case("MALDA", "5,000 documents", lambda: documents(5_000), {"n_components": 20}),
    Case(
        "SchMPLDA",
        "500 documents, 20 rotations",
        lambda: documents(500),
        {"n_components": 20, "max_iter": 20},
    ),
    Case(
        "SchMPLDA",
        "5,000 documents, 20 rotations",
        lambda: documents(5_000),
        {"n_components": 20, "max_iter": 20},
    ),
    Case(
        "SchMPMatrixFactorization",
        "800 ratings",
        lambda: ratings(400),
        {"n_components": 8},
    ),
    Case(
        "SchMPMatrixFactorization",
        "80,000 ratings",
        lambda: ratings(4_000),
        {"n_components": 8},
    ),
]


def seconds_of(case: Case, data: tuple[Any, ...], n_ranks: int | None) -> float:
    """Seconds of one fit."""
    maker = getattr(dask_ma, case.name)
    parameters = dict(case.parameters)
    if "random_state" in maker().get_params():
        parameters["random_state"] = 0
    model = maker(n_ranks=n_ranks, **parameters)
    start = time.perf_counter()
    model.fit(*data)
    return time.perf_counter() - start


def measure(case: Case, n_fits: int) -> dict[str, str]:
    """A row of the table."""
    data = case.load()
    for n_ranks in _CHOICES[:2]:  # loads modules
        seconds_of(case, data, n_ranks)
    found = {n: min(seconds_of(case, data, n) for _ in range(n_fits)) for n in _CHOICES}
    values = (case.name, case.words, *(f"{found[n]:.2f}" for n in _CHOICES))
    return dict(zip(HEADS, values, strict=True))


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    names = list(dict.fromkeys(case.name for case in CASES))
    parser.add_argument("--only", nargs="+", default=names, choices=names)
    parser.add_argument("--fits", type=int, default=2)
    parser.add_argument("--write", type=Path, help="file for the table")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # few passes are asked for
    rows = []
    default = {"dask-ma.data.moved-rows": "512 MiB"}
    with dask.config.set(default), local_cluster(2) as client, client.as_current():
        for case in CASES:
            if case.name in args.only:
                rows.append(measure(case, args.fits))
                print("; ".join(rows[-1].values()), flush=True)
    if args.write:
        with args.write.open("w", newline="") as file:
            writer = csv.DictWriter(file, HEADS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
