"""Conjugate gradients whose products somebody else works out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class ConjugateGradients:
    """Solves ``H x = b`` for a positive semidefinite `H` that nobody has as a matrix.

    Whoever has it asks for :attr:`direction`, and gives its product to :meth:`take`,
    until there is no direction any more.

    Parameters
    ----------
    right : ndarray of shape (n,)
        `b`.
    tol : float
        What is to be left of it, in parts of its length.
    most : int
        Most products.
    precondition : callable, default=None
        Positive definite, and about the inverse of `H`; lengths are by it then.

    Attributes
    ----------
    solution : ndarray of shape (n,)
        `x` so far.
    direction : ndarray of shape (n,) or None
        What the next product is to be of; None at the end.
    """

    def __init__(
        self,
        right: np.ndarray,
        *,
        tol: float,
        most: int,
        precondition: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self.solution = np.zeros_like(right)
        self._rest = right.copy()
        self._precondition = precondition
        towards = self._towards()
        self._square = float(right @ towards)
        self._least = self._square * tol**2
        self._n_left = most
        self.direction: np.ndarray | None = None
        if self._square > 0 and most:
            self.direction = towards.copy()

    def take(self, product: np.ndarray) -> None:
        """Make a step along the direction.

        Parameters
        ----------
        product : ndarray of shape (n,)
            `H` times the direction.
        """
        direction = self.direction
        assert direction is not None
        self._n_left -= 1
        curvature = float(direction @ product)
        if not curvature > 0:  # what rounding has left of it
            self.direction = None
            return
        share = self._square / curvature
        self.solution += share * direction
        self._rest -= share * product
        towards = self._towards()
        before, self._square = self._square, float(self._rest @ towards)
        if self._square <= self._least or not self._n_left:
            self.direction = None
            return
        self.direction = towards + (self._square / before) * direction

    def _towards(self) -> np.ndarray:
        """Where what is left leads."""
        rest = self._rest
        return rest if self._precondition is None else self._precondition(rest)
