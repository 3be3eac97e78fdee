"""The end of a fit: by the objective, or by ratings that are held out."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dask_ma.kernels import hashed_uniform
from dask_ma.schmp.factorization._params import FactorizationParams
from dask_ma.schmp.factorization._ratings import Ratings

_OTHER_NUMBERS = 1  # than those of the factors to begin with
_FIRST_ROUNDS = 5  # in which the objective has to fall little twice in a row
_NOTICEABLE = 0.01  # of the tolerance; falls that grow below it are rounding
_LEAST_R2 = 0.02  # below, nothing was learned yet; the first rounds may be so


class HeldOut(NamedTuple):
    """Held-out ratings of a home block of users and a visiting block of items.

    Attributes
    ----------
    users, items : ndarray of int of shape (n,)
        Places in the blocks.
    values, weights : ndarray of float64 of shape (n,)
        Ratings as they are fitted.
    """

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    weights: np.ndarray

    def loss(self, users: np.ndarray, items: np.ndarray) -> float:
        """Weighted squared errors with the factors of the blocks."""
        left, right = users.take(self.users, axis=0), items.take(self.items, axis=0)
        found = np.einsum("nf,nf->n", left, right, dtype=np.float64)
        return float(self.weights @ (self.values - found) ** 2)

    def loss_of_constant(self) -> float:
        """Weighted squared errors of predicting 0, which stands for the mean."""
        return float(self.weights @ self.values.astype(np.float64) ** 2)


def split_ratings(
    ratings: Ratings, params: FactorizationParams
) -> tuple[Ratings, Ratings]:
    """Those to train on and those held out, whichever rank has them.

    Which these are depends on the seed and on the pair alone.
    """
    if not params.early_stopping:
        return ratings, ratings.take(slice(0))
    pairs = ratings.users.astype(np.int64) * params.n_items
    pairs += ratings.items - params.n_users
    numbers = hashed_uniform(params.seed + _OTHER_NUMBERS, pairs, 1)[:, 0]
    is_out = (numbers + 1) / 2 < params.validation_fraction
    return ratings.take(np.flatnonzero(~is_out)), ratings.take(np.flatnonzero(is_out))


def has_settled(objectives: list[float], tol: float, *, is_cold: bool) -> bool:
    """Whether the objective falls by no more than a part of itself, nor falls faster.

    From small random factors rounds begin near a saddle: the biases settle first, and
    the objective falls little until the factors have grown.
    """
    if len(objectives) < 2:
        return False
    falls = [(a - b) / a if a > 0 else 0.0 for a, b in pairwise(objectives[-3:])]
    if objectives[-1] <= 0:
        return True
    if falls[-1] > tol:
        return False
    if not is_cold or len(falls) < 2:
        return True
    is_early = len(objectives) <= _FIRST_ROUNDS
    is_faster = falls[-1] > max(falls[-2], _NOTICEABLE * tol)
    return not is_faster and not (is_early and falls[-2] > tol)


def has_stopped_improving(records: list[dict[str, Any]], tol: float, n: int) -> bool:
    """Whether held-out errors, once better than a constant's, have not fallen further.

    From small random factors steps begin near a saddle: the biases settle, and errors
    that were held out may rise for some rounds before the factors begin to grow.
    """
    best, since = np.inf, 0
    for record in records:
        error = record["validation_rmse"]
        is_better = np.isinf(best) or error < best * (1 - tol)
        since = 0 if is_better else since + 1
        best = min(best, error)
    return since >= n and not learned_nothing(records)


def learned_nothing(records: list[dict[str, Any]]) -> bool:
    """Whether no round predicts held-out ratings better than a constant does."""
    found = [r["validation_r2"] for r in records if "validation_r2" in r]
    return bool(found) and max(found) < _LEAST_R2


def shortfall_of(estimator: Any, has_converged: bool) -> str | None:
    """What keeps a fit from its optimum, and the cure; None for nothing."""
    if learned_nothing(estimator.history_):
        smaller = ", a smaller eta0" if estimator.solver == "sgd" else ""
        return (
            "no round predicts the held-out ratings better than a constant does "
            f"(validation_r2 in history_); try another alpha{smaller}, or a larger "
            "max_iter"
        )
    if has_converged:
        return None
    return (
        f"the maximum of {estimator.max_iter} rounds was reached while the "
        f"{'held-out error' if estimator.early_stopping else 'objective'} still "
        f"fell by more than tol={estimator.tol} of itself; raise max_iter or tol"
    )
