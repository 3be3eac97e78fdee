"""What does a second worker process bring? Whole fits, and the time to an objective.

Every estimator is fitted with default parameters, but for those in the table, by one
rank to rows that lie with one worker process of one thread, and to the same rows with
two. There is a rank for each process then, or one where the estimator knows that two
take longer; with ``--all`` there are two in any case. Both take turns, with a seed for
each turn, on the same two processes: another cluster would take a twentieth of a core
for itself, which one rank has to spare and two have not. Figures are medians of seconds
of the clock and of the ratios of pairs. Where a target is named, the time is that until
the objective (or the loss) of all rows is there, in a straight line between the records
before and after, with the way to the first record; else that of the whole fit.

    python two_processes.py --data FOLDER
    python two_processes.py --data FOLDER --only MPCAClassifier --pairs 7
    python two_processes.py --data FOLDER --bind
    python two_processes.py --data FOLDER --write ../../docs/measured/two_processes.csv

FOLDER (or ``$DASK_MA_DATA``) holds ``imdb``, ``newsgroups20`` and ``fashion_mnist``.
Nothing else should run on the machine, which needs two cores.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfTransformer

# Worker processes import the package by this path as well.
sys.path.append(str(Path(__file__).parent.parent))

from mpca_strategies import load_images  # noqa: E402
from peers._solvers import local_cluster  # noqa: E402
from peers._sparse_solvers import make_correlated  # noqa: E402

import dask_ma  # noqa: E402
from benchmarks._binding import bind_workers  # noqa: E402
from benchmarks._data import load_classification, persist  # noqa: E402

HEADS = ("estimator", "data", "until", "one [s]", "two [s]", "two / one", "reached")


class Case(NamedTuple):
    """An estimator, and what it is fitted to.

    Attributes
    ----------
    name, data : str
        Words of the table.
    parameters : dict
        Those that are not the defaults.
    load : callable
        Given the folder: features, and targets or None.
    key : str
        What a record of the history says of the model.
    target : float or None
        What it has to come down to; None for the whole fit.
    """

    name: str
    data: str
    parameters: dict[str, Any]
    load: Callable[[Path], tuple[Any, Any]]
    key: str
    target: float | None = None


def reviews(folder: Path) -> tuple[Any, Any]:
    """Reviews of films, weighted by tf-idf, and whether they praise them."""
    os.environ["DASK_MA_DATA"] = str(folder)
    return load_classification()


def words(folder: Path) -> tuple[Any, None]:
    """Counts of the words of the same reviews."""
    return sparse.load_npz(folder / "imdb" / "X_train.npz").tocsr(), None


def newsgroups(folder: Path) -> tuple[Any, Any]:
    """Posts, weighted by tf-idf, and their groups."""
    counts = sparse.load_npz(folder / "newsgroups20" / "X_train.npz")
    X = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    return X.tocsr(), np.load(folder / "newsgroups20" / "y_train.npy")


def images(folder: Path) -> tuple[Any, Any]:
    """Grey values of images, and kinds of clothes."""
    found = load_images(folder)
    return found.X, found.y


def columns(folder: Path) -> tuple[Any, Any]:
    """Dense columns in correlated blocks, and what a few of them make."""
    problem = make_correlated(463, 100_000)
    return problem.features, problem.targets


def pairs_of_words(folder: Path) -> tuple[Any, Any]:
    """A document and a word in each row, and how often it is there."""
    found = sparse.load_npz(folder / "imdb" / "X_train.npz").tocoo()
    return np.column_stack([found.row, found.col]), found.data.astype(np.float64)


CASES = (
    Case(
        "MASGDClassifier",
        "imdb",
        {},
        reviews,
        "objective",
    ),
    Case(
        "ButterflySGDClassifier",
        "imdb, log_loss, alpha=1e-5",
        {"alpha": 1e-5},
        reviews,
        "objective",
        0.2283,
    ),
    Case(
        "MPCAClassifier",
        "Fashion-MNIST, (256, 128), 12 epochs",
        {"hidden_layer_sizes": (256, 128), "max_iter": 12, "tol": None},
        images,
        "loss",
        0.25,
    ),
    Case(
        "MPCAClassifier",
        "imdb, 5 epochs",
        {"max_iter": 5, "tol": None},
        reviews,
        "loss",
        0.1,
    ),
    Case(
        "SFBLogisticRegression",
        "newsgroups20, alpha=1e-4",
        {"alpha": 1e-4},
        newsgroups,
        "objective",
    ),
    Case(
        "SchMPLasso",
        "463 x 100,000, alpha=0.02",
        {"alpha": 0.02},
        columns,
        "objective",
    ),
    Case("MALDA", "imdb, 10 topics, 2 passes", {"max_iter": 2}, words, "perplexity"),
    Case(
        "SchMPLDA",
        "imdb, 100 topics, 5 sweeps",
        {"n_components": 100, "max_iter": 5},
        words,
        "objective",
    ),
    Case(
        "SchMPMatrixFactorization",
        "imdb, 64 components, 2 rounds",
        {"n_components": 64, "max_iter": 2},
        pairs_of_words,
        "objective",
    ),
    Case(
        "SFBMetricLearner",
        "Fashion-MNIST, 50 components",
        {"n_components": 50},
        images,
        "objective",
    ),
    Case(
        "SFBDictionaryLearning",
        "Fashion-MNIST, 128 atoms, 1 whole pass",
        # Else fits end within it, one process after half of it and two at its end.
        {"n_components": 128, "max_iter": 1, "tol": 0.0, "max_no_improvement": None},
        images,
        "objective",
    ),
)


def seconds_to(history: list[dict[str, Any]], key: str, target: float) -> float:
    """Seconds of a fit until a record is at the target; infinite if none is."""
    before = None
    for record in history:
        if record[key] <= target:
            if before is None or before[key] <= target:
                return float(record["time"])
            share = (before[key] - target) / (before[key] - record[key])
            return float(before["time"] + share * (record["time"] - before["time"]))
        before = record
    return float("inf")


def fit(case: Case, data: Any, seed: int, n_ranks: int | None) -> tuple[float, float]:
    """Seconds of a fit, and what it has reached."""
    maker = getattr(dask_ma, case.name)
    parameters = dict(case.parameters, n_ranks=n_ranks)
    if "random_state" in maker().get_params():
        parameters["random_state"] = seed
    start = time.perf_counter()
    model = maker(**parameters).fit(*data)
    seconds = time.perf_counter() - start
    history = [record for record in model.history_ if case.key in record]
    if case.target is not None:
        seconds = seconds_to(history, case.key, case.target)
    return seconds, float(history[-1][case.key]) if history else float("nan")


def place(data: Any, client: Any, n_processes: int) -> list[da.Array]:
    """The rows in the memory of some workers, a block for each."""
    X, y = data
    if y is None:
        return [persist(X, np.zeros(X.shape[0]), client, n_processes)[0]]
    return list(persist(X, y, client, n_processes))


def measure(
    case: Case, folder: Path, n_pairs: int, *, is_bound: bool
) -> dict[str, str]:
    """A row of the table."""
    data = case.load(folder)
    found: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    with local_cluster(2) as client:
        if is_bound:
            bind_workers(client)
        placed = {n: place(data, client, n) for n in found}
        for turn in range(n_pairs + 1):
            for n, results in found.items():
                result = fit(case, placed[n], turn, 1 if n == 1 else None)
                if turn:  # the first loads modules
                    results.append(result)
    times = [[seconds for seconds, _ in found[n]] for n in (1, 2)]
    reached = [median(value for _, value in found[n]) for n in (1, 2)]
    ratios = [second / first for first, second in zip(*times, strict=True)]
    until = "the end" if case.target is None else f"{case.key} {case.target:g}"
    values = (
        case.name,
        case.data,
        until,
        f"{median(times[0]):.3g}",
        f"{median(times[1]):.3g}",
        f"{median(ratios):.2f}",
        f"{reached[0]:.5g} / {reached[1]:.5g}",
    )
    return dict(zip(HEADS, values, strict=True))


def choice_of_ranks(takes_all: bool) -> dict[str, str | int]:
    """Configuration of fits on a rank for each process, or on as many as pay."""
    return {"dask-ma.data.moved-rows": 0 if takes_all else "512 MiB"}


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    names = list(dict.fromkeys(case.name for case in CASES))
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"), help="folder")
    add("--only", nargs="+", default=names, choices=names)
    add("--pairs", type=int, default=5)
    add("--bind", action="store_true", help="each process to a processor (Linux)")
    add("--all", action="store_true", help="a rank for each process in any case")
    add("--write", type=Path, help="file for the table; rows of others are kept")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # few passes are asked for
    rows = []
    with dask.config.set(choice_of_ranks(args.all)):
        for case in CASES:
            if case.name in args.only:
                rows.append(measure(case, args.data, args.pairs, is_bound=args.bind))
                print("; ".join(rows[-1].values()), flush=True)
    if args.write:
        write(rows, args.write)


def write(rows: list[dict[str, str]], path: Path) -> None:
    """Put rows into a table in which other estimators stay."""
    known = {}
    if path.exists():
        with path.open(newline="") as file:
            known = {key_of(row): row for row in csv.DictReader(file)}
    known |= {key_of(row): row for row in rows}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, HEADS, lineterminator="\n")
        writer.writeheader()
        keys = [(case.name, case.data) for case in CASES]
        writer.writerows(known[key] for key in keys if key in known)


def key_of(row: dict[str, str]) -> tuple[str, str]:
    """Which case a row of the table is of."""
    return row[HEADS[0]], row[HEADS[1]]


if __name__ == "__main__":
    main()
