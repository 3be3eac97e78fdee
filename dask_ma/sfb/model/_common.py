"""One length for the steps that all ranks have found at the same time.

Each rank finds a step as if it were alone. Where all ranks get all factors of an
iteration before they apply any, they know what the sum of the steps does: along it a
concave function rises by ``t * linear - t^2 * quadratic / 2`` at least, and `t` is the
best common length, not above 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np


class CommonStep(ABC):
    """What a model knows of the steps of an iteration.

    Attributes
    ----------
    gain : float
        Linear part of what this rank's step is to bring.
    products : float
        The part of the gain that products of factors with the matrix are.
    own_curvature : float
        Sum of the quadratic parts of this rank's steps, each by itself.
    """

    gain: float = 0.0
    products: float = 0.0
    own_curvature: float = 0.0

    @abstractmethod
    def curvature(self, square: float, slopes: np.ndarray) -> float:
        """Quadratic part for the sum of all steps.

        Parameters
        ----------
        square : float
            Squared Frobenius norm of the sum of the products of factors.
        slopes : ndarray of shape (n_outputs,)
            Sum of the `u`.

        Returns
        -------
        curvature : float
        """

    @abstractmethod
    def take(self, share: float) -> None:
        """Make this rank's step of a common length.

        Parameters
        ----------
        share : float
            From 0 to 1.
        """

    def add_up(self, square: float, slopes: np.ndarray) -> None:
        """Take the steps noted since the last :meth:`take` as one, from their start.

        Each was found after those before, so the linear parts of the later ones are at
        other places. Along all of them the function rises by the same, however they
        are counted: ``linear - quadratic / 2`` of the whole is the sum of those of the
        parts.

        Parameters
        ----------
        square, slopes
            As in :meth:`curvature`, of the steps of this rank.
        """
        self.gain += (self.curvature(square, slopes) - self.own_curvature) / 2

    def agree(self, gain: float, square: float, slopes: np.ndarray) -> float:
        """Find the common length, and take it.

        Parameters
        ----------
        gain : float
            Linear parts of all ranks, added up.
        square, slopes
            As in :meth:`curvature`.

        Returns
        -------
        share : float
            From 0 to 1, the same on all ranks.
        """
        curvature = self.curvature(square, slopes)
        share = 1.0
        if gain < curvature:
            share = max(0.0, gain / curvature)
        self._make(share)
        return share

    def take_all(self) -> None:
        """Make the steps as this rank has found them, if there is no other."""
        self._make(1.0)

    def _make(self, share: float) -> None:
        """Make the steps, and begin anew."""
        self.take(share)
        self.gain = self.products = self.own_curvature = 0.0
