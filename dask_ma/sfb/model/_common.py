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
    """

    gain: float = 0.0

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
        self.take(share)
        self.gain = 0.0
        return share
