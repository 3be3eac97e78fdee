"""Whole fits of the other estimators, each next to a program that users know.

To be run in the folder asv_bench:

    python -m peers.fits --data FOLDER
    python -m peers.fits --data FOLDER --only MPCAClassifier --pairs 5
    python -m peers.fits --data FOLDER --write ../docs/measured/fits.csv

FOLDER (or ``$DASK_MA_DATA``) holds ``imdb``, ``newsgroups20``, ``fashion_mnist`` and
``gene_expression``. All run on one core, one rank without a cluster. Fits take turns,
each with its own seed; the figures are medians of the processor's seconds, and of the
ratios of pairs. What a fit has reached stands beside its time, by one function for
both. Parameters are the defaults, but for those that make both solve one problem; they
are in the table. Systems that are not installed are left out with a message.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.decomposition import MiniBatchDictionaryLearning
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LassoCV, LogisticRegression, SGDClassifier
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from benchmarks._data import load_classification
from dask_ma import (
    ButterflySGDClassifier,
    MASGDClassifier,
    MPCAClassifier,
    SchMPLassoCV,
    SchMPLDA,
    SchMPLogisticRegression,
    SchMPMatrixFactorization,
    SFBDictionaryLearning,
    SFBLogisticRegression,
    SFBMetricLearner,
)

from . import dictionary, gibbs, implicit_feedback, metric, multiclass
from ._problem import Problem
from ._solvers import PeerAbsentError, require


class Contest(NamedTuple):
    """Two programs for one problem.

    Attributes
    ----------
    estimator, data, peer : str
        Words of the table.
    ours, theirs : callable
        Given a seed, fit and return something.
    judge : callable
        What it is worth.
    measure : str
        What that is.
    """

    estimator: str
    data: str
    peer: str
    ours: Callable[[int], Any]
    theirs: Callable[[int], Any]
    judge: Callable[[Any], float]
    measure: str


# Contests ---------------------------------------------------------------------------


def averaged(folder: Path) -> Contest:
    """Hinge loss on reviews."""
    problem = Problem(*load_classification(), alpha=1e-4)
    X, y = problem.features, problem.labels
    return Contest(
        "MASGDClassifier",
        "imdb, hinge, defaults",
        "SGDClassifier",
        lambda seed: MASGDClassifier(n_ranks=1, random_state=seed).fit(X, y),
        lambda seed: SGDClassifier(random_state=seed).fit(X, y),
        problem.objective_of,
        "objective",
    )


def mixed(folder: Path) -> Contest:
    """Logistic loss on reviews."""
    X, y = load_classification()

    def judge(model: Any) -> float:
        margins = y * (X @ model.coef_.ravel() + model.intercept_[0])
        norm = float(np.vdot(model.coef_, model.coef_))
        return float(np.logaddexp(0, -margins).mean()) + 0.5e-4 * norm

    return Contest(
        "ButterflySGDClassifier",
        "imdb, log_loss, defaults",
        "SGDClassifier",
        lambda seed: ButterflySGDClassifier(n_ranks=1, random_state=seed).fit(X, y),
        lambda seed: SGDClassifier("log_loss", random_state=seed).fit(X, y),
        judge,
        "objective",
    )


def factored(folder: Path) -> Contest:
    """Twenty classes of texts."""
    options = Namespace(data=folder, alpha=1e-4)
    problem = multiclass.load_problem("newsgroups20", options)
    X, y = problem.features, problem.labels
    peer = LogisticRegression(C=1 / (problem.alpha * len(y)), max_iter=1000)
    return Contest(
        "SFBLogisticRegression",
        "newsgroups20, alpha=1e-4",
        "LogisticRegression",
        lambda seed: SFBLogisticRegression(n_ranks=1, random_state=seed).fit(X, y),
        lambda seed: peer.fit(X, y),
        problem.objective_of,
        "objective",
    )


def scheduled(folder: Path) -> Contest:
    """A sparse model of reviews."""
    X, y = load_classification()
    alpha = 3e-4

    def judge(model: Any) -> float:
        margins = y * (X @ model.coef_.ravel() + np.ravel(model.intercept_)[0])
        norm = float(np.abs(model.coef_).sum())
        return float(np.logaddexp(0, -margins).mean()) + alpha * norm

    peer = LogisticRegression(l1_ratio=1, solver="liblinear", C=1 / (alpha * len(y)))
    return Contest(
        "SchMPLogisticRegression",
        f"imdb, alpha={alpha}",
        "LogisticRegression, liblinear",
        lambda seed: SchMPLogisticRegression(alpha, n_ranks=1).fit(X, y),
        lambda seed: peer.fit(X, y),
        judge,
        "objective",
    )


def path(folder: Path) -> Contest:
    """A path with cross-validation over genes."""
    stored = np.load(folder / "gene_expression" / "riboflavin.npz")
    X, y = (np.asarray(stored[name], np.float64) for name in ("X", "y"))
    return Contest(
        "SchMPLassoCV",
        "riboflavin, defaults",
        "LassoCV",
        lambda seed: SchMPLassoCV(n_ranks=1).fit(X, y),
        lambda seed: LassoCV().fit(X, y),
        lambda model: float(model.mse_path_.mean(axis=-1).min()),
        "squared error",
    )


def networks(folder: Path) -> Contest:
    """A network of images."""
    train, test = (metric.images(folder, name, 10_000) for name in ("train", "t10k"))
    shared: dict[str, Any] = {"max_iter": 5, "tol": 0}
    return Contest(
        "MPCAClassifier",
        "Fashion-MNIST, 10,000 rows, 5 epochs",
        "MLPClassifier",
        lambda seed: MPCAClassifier(**shared, n_ranks=1, random_state=seed).fit(*train),
        lambda seed: MLPClassifier(**shared, random_state=seed).fit(*train),
        lambda model: float(model.score(*test)),
        "accuracy",
    )


def factorized(folder: Path) -> Contest:
    """Words of reviews as implicit feedback."""
    require("implicit", "pip install implicit")
    from implicit.als import AlternatingLeastSquares
    from implicit.cpu._als import calculate_loss

    X = implicit_feedback.load_counts(folder)[:5000]
    weights = sparse.csr_matrix((X.data + 1, X.indices, X.indptr), shape=X.shape)
    shared: dict[str, Any] = {"alpha": 0.1, "max_iter": 5, "tol": 0, "n_ranks": 1}
    shared |= {"feedback": "implicit", "weighted_alpha": False, "als_solver": "cg"}

    def ours(seed: int) -> Any:
        model = SchMPMatrixFactorization(64, **shared, random_state=seed).fit(X)
        return model.user_factors_, model.item_factors_

    def theirs(seed: int) -> Any:
        model = AlternatingLeastSquares(
            64, regularization=0.1, iterations=5, num_threads=1, random_state=seed
        )
        model.fit(weights, show_progress=False)
        return model.user_factors, model.item_factors

    def judge(found: Any) -> float:
        both = (np.ascontiguousarray(each, np.float32) for each in found)
        return float(calculate_loss(weights, *both, 0.1, 1))

    return Contest(
        "SchMPMatrixFactorization",
        "imdb, 5,000 rows of counts, 64 components, cg, 5 rounds",
        "implicit",
        ours,
        theirs,
        judge,
        "loss",
    )


def sampled(folder: Path) -> Contest:
    """Topics of newsgroups by Gibbs sampling."""
    require("tomotopy", "pip install tomotopy")
    options = Namespace(
        corpus="newsgroups20",
        data=folder,
        documents=3000,
        components=50,
        seed=0,
        held_out=500,
    )
    options.alpha, options.beta = 0.1, 0.01
    X, test = gibbs.load(options)
    n_sweeps = 30

    def ours(seed: int) -> np.ndarray:
        model = SchMPLDA(
            50,
            doc_topic_prior=options.alpha,
            topic_word_prior=options.beta,
            max_iter=n_sweeps,
            n_ranks=1,
            random_state=seed,
        )
        return np.asarray(model.fit(X).components_)

    def theirs(seed: int) -> np.ndarray:
        chain = gibbs.Tomotopy(X, Namespace(**{**vars(options), "seed": seed}))
        for _ in range(n_sweeps):
            chain.sweep()
        return chain.counts().T + options.beta

    return Contest(
        "SchMPLDA",
        f"newsgroups20, 3,000 documents, 50 topics, {n_sweeps} sweeps",
        "tomotopy",
        ours,
        theirs,
        lambda components: gibbs.perplexity(components, test, options),
        "perplexity",
    )


def distances(folder: Path) -> Contest:
    """Distances of images by their labels."""
    train, test = (metric.images(folder, name, 3000) for name in ("train", "t10k"))
    return Contest(
        "SFBMetricLearner",
        "Fashion-MNIST, 3,000 rows to 50",
        "NCA, init='pca', max_iter=2",
        lambda seed: SFBMetricLearner(50, n_ranks=1, random_state=seed).fit(*train),
        lambda seed: NeighborhoodComponentsAnalysis(
            50, init="pca", max_iter=2, random_state=seed
        ).fit(*train),
        lambda model: metric.neighbours(model.components_, train, test),
        "accuracy of 3 neighbours",
    )


def atoms(folder: Path) -> Contest:
    """Atoms of pieces of images."""
    rows = dictionary.read_rows(folder, "fashion", 1024 + 2560 + 128)
    first = dictionary.first_atoms(rows, 128)
    held_out, train = rows[:1024], rows[1024:3584]
    shared: dict[str, Any] = {"alpha": dictionary.ALPHA, "dict_init": first, "tol": 0}
    shared |= {"max_iter": 1, "max_no_improvement": None, "batch_size": 256}
    double = train.astype(np.float64)

    def theirs(seed: int) -> Any:
        model = MiniBatchDictionaryLearning(
            128, fit_algorithm="cd", **shared, random_state=seed
        )
        return model.fit(double)

    return Contest(
        "SFBDictionaryLearning",
        "pieces of Fashion-MNIST, 2,560 rows, 128 atoms, one pass",
        "MiniBatchDictionaryLearning, cd",
        lambda seed: SFBDictionaryLearning(
            128, **shared, n_ranks=1, random_state=seed
        ).fit(train),
        theirs,
        lambda model: dictionary.best_objective(held_out, model.components_),
        "objective of other rows",
    )


CONTESTS: dict[str, Callable[[Path], Contest]] = {
    "MASGDClassifier": averaged,
    "ButterflySGDClassifier": mixed,
    "SFBLogisticRegression": factored,
    "SchMPLogisticRegression": scheduled,
    "SchMPLassoCV": path,
    "MPCAClassifier": networks,
    "SchMPMatrixFactorization": factorized,
    "SchMPLDA": sampled,
    "SFBMetricLearner": distances,
    "SFBDictionaryLearning": atoms,
}


# Measuring --------------------------------------------------------------------------


def timed(fit: Callable[[int], Any], seed: int) -> tuple[float, Any]:
    """Processor seconds of a fit, and what it returns."""
    start = time.process_time()
    found = fit(seed)
    return time.process_time() - start, found


def measure(contest: Contest, n_pairs: int) -> dict[str, Any]:
    """A line of the table: medians of pairs, after one pair that does not count."""
    seconds: tuple[list[float], list[float]] = ([], [])
    worth: tuple[list[float], list[float]] = ([], [])
    sides = contest.ours, contest.theirs
    for seed in range(-1, n_pairs):
        for k, fit in enumerate(sides):
            taken, found = timed(fit, max(seed, 0))
            if seed >= 0:
                seconds[k].append(taken)
                worth[k].append(contest.judge(found))
    ratio = median(b / a for a, b in zip(*seconds, strict=True))
    reached = " / ".join(f"{median(each):.5g}" for each in worth)
    return {
        "estimator": contest.estimator,
        "data": contest.data,
        "next to": contest.peer,
        "ours": f"{median(seconds[0]):.2g}",
        "theirs": f"{median(seconds[1]):.2g}",
        "theirs / ours": f"{ratio:.2g}",
        "reached": f"{contest.measure} {reached}",
    }


def lines(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure one contest after the other."""
    for name in options.only:
        try:
            contest = CONTESTS[name](Path(options.data))
        except PeerAbsentError as absent:
            print(f"{name} left out: {absent}", flush=True)
            continue
        row = measure(contest, options.pairs)
        print(" | ".join(row.values()), flush=True)
        yield row


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=os.environ.get("DASK_MA_DATA"))
    parser.add_argument("--only", nargs="+", choices=CONTESTS, default=list(CONTESTS))
    parser.add_argument("--pairs", type=int, default=3)
    add = parser.add_argument
    add("--write", type=Path, help="file for the table; rows of others are kept")
    options = parser.parse_args()
    if options.data is None:
        parser.error("give --data, or set DASK_MA_DATA")
    os.environ["DASK_MA_DATA"] = str(options.data)
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        rows = list(lines(options))
    if options.write is not None:
        write(rows, options.write)


def write(rows: list[dict[str, str]], path: Path) -> None:
    """Put rows into a table in which those of others stay."""
    table = {}
    if path.exists():
        with path.open(newline="") as file:
            table = {row["estimator"]: row for row in csv.DictReader(file)}
    table |= {row["estimator"]: row for row in rows}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table.values())


if __name__ == "__main__":
    main()
