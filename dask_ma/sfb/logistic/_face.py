"""Steps among points whose coefficients have the signs of one, or are zero as they are.

Among them an L1 penalty is linear, and the objective smooth.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import linalg

_JITTER = 1e-6  # of the largest second derivative, for what rounding makes of others
_MOST_TRIALS = 8


class Step:
    """A step from a point towards another one.

    Parameters
    ----------
    start, direction : ndarray of shape (n_variables,)
    slope : float
        By which the objective is to change, as far as is known.
    fixed : ndarray of bool of shape (n_variables,), default=None
        Variables whose signs stay: they become zero where they would turn.

    Attributes
    ----------
    start : ndarray of shape (n_variables,)
    slope : float
    """

    def __init__(
        self,
        start: np.ndarray,
        direction: np.ndarray,
        slope: float,
        fixed: np.ndarray | None = None,
    ) -> None:
        self.start, self.slope = start, slope
        self._direction, self._fixed = direction, fixed

    def at(self, share: float) -> np.ndarray:
        """The point after a part of the step.

        Parameters
        ----------
        share : float

        Returns
        -------
        point : ndarray of shape (n_variables,)
        """
        point = self.start + share * self._direction
        if self._fixed is not None:
            point[self._fixed & (self.start * point < 0)] = 0
        return point


class Face:
    """The points with the signs of one.

    Where all outputs of a feature change by the same number, softmax stays the same. If
    the penalty has no curvature either, no step along that is long enough or none too
    long: such changes are left out.

    Parameters
    ----------
    point, gradient : ndarray of shape (n_variables,)
        The one, feature by feature, and the gradient of the loss there.
    l1, l2 : ndarray of shape (n_variables,)
        Weights of the penalties.
    n_outputs : int
        Variables of each feature; softmax is that of two or more.

    Attributes
    ----------
    slopes : ndarray of shape (n_variables,)
        Gradient of the objective among these points.
    """

    def __init__(
        self,
        point: np.ndarray,
        gradient: np.ndarray,
        l1: np.ndarray,
        l2: np.ndarray,
        n_outputs: int,
    ) -> None:
        self._point, self._l2, self._n_outputs = point, l2, n_outputs
        self._fixed = l1 > 0
        self._free = (point != 0) | ~self._fixed
        is_flat = (self._free & (l2 == 0)).reshape(-1, n_outputs).all(axis=1)
        self._flat = np.flatnonzero(is_flat & (n_outputs > 1))  # features
        self.slopes = self.within(gradient + l2 * point + l1 * np.sign(point))

    def within(self, vector: np.ndarray) -> np.ndarray:
        """What a vector has of changes that lead to such points.

        Parameters
        ----------
        vector : ndarray of shape (n_variables,)

        Returns
        -------
        part : ndarray of shape (n_variables,)
            Its projection; a copy.
        """
        part = np.where(self._free, vector, 0.0)
        features = part.reshape(-1, self._n_outputs)
        features[self._flat] -= features[self._flat].mean(axis=1, keepdims=True)
        return part

    def step(self, direction: np.ndarray) -> Step:
        """A step along a direction that leads to such points.

        Parameters
        ----------
        direction : ndarray of shape (n_variables,)
            As :meth:`within` leaves it.

        Returns
        -------
        step : Step
        """
        slope = float(self.slopes @ direction)
        return Step(self._point, direction, slope, self._fixed)

    def inverse(self, blocks: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Inverse of the second derivatives within outputs, nearly.

        Parameters
        ----------
        blocks : ndarray of shape (n_features, n_outputs, n_features)
            Those of the loss, as in :func:`~dask_ma.kernels.block_point`.

        Returns
        -------
        inverse : callable
            Gives as many variables from `n_variables`.
        """
        n_outputs = self._n_outputs
        jitter = _JITTER * max(1.0, float(np.einsum("jkj->jk", blocks).max()))
        factors = []
        for output in range(n_outputs):
            places = np.flatnonzero(self._free[output::n_outputs])
            added = self._l2[output::n_outputs][places]
            system = blocks[:, output][np.ix_(places, places)]
            variables = places * n_outputs + output
            factors.append((variables, _factor_of(system, added, jitter)))

        def inverse(vector: np.ndarray) -> np.ndarray:
            found = np.zeros_like(vector)
            for variables, factor in factors:
                right = vector[variables].astype(factor.dtype)
                found[variables] = linalg.cho_solve(
                    (factor, True), right, check_finite=False
                )
            return self.within(found)

        return inverse

    def inverse_of_diagonal(
        self, diagonal: np.ndarray
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Inverse of the second derivatives by single variables.

        Parameters
        ----------
        diagonal : ndarray of shape (n_variables,)
            Those of the loss, above 0.

        Returns
        -------
        inverse : callable
            Gives as many variables from `n_variables`.
        """
        inverse = 1 / (diagonal + self._l2)
        return lambda vector: self.within(vector * inverse)


def _factor_of(system: np.ndarray, added: np.ndarray, jitter: float) -> np.ndarray:
    """Lower factor of a system with more on its diagonal, as much as it takes."""
    diagonal = np.diagonal(system).copy()
    for _ in range(_MOST_TRIALS):
        system[np.diag_indices_from(system)] = diagonal + added + jitter
        try:
            return np.asarray(linalg.cholesky(system, lower=True, check_finite=False))
        except linalg.LinAlgError:
            jitter *= 10
    return np.eye(len(system), dtype=system.dtype)


def shorter(rise: float, slope: float) -> float:
    """By what to multiply a step that was too long: the least point of a parabola.

    Parameters
    ----------
    rise : float
        By which the objective has changed.
    slope : float
        By which it was to change.

    Returns
    -------
    factor : float
        From 0.1 to 0.5.
    """
    if not np.isfinite(rise):
        return 0.1
    return float(np.clip(-slope / (2 * (rise - slope)), 0.1, 0.5)) if slope else 0.5
