"""Points of a refinement: weights of standardised columns, and what is found there.

With L1 most weights end at 0. Those that are not 0, and those at 0 that the gradient
pulls away from there, are what a step of Newton's method has to know second derivatives
of where there are too many columns for all of them: the active set of a proximal Newton
method (C.-J. Hsieh, M. Sustik, I. Dhillon, P. Ravikumar, "Sparse inverse covariance
matrix estimation using quadratic approximation", 2011, section 3.2).
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import numpy as np

from dask_ma.kernels import Standardization
from dask_ma.linear._model import LinearModel
from dask_ma.linear._start import FAR
from dask_ma.linear.refine._share import Share, Slice

# Largest part of a mean square that may be rounding and not the variance of a column.
ROUNDING = 64 * np.finfo(np.float64).eps
# Typical curvature of a loss: what its penalty is set against.
CURVATURE = 0.25


class Found(NamedTuple):
    """One problem's objective at a point.

    Attributes
    ----------
    objective : float
        The objective itself.
    value : float
        The objective with the smooth loss.
    gap : float
        How far the objective is above its optimum at most where the other one is at
        its own.
    gradient : ndarray of shape (n_weights,)
        Of the smooth loss and L2.
    hessian : ndarray of shape (n_columns, n_columns) or None
        Their second derivatives by the weights `columns`.
    columns : ndarray of int, shape (n_columns,), or None
        Numbers of these weights, in rising order but for the intercept, which is last.
    """

    objective: float
    value: float
    gap: float
    gradient: np.ndarray
    hessian: np.ndarray | None
    columns: np.ndarray | None


def least_subgradient(
    point: np.ndarray, gradient: np.ndarray, l1: np.ndarray
) -> np.ndarray:
    """Subgradient of least norm, 0 at a minimum.

    Parameters
    ----------
    point : ndarray of shape (n_weights,)
        Where.
    gradient : ndarray of shape (n_weights,)
        Derivatives of all but the L1 norm.
    l1 : ndarray of shape (n_weights,)
        Weights of the L1 norm.

    Returns
    -------
    ndarray of shape (n_weights,)
    """
    if not l1.any():
        return gradient
    at_zero = np.sign(gradient) * np.maximum(np.abs(gradient) - l1, 0.0)
    return np.where(point != 0, gradient + l1 * np.sign(point), at_zero)


class Penalty(NamedTuple):
    """Weights of the terms of the penalty, which spare the intercept.

    Attributes
    ----------
    l2 : float
        Of ``||w||^2 / 2``.
    l1 : float
        Of ``||w||_1``.
    """

    l2: float
    l1: float

    @classmethod
    def of(cls, penalty: str | None, alpha: float, l1_ratio: float) -> Penalty:
        """The weights that an estimator's parameters mean."""
        share = {"l1": 1.0, "elasticnet": l1_ratio}.get(penalty or "", 0.0)
        alpha = alpha if penalty else 0.0
        return cls(alpha * (1 - share), alpha * share)


def known_variance(centre: np.ndarray, mean_square: np.ndarray) -> np.ndarray:
    """Variances from means, 0 where they may be rounding.

    Parameters
    ----------
    centre, mean_square : ndarray of shape (n_features,)
        Means of the columns, or zeros, and of their squares.

    Returns
    -------
    ndarray of shape (n_features,)
    """
    variance = mean_square - centre**2
    variance[variance <= ROUNDING * mean_square] = 0.0
    return np.asarray(variance)


