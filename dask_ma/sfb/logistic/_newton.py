"""Second derivatives of all pairs: Newton's steps, and bounds of the minimum."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.kernels import newton_excess, newton_point
from dask_ma.sfb.logistic._step_cost import rows_of_hessian
from dask_ma.sfb.logistic._units import Place

_DAMPING = 1e-9  # of the mean second derivative
_ROUNDING = 1e-14
# Share of a step that says that it has been found from too few rows, and by how many
# times there are more then.
_SHORT, _MORE = 0.2, 4


class Sample:
    """Rows that second derivatives are found from.

    Some are enough as a rule. They may leave out those that tell of features which few
    rows have: nothing limits steps along these then, and all of a step has to be cut.

    Parameters
    ----------
    n_rows : int
        Of all ranks.
    kept : dict
        What :meth:`state_dict` has given, if anything.
    """

    def __init__(self, n_rows: int, kept: dict[str, Any]) -> None:
        self._n_rows = n_rows
        self._times = int(kept.get("n_times", 1))

    def stride(self, n_variables: int) -> int:
        """Of how many rows one is looked at, for so many variables."""
        wanted = self._times * rows_of_hessian(n_variables, self._n_rows)
        return max(1, self._n_rows // wanted)

    def note(self, stride: int, share: float) -> None:
        """Take note of the share of a step that has been made; on rank 0."""
        if stride > 1 and share < _SHORT:
            self._times *= _MORE

    def state_dict(self) -> dict[str, np.ndarray]:
        """What it has taken note of."""
        return {"n_times": np.array(self._times)}


def plan_of(
    place: Place,
    l1: np.ndarray,
    features: np.ndarray,
    outputs: np.ndarray,
    sample: Sample,
    most: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int] | None:
    """Which variables have their second derivatives looked at.

    Parameters
    ----------
    place : Place
        The point and the gradient of the loss.
    l1 : ndarray of shape (n_variables,)
        Weights of the L1 part.
    features, outputs : ndarray of int of shape (n_variables,)
        What the variables are coefficients of.
    sample : Sample
        Rows that they are found from.
    most : int
        Variables at most.

    Returns
    -------
    plan : tuple or None
        The variables, their features and outputs, and of how many rows one is looked
        at; None where they are too many.
    """
    picked = np.arange(len(place.point))
    if l1.any():
        # Those at zero whose slope is less than the penalty stay there.
        picked = np.flatnonzero((place.point != 0) | (np.abs(place.gradient) > l1))
    if not 0 < len(picked) <= most:
        return None
    return picked, features[picked], outputs[picked], sample.stride(len(picked))


def newton_target(
    picked: np.ndarray,
    hessian: np.ndarray,
    scales: np.ndarray,
    places: tuple[np.ndarray, np.ndarray],
    penalties: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """Where the model of the objective is least, by some variables.

    Parameters
    ----------
    picked : ndarray of int of shape (n_picked,)
        The variables.
    hessian : ndarray of shape (n_picked, n_picked)
        Second derivatives of the loss by what these are without their units.
    scales : ndarray of shape (n_variables,)
        Their units.
    places : tuple of ndarray of shape (n_variables,)
        The point, and the gradient of the loss there.
    penalties : tuple of ndarray of shape (n_variables,)
        Weights of the L1 and L2 parts.

    Returns
    -------
    target : ndarray of shape (n_variables,)
    """
    point, gradient = places
    scales, target = scales[picked], point.copy()
    hessian = hessian / scales / scales[:, np.newaxis]
    damping = _DAMPING * max(np.trace(hessian) / len(hessian), 1e-6)
    hessian[np.diag_indices_from(hessian)] += damping
    parts = (v[picked] for v in (gradient, point, *penalties))
    target[picked] = newton_point(hessian, *parts)
    return target


def excess_of(
    hessian: np.ndarray,
    scales: np.ndarray,
    l2: np.ndarray,
    n_free: int,
    objective: float,
    decrement: float,
    largest: float,
) -> float:
    """How far an objective is above its minimum at most, where that is near.

    Parameters
    ----------
    hessian : ndarray of shape (n_variables, n_variables)
        Second derivatives of the loss by what variables are without their units.
    scales, l2 : ndarray of shape (n_variables,)
        Their units, and the weights of the penalty.
    n_free : int
        Intercepts whose mean nothing depends on; 0 where there are none.
    objective : float
        That at the point.
    decrement : float
        Newton's, squared.
    largest : float
        Largest squared length of a row.

    Returns
    -------
    excess : float
    """
    system = hessian / scales / scales[:, np.newaxis]
    system[np.diag_indices_from(system)] += l2
    if n_free:
        # The loss does not depend on the mean intercept: nothing is lost there.
        system[-n_free:, -n_free:] += 1.0
    # The intercept has been divided by its own unit, a half.
    decrement = max(decrement, _ROUNDING * abs(objective))
    return newton_excess(system, decrement, 4 * largest)
