"""Matrix factorization: what a round and a recommendation cost."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SchMPMatrixFactorization

from . import parameterized

N_USERS, N_ITEMS = 5_000, 2_000


def make_ratings(n_ratings: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of users and items, some of which are much more frequent, and ratings."""
    rng = np.random.default_rng(seed)
    columns = []
    for n, exponent in ((N_USERS, 0.6), (N_ITEMS, 0.8)):
        frequencies = np.arange(1, n + 1) ** -exponent
        columns.append(rng.choice(n, n_ratings, p=frequencies / frequencies.sum()))
    return np.column_stack(columns), rng.normal(3, 1, n_ratings)


def fit(solver: str, n_ratings: int, max_iter: int) -> SchMPMatrixFactorization:
    """A fit of so many rounds."""
    model = SchMPMatrixFactorization(
        32, solver=solver, max_iter=max_iter, tol=0, n_ranks=1, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(*make_ratings(n_ratings))


@parameterized(solver=["als", "sgd"], n_ratings=[100_000, 1_000_000])
class Round:
    """Time of computing of a round, by its ratings."""

    def track_nanoseconds_per_rating(self, solver: str, n_ratings: int) -> float:
        history = fit(solver, n_ratings, 4).history_
        seconds = np.median([record["seconds_computing"] for record in history[1:]])
        return float(seconds) / n_ratings * 1e9


class Recommend:
    """The ten best items of users, without what they have rated."""

    def setup(self) -> None:
        self.model = fit("als", 100_000, 2)

    def time_all_users(self) -> None:
        self.model.recommend(n=10)
