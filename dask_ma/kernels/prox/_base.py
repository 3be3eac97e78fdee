"""Base classes of proximal operators, and checks of their parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import isfinite
from numbers import Real
from typing import ClassVar

import numpy as np


class Prox(ABC):
    """A function of the parameter matrix with its proximal operator.

    Attributes
    ----------
    is_columnwise : bool
        Whether the columns of the matrix can be treated one by one, and late. Then the
        class is a :class:`ColumnwiseProx`.
    """

    is_columnwise: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, matrix: np.ndarray, step: float) -> np.ndarray:
        """Apply the proximal operator of ``step * h``.

        Parameters
        ----------
        matrix : ndarray of shape (n_outputs, n_features)
            Not changed.
        step : float
            Step of the update before, finite and not negative.

        Returns
        -------
        matrix : ndarray of shape (n_outputs, n_features)
            A new array of the same dtype; float64 for integers.

        Raises
        ------
        ValueError
            If `step` is negative or not finite.
        """

    @abstractmethod
    def value(self, matrix: np.ndarray) -> float:
        """Value of `h`.

        Parameters
        ----------
        matrix : ndarray of shape (n_outputs, n_features)

        Returns
        -------
        value : float
            Computed in float64. It is infinite where a constraint is violated by more
            than rounding in the dtype of `matrix` explains.
        """


class ColumnwiseProx(Prox):
    """A function that adds up over columns, and whose operator may come late.

    The operator of a step is described by one number, its *amount*. Amounts of
    iterations that leave a column unchanged otherwise add up.
    """

    is_columnwise: ClassVar[bool] = True

    def __call__(self, matrix: np.ndarray, step: float) -> np.ndarray:
        amount = self.amount(step)
        columns = np.array(floating(matrix).T, order="C")
        self.shrink(columns, amount)
        return columns.T

    @abstractmethod
    def amount(self, step: float) -> float:
        """What one step adds to the amount that is due to each column.

        Parameters
        ----------
        step : float
            Step of the update, finite and not negative.

        Returns
        -------
        amount : float
            Not negative.

        Raises
        ------
        ValueError
            If `step` is negative or not finite.
        """

    @abstractmethod
    def shrink(self, columns: np.ndarray, amounts: np.ndarray | float) -> None:
        """Apply to columns what is due to them, in place.

        Parameters
        ----------
        columns : ndarray of floating dtype of shape (n, n_outputs)
            Columns of the parameter matrix, lying as rows. Overwritten.
        amounts : ndarray of shape (n,) or float
            Sums of what :meth:`amount` gave since the column was last treated.
        """


def floating(matrix: np.ndarray) -> np.ndarray:
    """The matrix itself, or as float64 if it holds integers."""
    matrix = np.asarray(matrix)
    if np.issubdtype(matrix.dtype, np.floating):
        return matrix
    return matrix.astype(np.float64)


def is_finite(number: object) -> bool:
    """Whether something is a number, and a finite one."""
    return isinstance(number, Real) and isfinite(number)


def check_alpha(alpha: float, name: str = "alpha") -> None:
    """Raise unless a strength is sensible."""
    if not (is_finite(alpha) and alpha >= 0):
        raise ValueError(f"{name} must be a finite number, 0 or above, got {alpha!r}")


def checked_step(step: float) -> float:
    """Return a step, or raise if it is not sensible."""
    if not (is_finite(step) and step >= 0):
        raise ValueError(f"step must be a finite number, 0 or above, got {step!r}")
    return float(step)
