"""Parameters of a matrix factorization, as sent to every rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dask_ma.kernels import hashed_uniform

_MOST_SUMS = 2**30  # bytes of normal equations at a time, over all ranks
_MOST_COLLECTED = 2**26  # bytes of a side that a rank may hold as a whole
_DRAWN = 2**14  # factors to begin with that are drawn at a time
# Nanoseconds, of one core, by which the way to solve is chosen.
_GEMM = 0.06  # a rating and two components, of the product of its factors
_ROW, _FACTORIZE = 8_000, 0.02  # a row, and three components of its factorization
_PASS = 0.5  # a rating and a component, each time it is gone over
_WORTH = 2.5  # rounds that are exact are worth more, where rows are long


@dataclass(frozen=True, kw_only=True)
class FactorizationParams:
    """Parameters of a factorization, under the names of the estimator.

    Parameters
    ----------
    n_users, n_items, n_ratings : int
        Sizes of the problem.
    seed : int
        Seed of the factors to begin with.
    start : ndarray of shape (n_users + n_items, n_components + 1) or None
        Biases and vectors to begin with instead, in units of the ratings; NaN for users
        and items that have none.
    """

    n_users: int
    n_items: int
    n_ratings: int
    n_components: int
    feedback: str
    solver: str
    als_solver: str
    cg_steps: int
    alpha: float
    weighted_alpha: bool
    standardize: bool
    confidence: float
    fit_bias: bool
    positive: bool
    eta0: float
    batch_size: int
    max_iter: int
    tol: float
    early_stopping: bool
    validation_fraction: float
    n_iter_no_change: int
    dtype: Any
    seed: int
    start: np.ndarray | None = field(default=None, repr=False, compare=False)

    @property
    def has_bias(self) -> bool:
        """Whether users and items have biases."""
        return self.fit_bias and self.feedback == "explicit"

    @property
    def is_standardized(self) -> bool:
        """Whether ratings are divided by their deviation."""
        return self.standardize and self.feedback == "explicit"

    @property
    def n_columns(self) -> int:
        """Columns of the factors: with biases, two more.

        A user is ``(bias, 1, factors)``, an item is ``(1, bias, factors)``; the product
        is the rating less the mean.
        """
        return self.n_components + 2 * self.has_bias

    @property
    def first_factor(self) -> int:
        """Column of the first component, behind those of biases."""
        return self.n_columns - self.n_components

    @property
    def fixed_columns(self) -> tuple[int | None, int | None]:
        """Column of ones of the users, and that of the items."""
        return (1, 0) if self.has_bias else (None, None)

    def units(self, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """What the columns of users, and of items, are multiplied with for a scale.

        Parameters
        ----------
        scale : float
            What the ratings were divided by.

        Returns
        -------
        users, items : ndarray of float64 of shape (n_columns,)
        """
        users, items = np.full((2, self.n_columns), np.sqrt(scale))
        if self.has_bias:
            users[:2], items[:2] = (scale, 1), (1, scale)
        return users, items

    @property
    def n_chunks(self) -> tuple[int, int]:
        """In how many rotations the users are solved for, and the items.

        Each user has a matrix of its own meanwhile; all of them need not fit.
        """
        if self.method != "cholesky":
            return 1, 1
        bytes_per_row = self.n_columns**2 * np.dtype(self.dtype).itemsize
        users, items = (
            -(-n * bytes_per_row // _MOST_SUMS) for n in (self.n_users, self.n_items)
        )
        return max(1, users), max(1, items)

    @property
    def method(self) -> str:
        """How factors change: "sgd", or by "cholesky" or "cg".

        Conjugate gradients go over the ratings once for each step and once more, in
        time that grows with the components; normal equations go over them once, in time
        that grows with their square, and are then solved for each row.
        """
        if self.solver == "sgd":
            return "sgd"
        if self.als_solver != "auto":
            return self.als_solver
        if self.positive:
            return "cholesky"
        steps, whole = map(self.seconds_of_round, ("cg", "cholesky"))
        return "cg" if _WORTH * steps < whole else "cholesky"

    def seconds_of_round(self, method: str) -> float:
        """Seconds of one core, to solve for all users and items.

        Parameters
        ----------
        method : {"cg", "cholesky"}
        """
        rows, f = self.n_users + self.n_items, self.n_columns
        if method == "cg":
            return 2e-9 * self.n_ratings * f * (self.cg_steps + 1) * _PASS
        products = 2 * self.n_ratings * f**2 * _GEMM
        return 1e-9 * (products + rows * (_ROW + f**3 * _FACTORIZE))

    @property
    def collects(self) -> tuple[bool, bool]:
        """Whether users are solved for with all items at hand, and the reverse.

        A side that is small is collected by every rank, whose rows are then solved for
        as on a single one; of a large side a block is there at a time. It does not
        depend on the ranks, since a fit may go on with another number of them.
        """
        bytes_per_row = self.n_columns * np.dtype(self.dtype).itemsize
        of_users, of_items = (
            n * bytes_per_row <= _MOST_COLLECTED for n in (self.n_users, self.n_items)
        )
        return of_items, of_users

    @property
    def n_places(self) -> tuple[int, int]:
        """Rotations in which the users are solved for, and the items."""
        if self.method == "cg":
            users, items = (
                1 if whole else self.cg_steps + 1 for whole in self.collects
            )
            return users, items
        return (1, 0) if self.method == "sgd" else self.n_chunks

    @property
    def rotations_per_round(self) -> int:
        """Rotations in which all users and items change, and are looked at."""
        return sum(self.n_places) + self.early_stopping

    def is_evaluation(self, rotation: int) -> bool:
        """Whether a rotation looks at held-out ratings, at the end of a round."""
        place = rotation % self.rotations_per_round
        return self.early_stopping and place == self.rotations_per_round - 1

    def initial_factors(
        self, parameters: np.ndarray, n_rated: np.ndarray, scale: float = 1.0
    ) -> Any:
        """Factors of users or items to begin with, the same on any number of ranks.

        Parameters
        ----------
        parameters : ndarray of int64 of shape (k,)
            Users, or items counted on from them.
        n_rated : ndarray of shape (k,)
            Their ratings; without any, factors are 0.
        scale : float, default=1.0
            What the ratings are divided by.

        Returns
        -------
        factors : ndarray of shape (k, n_columns)
        """
        size = 0.1 * np.sqrt(3 / self.n_components)
        factors = np.zeros((len(parameters), self.n_columns), dtype=self.dtype)
        for start in range(0, len(parameters), _DRAWN):  # in double precision
            rows = slice(start, start + _DRAWN)
            drawn = hashed_uniform(self.seed, parameters[rows], self.n_components)
            drawn = np.where(n_rated[rows, np.newaxis] > 0, drawn * size, 0)
            drawn = np.abs(drawn) if self.positive else drawn
            factors[rows, self.first_factor :] = drawn
        if self.has_bias:
            is_item = parameters >= self.n_users
            factors[:, 0], factors[:, 1] = is_item, ~is_item
        if self.start is not None:
            self._take_start(factors, parameters, n_rated, scale)
        return factors

    def _take_start(
        self,
        factors: np.ndarray,
        parameters: np.ndarray,
        n_rated: np.ndarray,
        scale: float,
    ) -> None:
        """Put in place what is known of rated users and items."""
        assert self.start is not None
        own = self.start[parameters]
        known = np.flatnonzero(~np.isnan(own[:, 0]) & (n_rated > 0))
        vectors = own[known, 1:] / np.sqrt(scale)
        factors[known, self.first_factor :] = (
            np.maximum(vectors, 0) if self.positive else vectors
        )
        if self.has_bias:
            # A user is (bias, 1, ...), an item (1, bias, ...).
            column = (parameters[known] >= self.n_users).astype(np.intp)
            factors[known, column] = own[known, 0] / scale
