"""Parameters of a matrix factorization, as sent to every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_ma.kernels import hashed_uniform

_MOST_SUMS = 2**30  # bytes of normal equations at a time, over all ranks


@dataclass(frozen=True, kw_only=True)
class FactorizationParams:
    """Parameters of a factorization, under the names of the estimator.

    Parameters
    ----------
    n_users, n_items, n_ratings : int
        Sizes of the problem.
    seed : int
        Seed of the factors to begin with.
    """

    n_users: int
    n_items: int
    n_ratings: int
    n_components: int
    feedback: str
    solver: str
    alpha: float
    weighted_alpha: bool
    confidence: float
    fit_bias: bool
    eta0: float
    batch_size: int
    max_iter: int
    tol: float
    dtype: Any
    seed: int

    @property
    def has_bias(self) -> bool:
        """Whether users and items have biases."""
        return self.fit_bias and self.feedback == "explicit"

    @property
    def n_columns(self) -> int:
        """Columns of the factors: with biases, two more.

        A user is ``(bias, 1, factors)``, an item is ``(1, bias, factors)``; the product
        is the rating less the mean.
        """
        return self.n_components + 2 * self.has_bias

    @property
    def fixed_columns(self) -> tuple[int | None, int | None]:
        """Column of ones of the users, and that of the items."""
        return (1, 0) if self.has_bias else (None, None)

    @property
    def n_chunks(self) -> tuple[int, int]:
        """In how many rotations the users are solved for, and the items.

        Each user has a matrix of its own meanwhile; all of them need not fit.
        """
        if self.solver == "sgd":
            return 1, 1
        bytes_per_row = self.n_columns**2 * np.dtype(self.dtype).itemsize
        users, items = (
            -(-n * bytes_per_row // _MOST_SUMS) for n in (self.n_users, self.n_items)
        )
        return max(1, users), max(1, items)

    @property
    def rotations_per_round(self) -> int:
        """Rotations in which all users and all items change once."""
        return 1 if self.solver == "sgd" else sum(self.n_chunks)

    def initial_factors(self, parameters: np.ndarray, n_rated: np.ndarray) -> Any:
        """Factors of users or items to begin with, the same on any number of ranks.

        Parameters
        ----------
        parameters : ndarray of int64 of shape (k,)
            Users, or items counted on from them.
        n_rated : ndarray of shape (k,)
            Their ratings; without any, factors are 0.

        Returns
        -------
        factors : ndarray of shape (k, n_columns)
        """
        scale = 0.1 * np.sqrt(3 / self.n_components)
        factors = np.zeros((len(parameters), self.n_columns), dtype=self.dtype)
        drawn = hashed_uniform(self.seed, parameters, self.n_components) * scale
        first = self.n_columns - self.n_components
        factors[:, first:] = np.where(n_rated[:, np.newaxis] > 0, drawn, 0)
        if self.has_bias:
            is_item = parameters >= self.n_users
            factors[:, 0], factors[:, 1] = is_item, ~is_item
        return factors
