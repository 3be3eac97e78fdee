"""Speed and held-out errors of matrix factorization, next to other libraries.

To be run in the folder asv_bench:

    python -m peers.factorization --data DIR --sets movielens jester

DIR (or ``$DASK_MA_DATA``) holds ``ml_latest_small`` and ``jester5k``. On ratings a
tenth is held out, the same for all, and the root mean squared error on it is shown with
the processor time of the fit. ``spark`` compares the objective that alternating least
squares of Spark and these end with, both without biases and with the same penalty.
``ratings`` measures the processor time for each generated rating. ``processes``
compares the time of one worker process with that of two, by the clock for a round, and
by the processor of the busiest worker for a whole fit, which other programs disturb
less; by default on as many ratings, users and items as MovieLens 20M has:

    python -m peers.factorization --sets processes --solvers cg

All run on one core. Implicit feedback is in ``implicit_feedback.py``. Systems that are
not installed are left out with a message.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from dask_ma import SchMPMatrixFactorization

from ._solvers import PeerAbsentError, local_cluster, require, spark_session

SETS = ("movielens", "jester", "spark", "ratings", "processes")
SOLVERS = {
    "cg": {"als_solver": "cg"},
    "cholesky": {"als_solver": "cholesky"},
    "sgd": {"solver": "sgd"},
}


class Split(NamedTuple):
    """Ratings to train on, and those held out."""

    pairs: np.ndarray
    ratings: np.ndarray
    held_out: np.ndarray
    truth: np.ndarray
    n_components: int


Predict = Callable[[np.ndarray], np.ndarray]


# Data -------------------------------------------------------------------------------


def load_ratings(name: str, folder: Path) -> Split:
    """MovieLens or Jester, of which a tenth is held out."""
    if name == "movielens":
        path = folder / "ml_latest_small" / "ratings.csv.gz"
        users, items, values, _ = np.loadtxt(
            path, delimiter=",", skiprows=1, unpack=True
        )
        users, items = (
            np.unique(ids, return_inverse=True)[1] for ids in (users, items)
        )
        n_components = 32
    else:
        stored = np.load(folder / "jester5k" / "ratings.npz")
        users, items, values = (stored[key] for key in ("user", "item", "rating"))
        n_components = 16
    order = np.lexsort((items, users))
    pairs, values = np.column_stack([users, items])[order], values[order].astype(float)
    out = np.random.default_rng(0).random(len(values)) < 0.1
    return Split(pairs[~out], values[~out], pairs[out], values[out], n_components)


def generate(n_ratings: int, n_users: int, n_items: int) -> tuple[np.ndarray, Any]:
    """Ratings of popular and less popular items, by eager and less eager users."""
    rng = np.random.default_rng(0)
    columns = []
    for n, exponent in ((n_users, 0.6), (n_items, 0.8)):
        frequencies = np.arange(1, n + 1) ** -exponent
        columns.append(rng.choice(n, n_ratings, p=frequencies / frequencies.sum()))
    return np.column_stack(columns), rng.normal(3, 1, n_ratings)


# Systems on ratings -----------------------------------------------------------------


def run_dask_ma(split: Split, **params: Any) -> Predict:
    """This library, on one rank."""
    model = SchMPMatrixFactorization(
        **{"n_components": split.n_components, **params},
        n_ranks=1,
        random_state=0,
    )
    predict: Predict = model.fit(split.pairs, split.ratings).predict
    return predict


def run_surprise(split: Split, **params: Any) -> Predict:
    """SVD of Surprise: stochastic gradients with biases, rating by rating."""
    require("surprise", "pip install scikit-surprise")
    import surprise

    rows = [
        (int(user), int(item), float(value))
        for (user, item), value in zip(split.pairs, split.ratings, strict=True)
    ]
    import pandas as pd

    frame = pd.DataFrame(rows, columns=["user", "item", "rating"])
    scale = (split.ratings.min(), split.ratings.max())
    data = surprise.Dataset.load_from_df(frame, surprise.Reader(rating_scale=scale))
    model = surprise.SVD(n_factors=split.n_components, random_state=0, **params)
    model.fit(data.build_full_trainset())
    return lambda pairs: np.array([model.predict(u, i).est for u, i in pairs.tolist()])


def run_soft_impute(split: Split, shrinkage: float, n_rounds: int = 40) -> Predict:
    """Singular values of the filled matrix, made smaller (Mazumder, Hastie)."""
    n_users, n_items = np.vstack([split.pairs, split.held_out]).max(axis=0) + 1
    shape, places = (int(n_users), int(n_items)), tuple(split.pairs.T)
    mean = split.ratings.mean()
    counts = [np.bincount(places[side], minlength=shape[side]) for side in (0, 1)]
    biases = [np.zeros(n) for n in shape]
    for _ in range(10):
        for side in (0, 1):
            rest = split.ratings - mean - biases[1 - side][places[1 - side]]
            sums = np.bincount(places[side], rest, shape[side])
            biases[side] = sums / (counts[side] + 5)
    rest = split.ratings - mean - biases[0][places[0]] - biases[1][places[1]]
    rng, right = np.random.default_rng(0), np.zeros((shape[1], split.n_components))
    left = np.zeros((shape[0], split.n_components))
    basis = rng.normal(size=(shape[1], split.n_components))
    for _ in range(n_rounds):
        errors = rest - np.einsum("nf,nf->n", left[places[0]], right[places[1]])
        correction = sparse.csr_array((errors, places), shape=shape)
        image, _ = np.linalg.qr(correction @ basis + left @ (right.T @ basis))
        short = (correction.T @ image + right @ (left.T @ image)).T
        U, values, V = np.linalg.svd(short, full_matrices=False)
        left = (image @ U) * np.maximum(values - shrinkage, 0)
        right = basis = V.T
    return lambda pairs: (
        mean
        + biases[0][pairs[:, 0]]
        + biases[1][pairs[:, 1]]
        + np.einsum("nf,nf->n", left[pairs[:, 0]], right[pairs[:, 1]])
    )


def fit_spark(split: Split, penalty: float, n_rounds: int) -> Any:
    """Spark's model, which has no biases; a penalty counts once for each rating."""
    with spark_session() as session, tempfile.TemporaryDirectory() as folder:
        from pyspark.ml.recommendation import ALS

        # Without checkpoints each round adds to what a task is read from, by recursion.
        session.sparkContext.setCheckpointDir(folder)
        columns = [*split.pairs.astype(int).T.tolist(), split.ratings.tolist()]
        rows = session.createDataFrame(
            list(zip(*columns, strict=True)), ["user", "item", "rating"]
        )
        als = ALS(
            rank=split.n_components,
            maxIter=n_rounds,
            regParam=penalty,
            userCol="user",
            itemCol="item",
            ratingCol="rating",
            checkpointInterval=5,
            seed=0,
        )
        model = als.fit(rows)
        return [
            {row.id: np.array(row.features) for row in table.collect()}
            for table in (model.userFactors, model.itemFactors)
        ]


