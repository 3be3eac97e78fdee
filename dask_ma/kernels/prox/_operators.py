"""Penalties and constraints of a parameter matrix."""

from __future__ import annotations

from dataclasses import dataclass
from math import log1p

import numpy as np

from dask_ma.kernels.prox._base import (
    ColumnwiseProx,
    Prox,
    check_alpha,
    checked_step,
    floating,
    is_finite,
)
from dask_ma.kernels.prox._singular_values import lower_singular_values

_CHUNK = 2**16  # elements of a matrix at a time


@dataclass(frozen=True)
class NoPenalty(ColumnwiseProx):
    """``h(W) = 0``: nothing is done."""

    def amount(self, step: float) -> float:
        """Zero."""
        checked_step(step)
        return 0.0

    def shrink(self, columns: np.ndarray, amounts: np.ndarray | float) -> None:
        """Leave the columns as they are."""

    def value(self, matrix: np.ndarray) -> float:
        """Zero."""
        return 0.0


@dataclass(frozen=True)
class L1(ColumnwiseProx):
    """``h(W) = alpha * sum |W_jd|``, which makes elements zero.

    Parameters
    ----------
    alpha : float
        Strength of the penalty, finite and not negative.

    Raises
    ------
    ValueError
        If `alpha` is negative or not finite.
    """

    alpha: float

    def __post_init__(self) -> None:
        check_alpha(self.alpha)

    def amount(self, step: float) -> float:
        """``step * alpha``, by which elements move towards zero."""
        return checked_step(step) * self.alpha

    def shrink(self, columns: np.ndarray, amounts: np.ndarray | float) -> None:
        """Move elements towards zero, and not beyond it."""
        bounds = _per_column(amounts, columns)
        columns -= np.clip(columns, -bounds, bounds)

    def value(self, matrix: np.ndarray) -> float:
        """``alpha * sum |W_jd|``."""
        # Some columns at a time: absolute values are not to be a second matrix.
        size, total = max(1, _CHUNK // max(1, len(matrix))), 0.0
        for start in range(0, matrix.shape[1], size):
            part = np.abs(matrix[:, start : start + size])
            total += float(part.sum(dtype=np.float64))
        return self.alpha * total


@dataclass(frozen=True)
class L2(ColumnwiseProx):
    """``h(W) = alpha / 2 * ||W||_F^2``, which draws elements towards zero.

    Parameters
    ----------
    alpha : float
        Strength of the penalty, finite and not negative.

    Raises
    ------
    ValueError
        If `alpha` is negative or not finite.
    """

    alpha: float

    def __post_init__(self) -> None:
        check_alpha(self.alpha)

    def amount(self, step: float) -> float:
        """``log(1 + step * alpha)``: divisors multiply, so their logarithms add up."""
        return log1p(checked_step(step) * self.alpha)

    def shrink(self, columns: np.ndarray, amounts: np.ndarray | float) -> None:
        """Divide the columns by the exponentials of the amounts."""
        columns *= _per_column(np.exp(np.negative(amounts)), columns)

    def value(self, matrix: np.ndarray) -> float:
        """``alpha / 2 * ||W||_F^2``."""
        square = np.einsum("jd,jd->", matrix, matrix, dtype=np.float64)
        return 0.5 * self.alpha * float(square)


@dataclass(frozen=True)
class ElasticNet(ColumnwiseProx):
    """``h(W) = l1 * sum |W_jd| + l2 / 2 * ||W||_F^2``.

    Parameters
    ----------
    l1, l2 : float
        Strengths of the two penalties, finite and not negative; `l2` above 0.

    Raises
    ------
    ValueError
        If a strength is negative or not finite, or `l2` is 0.
    """

    l1: float
    l2: float

    def __post_init__(self) -> None:
        check_alpha(self.l1, "l1")
        check_alpha(self.l2, "l2")
        if self.l2 == 0:
            raise ValueError("l2 must be above 0, got 0; use L1(alpha) without it")

    def amount(self, step: float) -> float:
        """``log(1 + step * l2)``, as of :class:`L2`."""
        return log1p(checked_step(step) * self.l2)

    def shrink(self, columns: np.ndarray, amounts: np.ndarray | float) -> None:
        """Move elements towards zero, and not beyond it, and divide the rest."""
        # A step takes ``|w| + l1 / l2`` to a part of it: steps multiply, as of L2,
        # until an element is zero.
        falls = np.negative(amounts)
        columns *= _per_column(np.exp(falls), columns)
        bounds = _per_column(-self.l1 / self.l2 * np.expm1(falls), columns)
        columns -= np.clip(columns, -bounds, bounds)

    def value(self, matrix: np.ndarray) -> float:
        """``l1 * sum |W_jd| + l2 / 2 * ||W||_F^2``."""
        return L1(self.l1).value(matrix) + L2(self.l2).value(matrix)


@dataclass(frozen=True)
class ColumnNormBall(ColumnwiseProx):
    """The constraint ``||column of W||_2 <= radius``, for all columns.

    `h` is zero where it holds and infinite elsewhere. A dictionary whose atoms are the
    columns of `W` has it.

    Parameters
    ----------
    radius : float, default=1.0
        Longest column allowed, finite and above 0.

    Raises
    ------
    ValueError
        If `radius` is not above 0 or not finite.
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        if not (is_finite(self.radius) and self.radius > 0):
            raise ValueError(
                f"radius must be a finite number above 0, got {self.radius!r}"
            )

    def amount(self, step: float) -> float:
        """Zero: a projection depends on no step, and a second one changes nothing."""
        checked_step(step)
        return 0.0

    def shrink(self, columns: np.ndarray, amounts: np.ndarray | float) -> None:
        """Shorten the columns that are too long."""
        norms = _row_norms(columns)
        columns *= _per_column(self.radius / np.maximum(norms, self.radius), columns)

    def value(self, matrix: np.ndarray) -> float:
        """Zero if no column is too long, else infinite."""
        matrix = floating(matrix)
        longest = _row_norms(matrix.T).max(initial=0.0)
        # A column that is too long by what rounding explains counts as short enough.
        margin = 8 * float(np.finfo(matrix.dtype).eps)
        return 0.0 if longest <= self.radius * (1 + margin) else float("inf")


@dataclass(frozen=True)
class TraceNorm(Prox):
    """``h(W) = alpha * sum of the singular values of W``, which lowers the rank.

    Also known as nuclear norm. The operator needs a decomposition of the whole matrix
    in every iteration: some ``min(J, D)**2 * max(J, D)`` operations.

    Parameters
    ----------
    alpha : float
        Strength of the penalty, finite and not negative.

    Raises
    ------
    ValueError
        If `alpha` is negative or not finite.
    """

    alpha: float

    def __post_init__(self) -> None:
        check_alpha(self.alpha)

    def __call__(self, matrix: np.ndarray, step: float) -> np.ndarray:
        """Lower the singular values by ``step * alpha``, and not below zero.

        Raises
        ------
        ValueError
            If `step` is negative or not finite.
        numpy.linalg.LinAlgError
            If an element of `matrix` is not finite.
        """
        threshold = checked_step(step) * self.alpha
        return lower_singular_values(floating(matrix), threshold)

    def value(self, matrix: np.ndarray) -> float:
        """``alpha`` times the sum of the singular values.

        Raises
        ------
        numpy.linalg.LinAlgError
            If an element of `matrix` is not finite.
        """
        matrix = np.asarray(matrix, dtype=np.float64)
        if not matrix.size:
            return 0.0
        return self.alpha * float(np.linalg.svd(matrix, compute_uv=False).sum())


def _row_norms(rows: np.ndarray) -> np.ndarray:
    """Euclidean norms; in float64, since squares of float32 overflow early."""
    return np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))


def _per_column(amounts: np.ndarray | float, columns: np.ndarray) -> np.ndarray:
    """Numbers for the columns, in their dtype, that broadcast over them."""
    return np.asarray(amounts, dtype=columns.dtype).reshape(-1, 1)
