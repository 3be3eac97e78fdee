"""Weights of the penalty to try, which a feature of a large unit may set by itself."""

from __future__ import annotations

import numpy as np

from dask_ma.comm import allgather
from dask_ma.schmp.l1._solver import Solver

_ROUNDED = 4.0  # times the error of a sum that is to be expected
_CHANCE = 2.0  # times what the largest correlation of so many features is by chance
_LEAST = 0.1  # correlation of a feature that is worth a note


def above_rounding(solver: Solver, n_rows: int, eps: float) -> float | None:
    """Largest weight where no feature tells anything but for rounding; collective.

    Of a column that is the same in all rows, less its mean, rounding may leave
    something, and so of its covariance with the targets. Weights that go by it let such
    columns in, with coefficients as large as rounding is small.

    Parameters
    ----------
    solver : Solver
        After a check of the model without coefficients, for a weight of 1.
    n_rows : int
        Rows of all ranks.
    eps : float
        The smallest weight in units of the largest, which is to be above rounding, too.

    Returns
    -------
    largest : float or None
        None where there is a feature that tells something.
    """
    objective, resolution = solver.objective, float(np.finfo(np.float64).resolution)
    pull, bound = np.abs(solver.gradient()[:, 0]), objective.penalty.l1
    noise = np.zeros_like(pull)
    if objective.centers:
        objective.learn_means()
        share = _ROUNDED * np.sqrt(n_rows) * np.finfo(np.float64).eps
        noise = share * np.sqrt(2 * objective.null) * np.abs(objective.means)
    if ((bound > 0) & (pull > noise)).any():
        return None
    reach = np.divide(noise, bound, out=np.zeros_like(pull), where=bound > 0)
    return max(float(reach.max(initial=0.0)) / eps, resolution)


def note_on_units(solver: Solver, n_rows: int, smallest: float) -> str | None:
    """What the user is to know of features that no weight lets in; collective.

    The largest weight is that of the feature with the largest covariance with the
    targets. Where the values of one are far larger than those of the others, it has
    that whatever it tells, and the smallest weight may be too large for all others.

    Parameters
    ----------
    solver : Solver
        After a check of the model without coefficients, for a weight of 1.
    n_rows : int
        Rows of all ranks.
    smallest : float
        The smallest weight to be tried.

    Returns
    -------
    note : str or None
    """
    objective = solver.objective
    pull = np.abs(solver.gradient()[:, 0])
    bound = objective.penalty.l1
    reach = np.divide(pull, bound, out=np.zeros_like(pull), where=bound > 0)
    is_out = (0 < reach) & (reach < smallest)
    if not is_out.any() or not objective.loss.is_quadratic:
        return None
    squares = objective.design.squares(objective.loss.weight, objective.centers)
    lengths = np.zeros(len(pull))
    for features, values in allgather(objective.design.group, tuple(squares)):
        lengths[features] = np.sqrt(np.maximum(values[:, 0], 0.0))
    size = lengths * np.sqrt(2 * objective.null)  # of a feature that tells all
    tells = np.divide(pull, size, out=np.zeros_like(pull), where=size > 0)
    worst, first = int((tells * is_out).argmax()), int(reach.argmax())
    chance = _CHANCE * np.sqrt(2 * np.log(max(2, len(pull))) / n_rows)
    if tells[worst] <= max(_LEAST, chance, tells[first]):
        return None
    return (
        f"all alphas are too large for feature {worst}, whose correlation with the "
        f"targets is {tells[worst]:.2f}: they go by feature {first}, which is larger, "
        f"and has one of {tells[first]:.2f}; scale the features, for example with "
        "StandardScaler, or give alphas"
    )