class Coordinates:
    """Points ``v = w * scale`` and, last, the value at the columns' centre.

    The products are those of columns with the centre taken away, without touching the
    rows: the intercept takes up the difference. Values are counted from a level, so
    that zero is the constant model there. The scale is the root of what the
    columns' variance and the penalty contribute to the second derivative.

    Parameters
    ----------
    mean, mean_square : ndarray of shape (n_features,)
        Weighted means of the columns and of their squares.
    variance : ndarray of shape (n_features,), default=None
        Variances of the columns, where more is known than the means tell: not a number
        for columns that are constant but for rounding, which get no weight.
    penalty : Penalty
        Weights of the penalty.
    fit_intercept : bool
        Whether the intercepts may change; if not, nothing is centred.
    intercept : ndarray of shape (n_problems,)
        Intercepts that stay if they may not.
    level : float, default=0.0
        Mean of targets that are values, from which those of models are counted where
        intercepts may change.
    spread : float, default=1.0
        Standard deviation of such targets.
    has_spread : bool, default=False
        Whether that is more than rounding.
    reach : float or None, default=None
        How far from the level the best value at the centre may be; None if that is not
        known.

    Attributes
    ----------
    spread : float
        The parameter.
    has_spread : bool
        The parameter.
    reach : float
        The parameter, or the spread in its place.
    level : float
        The parameter.
    usual : float
        What an objective is taken to be at most where a tolerance is a part of it: few
        targets far out may make up all the rest. Infinite unless somebody sets it.
    note : str or None
        What the user is to know of columns that get no weight; None unless somebody
        sets it.
    standardization : Standardization
        Centre and scale of the columns.
    units : ndarray of shape (n_features,)
        The scale, but 0 for columns that get no weight, whose scale is infinite.
    n_features : int
        Number of columns.
    total_variance : float
        Sum of the variances of the columns.
    l2, l1 : ndarray of shape (n_weights,)
        Weights of the penalty for each component of a point, 0 for intercepts.
    """

    def __init__(
        self,
        mean: np.ndarray,
        mean_square: np.ndarray,
        penalty: Penalty,
        intercept: np.ndarray,
        *,
        fit_intercept: bool,
        level: float = 0.0,
        spread: float = 1.0,
        has_spread: bool = False,
        reach: float | None = None,
        variance: np.ndarray | None = None,
    ) -> None:
        self.spread, self.has_spread = spread, has_spread
        self.reach = spread if reach is None else reach
        self._knows_reach = fit_intercept and reach is not None
        self.level = level
        self.note: str | None = None
        self.usual = self.constant = np.inf
        centre = mean if fit_intercept else np.zeros_like(mean)
        if variance is None:
            variance = known_variance(centre, mean_square)
        has_weight = ~np.isnan(variance)
        self.total_variance = float(variance[has_weight].sum())
        scale = np.sqrt(CURVATURE * variance + penalty.l2)
        scale[scale == 0] = 1.0
        self.units = np.where(has_weight, scale, 0.0)
        scale[~has_weight] = np.inf
        self.standardization = Standardization(centre, scale)
        self.n_features = len(scale)
        self._fit_intercept = fit_intercept
        self._intercept = intercept.astype(np.float64)
        free = np.zeros(int(fit_intercept))
        self.l2 = np.append(penalty.l2 / scale**2, free)
        self.l1 = np.append(penalty.l1 / scale, free)
        # Their weights are 0 at no cost, which methods need not know.
        for weights, own in ((self.l2, penalty.l2), (self.l1, penalty.l1)):
            weights[: len(scale)][~has_weight] = min(own, 1.0)
        self._raw = penalty

    @property
    def penalty(self) -> Penalty:
        """Weights of the penalty."""
        return self._raw

    def part(self, share: Slice) -> Coordinates:
        """Coordinates of the weights that a rank holds."""
        part = copy(self)
        arrays = (array[share.features].copy() for array in self.standardization)
        part.standardization = Standardization(*arrays)
        part.units = self.units[share.features].copy()
        part.n_features = share.features.stop - share.features.start
        part._fit_intercept = share.has_intercept
        part.l2, part.l1 = self.l2[share.weights].copy(), self.l1[share.weights].copy()
        return part

    def penalties(self, points: np.ndarray) -> np.ndarray:
        """Penalty at each of some points."""
        penalties: np.ndarray = 0.5 * points**2 @ self.l2 + np.abs(points) @ self.l1
        return penalties

    def to_points(self, model: LinearModel) -> np.ndarray:
        """Points of a model, one row per problem."""
        centre = self.standardization.centre
        coef = model.coef.astype(np.float64)
        points = coef * self.units
        if not self._fit_intercept:
            return points
        values = model.intercept + coef @ centre
        return np.column_stack([points, values - self.level])

    def to_model(self, points: np.ndarray, problems: np.ndarray) -> LinearModel:
        """Model at points of some problems, of float64."""
        centre, scale = self.standardization
        coef = points[:, : len(scale)] / scale
        if not self._fit_intercept:
            return LinearModel(coef, self._intercept[problems])
        return LinearModel(coef, points[:, -1] + self.level - coef @ centre)

    def is_far(self, points: np.ndarray) -> bool:
        """Whether a value at the centre is far from all that could be best there."""
        return self._knows_reach and bool(
            (np.abs(points[:, -1]) > FAR * self.reach).any()
        )

    def to_gradient(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """Derivatives by the points, from those by coefficients and intercepts."""
        centre, scale = self.standardization
        gradient = (coef - intercept[:, np.newaxis] * centre) / scale
        if not self._fit_intercept:
            return gradient
        return np.column_stack([gradient, intercept])

    def to_hessian(self, hessian: np.ndarray) -> np.ndarray:
        """Second derivatives by the points, from those with the intercept."""
        return hessian if self._fit_intercept else hessian[:-1, :-1]

    def to_weights(self, columns: np.ndarray) -> np.ndarray:
        """Components of a point: those of some columns, and the intercept."""
        return np.append(columns, [self.n_features] * self._fit_intercept).astype(int)

    def bound_parts(
        self, point: np.ndarray, gradient: np.ndarray
    ) -> tuple[float, float, float, float]:
        """What :meth:`bound` needs to know of a point, or of a rank's part of it.

        Parameters
        ----------
        point : ndarray of shape (n_weights,)
            Where.
        gradient : ndarray of shape (n_weights,)
            Derivatives of all but the L1 norm.

        Returns
        -------
        paid : float
            What columns may cost; to be summed over parts.
        slope, intercept : float
            Derivative by the value at the columns' centre, and that, counted from the
            level; to be summed, too.
        most : float
            Largest pull beyond L1; the largest of all parts counts.
        """
        l2, l1 = self._raw.l2, self._raw.l1
        scale = self.standardization.scale
        coef = point[: self.n_features] / scale
        slopes = gradient[: self.n_features] * self.units - l2 * coef
        paid = slopes @ coef + 0.5 * l2 * coef @ coef + l1 * np.abs(coef).sum()
        beyond = np.maximum(np.abs(slopes) - l1, 0.0)
        if l2:
            paid += 0.5 * beyond @ beyond / l2
        slope, intercept = 0.0, 0.0
        if self._fit_intercept:
            slope, intercept = float(gradient[-1]), float(point[-1])
        return float(paid), slope, intercept, float(beyond.max(initial=0.0))

    def bound(self, paid: float, most: float, objective: float) -> float:
        """How far a problem's objective is above its optimum at most.

        By Fenchel's inequality for the penalty: the gradient `g` of the loss bounds the
        objective from below, by minus the conjugate of the penalty at `-g`. That of L2
        is a parabola. That of L1 alone is infinite where a part of `g` is larger than
        the weight of L1; weights that could gain by it sum up to what the objective
        pays for, though, if no loss is negative. What the intercept may cost comes
        besides.

        Parameters
        ----------
        paid, most : float
            What :meth:`bound_parts` gives.
        objective : float
            The objective there; infinite where the loss may be negative, so that L1 may
            cost more than that at the optimum.

        Returns
        -------
        bound : float
            Infinite without a penalty, and for L1 alone with an infinite objective.
        """
        l2, l1 = self._raw.l2, self._raw.l1
        if not (l2 or l1):
            return np.inf
        if not l2:
            paid += most / l1 * objective if most else 0.0
        return float(paid)


def count_active(point: np.ndarray, slopes: np.ndarray, n_features: int) -> int:
    """Number of active columns.

    Parameters
    ----------
    point : ndarray of shape (n_weights,)
        Weights of the columns, and perhaps that of the intercept.
    slopes : ndarray of shape (n_weights,)
        Subgradient of least norm there.
    n_features : int
        Number of columns.

    Returns
    -------
    n_active : int
    """
    is_active = (point[:n_features] != 0) | (slopes[:n_features] != 0)
    return int(np.count_nonzero(is_active))


def choose_active(
    point: np.ndarray,
    gradient: np.ndarray,
    l1: np.ndarray,
    n_features: int,
    size: int,
    share: Share,
) -> np.ndarray:
    """The columns that most want to take part.

    Parameters
    ----------
    point : ndarray of shape (n_weights,)
        Weights of the columns, and perhaps that of the intercept.
    gradient : ndarray of shape (n_weights,)
        Derivatives of all but the L1 norm.
    l1 : ndarray of shape (n_weights,)
        Weights of the L1 norm, above 0 for columns.
    n_features : int
        Number of columns.
    size : int
        How many to choose; at least as many as are not 0.
    share : Share
        Of which weights these are those of.

    Returns
    -------
    columns : ndarray of int, shape (size,)
        In rising order.
    """
    if size >= share.n_features:
        return np.arange(share.n_features)
    pull = np.abs(gradient[:n_features]) / l1[:n_features]
    pull[point[:n_features] != 0] = np.inf
    return share.foremost(pull, size)