def run_spark(split: Split, penalty: float, n_rounds: int = 20) -> Predict:
    """Alternating least squares of Spark."""
    users, items = fit_spark(split, penalty, n_rounds)
    mean = split.ratings.mean()
    return lambda pairs: np.array(
        [
            users[u] @ items[i] if u in users and i in items else mean
            for u, i in pairs.astype(int).tolist()
        ]
    )


def compare_with_spark(name: str, folder: Path, n_rounds: int = 20) -> None:
    """The objective after as many rounds, with the same penalty."""
    split = load_ratings(name, folder)
    for penalty in (0.05, 0.1, 0.2):
        ours = SchMPMatrixFactorization(
            split.n_components,
            alpha=penalty,
            fit_bias=False,
            standardize=False,
            max_iter=n_rounds,
            tol=0,
            n_ranks=1,
            random_state=0,
        ).fit(split.pairs, split.ratings)
        theirs = fit_spark(split, penalty, n_rounds)
        places = [
            np.searchsorted(ids, column)
            for ids, column in zip(
                (ours.user_ids_, ours.item_ids_), split.pairs.T, strict=True
            )
        ]
        vectors = [
            np.array([table[int(one)] for one in ids])
            for table, ids in zip(theirs, (ours.user_ids_, ours.item_ids_), strict=True)
        ]
        values = [
            ratings_objective(split.ratings, places, each, penalty)
            for each in (vectors, (ours.user_factors_, ours.item_factors_))
        ]
        print(
            f"{name}, penalty {penalty}, {n_rounds} rounds: objective of Spark "
            f"{values[0]:.1f}, of dask_ma {values[1]:.1f}, ratio "
            f"{values[1] / values[0]:.4f}",
            flush=True,
        )


def ratings_objective(
    ratings: np.ndarray, places: Sequence[np.ndarray], vectors: Any, penalty: float
) -> float:
    """Squared errors, and the penalty of each user and item once for each rating."""
    left, right = (np.asarray(v)[p] for v, p in zip(vectors, places, strict=True))
    errors = ratings - np.einsum("nf,nf->n", left, right)
    return float((errors**2).sum() + penalty * ((left**2).sum() + (right**2).sum()))


