"""Matrix factorization of implicit feedback next to the library ``implicit``.

To be run in the folder asv_bench:

    python -m peers.implicit_feedback --data DIR

DIR (or ``$DASK_MA_DATA``) holds ``imdb``, whose words without stop words are counts,
``ml_latest_small`` and ``jester5k``. ``rounds`` compares a round of alternating least
squares, by conjugate gradients on imdb and MovieLens and exact on Jester, one of each
in turn, and the losses that both end with; ``recommend`` the ten best items of imdb for
2,000 users, by the same factors; ``processes`` a round in one and in two worker
processes, by the clock. All but the last are processor times of one core.
"""

from __future__ import annotations

import argparse
import gzip
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from dask_ma import SchMPMatrixFactorization

from ._solvers import PeerAbsentError, local_cluster, require
from .factorization import load_ratings

PARTS = ("rounds", "recommend", "processes")
PENALTY = 0.1
PARAMS: dict[str, Any] = {
    "feedback": "implicit",
    "alpha": PENALTY,
    "weighted_alpha": False,
    "tol": 0,
    "random_state": 0,
}


def load_counts(folder: Path) -> sparse.csr_array:
    """How often documents have words."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    X = sparse.csr_matrix(sparse.load_npz(folder / "imdb" / "X_train.npz"))
    with gzip.open(folder / "imdb" / "vocab.txt.gz", "rt", encoding="utf-8") as file:
        words = file.read().split()
    X = X[:, [word not in ENGLISH_STOP_WORDS for word in words]]
    return sparse.csr_array(X[np.diff(X.indptr) > 0]).astype(np.float32)


def load_matrix(name: str, folder: Path) -> sparse.csr_array:
    """Ratings as if they were counts: each a reason to recommend what has it."""
    pairs, ratings = load_ratings(name, folder)[:2]
    ids = [np.unique(column, return_inverse=True)[1] for column in pairs.T]
    X = sparse.csr_array((ratings - ratings.min() + 1, tuple(ids)), dtype=np.float32)
    return X


def confidence(X: sparse.csr_array) -> sparse.csr_matrix:
    """The same weights for ``implicit``, which wants 1 more than a count."""
    return sparse.csr_matrix((X.data + 1, X.indices, X.indptr), shape=X.shape)


def compare_rounds(
    label: str, X: sparse.csr_array, n_components: int, method: str, n_rounds: int
) -> None:
    """Processor time of a round of each, in turn, and the losses at the end."""
    from implicit.cpu import _als as als

    weights = confidence(X)
    other = weights.T.tocsr()
    rng = np.random.default_rng(0)
    users, items = (
        (0.01 * rng.random((n, n_components))).astype(np.float32) for n in X.shape
    )

    def improve(rows: Any, own: np.ndarray, others: np.ndarray) -> None:
        if method == "cg":
            als.least_squares_cg(rows, own, others, PENALTY, 1, 3)
        else:
            als.least_squares(rows, own, others, PENALTY, 1)

    theirs, ours = [], []
    for done in range(n_rounds):
        start = time.process_time()
        improve(weights, users, items)
        improve(other, items, users)
        theirs.append(time.process_time() - start)
        model = SchMPMatrixFactorization(
            n_components, als_solver=method, max_iter=done + 1, n_ranks=1, **PARAMS
        )
        start = time.process_time()
        model.fit(X)
        ours.append(time.process_time() - start)
    # The fits have 1 to n rounds, and what comes before and after them.
    per_round = np.median(np.diff(ours))
    found = model.user_factors_, model.item_factors_
    losses = [
        als.calculate_loss(
            weights, *(np.ascontiguousarray(f) for f in both), PENALTY, 1
        )
        for both in ((users, items), found)
    ]
    print(
        f"{label}, {X.shape[0]:,} x {X.shape[1]:,}, {X.nnz:,} counts, {n_components} "
        f"components, {method}: implicit {np.median(theirs):.3f} s a round, dask_ma "
        f"{per_round:.3f} s, ratio {per_round / np.median(theirs):.2f}; loss after "
        f"{n_rounds} rounds {losses[0]:.6f} and {losses[1]:.6f}",
        flush=True,
    )


def compare_recommendations(
    X: sparse.csr_array, n_components: int, n_users: int, repeats: int
) -> None:
    """Processor time for each user, in turn, by the same factors."""
    from implicit.als import AlternatingLeastSquares

    ours = SchMPMatrixFactorization(
        n_components, als_solver="cg", max_iter=3, n_ranks=1, **PARAMS
    ).fit(X)
    theirs = AlternatingLeastSquares(n_components, num_threads=1)
    theirs.user_factors = np.ascontiguousarray(ours.user_factors_)
    theirs.item_factors = np.ascontiguousarray(ours.item_factors_)
    users = ours.user_ids_[:n_users]
    seen = sparse.csr_matrix(X)[:n_users]
    times: dict[str, list[float]] = {"implicit": [], "dask_ma": []}
    for _ in range(repeats):
        start = time.process_time()
        expected = theirs.recommend(np.arange(n_users), seen, N=10)[0]
        times["implicit"].append(time.process_time() - start)
        start = time.process_time()
        found = ours.recommend(users, n=10)[0]
        times["dask_ma"].append(time.process_time() - start)
    each = {name: np.median(t) / n_users * 1e6 for name, t in times.items()}
    alike = np.mean(ours.item_ids_[expected] == found)
    print(
        f"ten of {X.shape[1]:,} items for {n_users:,} users, {n_components} "
        f"components: implicit {each['implicit']:.0f} us a user, dask_ma "
        f"{each['dask_ma']:.0f}, ratio {each['dask_ma'] / each['implicit']:.2f}; "
        f"{alike:.1%} of the answers alike",
        flush=True,
    )


def compare_processes(
    X: sparse.csr_array, n_components: int, n_rounds: int, repeats: int
) -> None:
    """A round in one and in two worker processes, by the clock."""
    rounds: dict[int, list[float]] = {1: [], 2: []}
    for n_workers in (1, 2) * repeats:
        with local_cluster(n_workers):
            model = SchMPMatrixFactorization(
                n_components, als_solver="cg", max_iter=n_rounds, **PARAMS
            ).fit(X)
        rounds[n_workers] += np.diff([r["time"] for r in model.history_]).tolist()
    one, two = (np.median(rounds[n]) for n in (1, 2))
    print(
        f"imdb, cg, {n_components} components, a round: {one:.2f} s in one process, "
        f"{two:.2f} s in two, ratio {two / one:.2f}",
        flush=True,
    )


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS)
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--components", type=int, default=64)
    add("--rounds", type=int, default=5)
    add("--repeats", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    if options.data is None:
        parser.error("--data is wanted, or DASK_MA_DATA in the environment")
    folder = Path(options.data)
    n, rounds = options.components, options.rounds
    with threadpool_limits(1):
        counts = load_counts(folder)
        if "processes" in options.parts:
            compare_processes(counts, n, rounds, options.repeats)
        try:
            require("implicit", "pip install implicit")
        except PeerAbsentError as absent:
            print(f"implicit left out: {absent}")
            return
        if "rounds" in options.parts:
            compare_rounds("imdb", counts, n, "cg", rounds)
            movies = load_matrix("movielens", folder)
            compare_rounds("MovieLens", movies, n, "cg", rounds)
            jokes = load_matrix("jester", folder)
            compare_rounds("Jester", jokes, n // 2, "cholesky", rounds)
        if "recommend" in options.parts:
            compare_recommendations(counts, n, 2000, options.repeats)


# Worker processes import this file again.
if __name__ == "__main__":
    main()