def systems(name: str) -> list[tuple[str, Callable[..., Predict], dict[str, Any]]]:
    """All that are compared on ratings, with the settings tried."""
    sgd = {"solver": "sgd", "early_stopping": True, "max_iter": 60, "alpha": 0.05}
    tried: list[tuple[str, Callable[..., Predict], dict[str, Any]]] = [
        ("dask_ma", run_dask_ma, {}),
        ("dask_ma", run_dask_ma, {"als_solver": "cholesky"}),
        ("dask_ma", run_dask_ma, {"early_stopping": True}),
        ("dask_ma", run_dask_ma, sgd),
        ("surprise", run_surprise, {}),
        ("surprise", run_surprise, {"n_epochs": 30, "lr_all": 0.01, "reg_all": 0.1}),
        ("surprise", run_surprise, {"n_epochs": 10}),
    ]
    scales = (5.0, 10.0, 20.0) if name == "movielens" else (50.0, 100.0, 200.0)
    tried += [("soft-impute", run_soft_impute, {"shrinkage": s}) for s in scales]
    penalties = (0.1, 0.15, 0.2) if name == "movielens" else (0.2, 0.4, 0.8)
    tried += [("spark", run_spark, {"penalty": p}) for p in penalties]
    return tried


def compare_on_ratings(name: str, folder: Path) -> None:
    """One line for each system: processor time and held-out error."""
    split = load_ratings(name, folder)
    print(f"\n{name}: {len(split.ratings):,} ratings, {split.n_components} components")
    for system, run, params in systems(name):
        try:
            start = time.process_time()
            predict = run(split, **params)
            seconds = time.process_time() - start
        except PeerAbsentError as absent:
            print(f"{system} left out: {absent}", flush=True)
            continue
        low, high = split.ratings.min(), split.ratings.max()
        errors = np.clip(predict(split.held_out), low, high) - split.truth
        rmse = np.sqrt(np.mean(errors**2))
        shown = ", ".join(f"{key}={value}" for key, value in params.items())
        print(f"{seconds:8.2f} s  rmse {rmse:.4f}  {system} {shown}", flush=True)


# Speed ----------------------------------------------------------------------------


def measure_ratings(sizes: list[int]) -> None:
    """Processor time for each rating and round."""
    for solver in ("als", "sgd"):
        for n_ratings in sizes:
            pairs, ratings = generate(n_ratings, max(1000, n_ratings // 150), 5000)
            seconds = []
            for rounds in (1, 4):
                model = SchMPMatrixFactorization(
                    32, solver=solver, max_iter=rounds, tol=0, n_ranks=1, random_state=0
                )
                start = time.process_time()
                model.fit(pairs, ratings)
                seconds.append(time.process_time() - start)
            each = (seconds[1] - seconds[0]) / 3 / n_ratings
            once = seconds[0] / n_ratings - each
            print(
                f"{solver} {n_ratings:>12,} ratings: {each * 1e9:6.0f} ns for each and "
                f"round, {once * 1e9:6.0f} ns for each once",
                flush=True,
            )


def compare_processes(
    n_ratings: int, n_rounds: int, solvers: Sequence[str], repeats: int
) -> None:
    """Times of fits in one and in two worker processes, in turn."""
    pairs, ratings = generate(n_ratings, n_ratings // 145, n_ratings // 740)
    for solver in solvers:
        rounds: dict[int, list[float]] = {1: [], 2: []}
        busiest: dict[int, list[float]] = {1: [], 2: []}
        for n_workers in (1, 2) * repeats:
            with local_cluster(n_workers) as client:
                before = client.run(time.process_time)
                model = SchMPMatrixFactorization(
                    32, **SOLVERS[solver], max_iter=n_rounds, tol=0, random_state=0
                ).fit(pairs, ratings)
                after = client.run(time.process_time)
            spent = [after[worker] - before[worker] for worker in after]
            busiest[n_workers].append(max(spent))
            ends = [record["time"] for record in model.history_]
            rounds[n_workers] += np.diff(ends).tolist()
        for what, times in (
            ("a round, by the clock", rounds),
            ("a fit, processor of the busiest worker", busiest),
        ):
            one, two = (min(times[n]) for n in (1, 2))
            print(
                f"{solver}, {n_ratings:,} ratings, {n_rounds} rounds, {what}: "
                f"{one:.2f} s in one process, {two:.2f} s in two, "
                f"ratio {two / one:.2f}",
                flush=True,
            )


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--sets", nargs="+", choices=SETS, default=SETS)
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--rounds", type=int, default=4, help="of processes")
    add("--sizes", nargs="+", type=int, default=[10**5, 10**6, 10**7])
    add("--ratings", type=int, default=20_000_000, help="for processes")
    add("--solvers", nargs="+", choices=SOLVERS, default=list(SOLVERS))
    add("--repeats", type=int, default=2, help="fits for each number of processes")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        for name in options.sets:
            if name in ("movielens", "jester"):
                compare_on_ratings(name, Path(options.data))
            elif name == "spark":
                try:
                    compare_with_spark("movielens", Path(options.data))
                except PeerAbsentError as absent:
                    print(f"Spark left out: {absent}")
            elif name == "ratings":
                measure_ratings(options.sizes)
            else:
                compare_processes(
                    options.ratings, options.rounds, options.solvers, options.repeats
                )


# Worker processes import this file again.
if __name__ == "__main__":
    main()
