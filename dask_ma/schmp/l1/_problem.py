"""Objective of an L1-regularised fit on the rows of this rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import allgather
from dask_ma.layouts._design import Design
from dask_ma.schmp.l1._losses import WeightedLoss

_INTERCEPT_STEPS = 50
_INTERCEPT_TOLERANCE = 1e-13
_SLOW = 0.1  # of the slopes before a step: second derivatives that leave more are old
_ROUNDING = 1e-14
# Of the null objective: a gap that is asked for only of a user who sets `tol` so small.
_SMALLEST_GAP = 1e-10
_SETTLED = 1e-9  # of the largest gradient: 0, where a coefficient has no penalty


class Penalty(NamedTuple):
    """``sum_j l1_j |w_j| + l2_j w_j^2 / 2``, the same for all outputs of a feature.

    Attributes
    ----------
    l1, l2 : ndarray of float64 of shape (n_features,)
        Not negative.
    positive : bool
        Whether coefficients must not be negative.
    """

    l1: np.ndarray
    l2: np.ndarray
    positive: bool

    @property
    def without_l1(self) -> np.ndarray:
        """Which features have no L1 penalty, of shape (n_features,)."""
        return np.asarray(self.l1 == 0)

    def of(self, features: np.ndarray, coef: np.ndarray) -> float:
        """Value for some coefficients."""
        l1 = self.l1[features] @ np.abs(coef)
        return float(l1 + self.l2[features] @ coef**2 / 2)


@dataclass
class Sparse:
    """Coefficients that are at hand; all others are zero.

    Attributes
    ----------
    coordinates : ndarray of int64 of shape (m,)
        ``feature * n_outputs + output``, sorted.
    coef : ndarray of float64 of shape (m,)
        Their values; some may be zero.
    intercept : ndarray of float64 of shape (n_outputs,)
    """

    coordinates: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray

    @classmethod
    def empty(cls, n_outputs: int) -> Sparse:
        """The model without coefficients."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(n_outputs))

    def state_dict(self) -> dict[str, Any]:
        """Copies for a checkpoint."""
        return {
            "coordinates": self.coordinates.copy(),
            "coef": self.coef.copy(),
            "intercept": self.intercept.copy(),
        }


class Objective:
    """Loss and penalty of a model, with the margins of this rank's rows.

    Parameters
    ----------
    design : Design
        The features.
    loss : WeightedLoss
        Loss on this rank's rows.
    penalty : Penalty
        Penalty of the coefficients.
    fit_intercept : bool
        Whether there is an intercept.
    level : float, default=None
        Mean of the targets of all ranks, the same on each, if it is known but for
        rounding.

    Attributes
    ----------
    margins : ndarray of float64 of shape (n_rows, n_outputs)
        Values of the linear functions of the present model, less the offset.
    offset : float
        What has been taken from the targets.
    null : float
        Objective of the best model without coefficients.
    n_rows : int
        Rows of all ranks.
    lacks_means : bool
        Whether this rank knows the means of some columns alone; those of others are not
        a number.
    tolerances : ndarray of float64 of shape (n_features,)
        Gradients that count as 0, of features without any penalty; infinity for others,
        and before :meth:`learn_tolerances`.
    """

    def __init__(
        self,
        design: Design,
        loss: WeightedLoss,
        penalty: Penalty,
        fit_intercept: bool,
        level: float | None = None,
    ) -> None:
        self.design = design
        self.loss = loss
        self.penalty = penalty
        self.fit_intercept = fit_intercept
        self.n_outputs = loss.n_outputs
        self.margins = np.zeros((design.n_rows, self.n_outputs))
        self.means = np.zeros(design.n_features)  # known after learn_means
        self._has_means = False
        self.lacks_means = False
        self._with_means = np.zeros(0, dtype=np.int64)  # features, where some lack them
        self.tolerances = np.full(design.n_features, np.inf)
        self.offset = 0.0
        off = 0.0
        if self.centers:
            off = self._take_level(level)
        else:
            self.settle_intercept(Sparse.empty(self.n_outputs))
        null, n_rows, off = self._sum([loss.value(self.margins), design.n_rows, off])
        self.null, self.n_rows = float(null), int(n_rows)
        if self.centers:
            # What rounding has left of a mean: 0 for equal targets.
            self._shift_targets(float(off))
            self.null = max(self.null - float(off * off) / 2, 0.0)

    @property
    def centers(self) -> bool:
        """Whether an intercept is fitted by taking means from rows and targets."""
        return self.fit_intercept and self.loss.is_quadratic

    def gap_asked(self, tol: float, value: float) -> float:
        """Gap at which a fit ends.

        Parameters
        ----------
        tol : float
            The gap as a part of the null objective.
        value : float
            Objective of the present model. Where that is much less than the null
            objective, a part of the latter says nothing: the gap is no larger than the
            root of `tol` times the former.
        """
        least = min(tol, _SMALLEST_GAP) * self.null
        return max(min(tol * self.null, math.sqrt(tol) * value), least)

    def learn_means(self) -> None:
        """Work out the means of the columns, once; a collective call."""
        # One pass for all: for those of each working set the ranks would have to wait
        # for each other in every round.
        if not self.centers or self._has_means:
            return
        if not self.lacks_means:
            self.take_means(self.design.column_sums(self.loss.weight))
            return
        means = self.means.copy()
        own = self._with_means, means[self._with_means]
        for features, values in allgather(self.design.group, own):
            means[features] = values
        self.take_means(means)

    def learn_own_means(self) -> None:
        """Work out the means of this rank's part of the columns; a collective call.

        A part is what :meth:`Design.products` gives; it has to stay the same until
        :meth:`learn_means`. Means of other columns are for the caller to set.
        """
        design = self.design
        is_known = self._has_means or self.lacks_means
        if not self.centers or is_known or len(design.alive) < design.n_features:
            return
        part, _ = design.products(self.loss.weight[:, np.newaxis])
        if design.group.size == 1:
            self.take_means(part.values[:, 0])
            return
        self.means[:] = np.nan  # not to be used by mistake
        self.means[part.features] = part.values[:, 0]
        self._with_means, self.lacks_means = part.features, True

    def take_means(self, means: np.ndarray) -> None:
        """Take the means of all columns from somebody who has worked them out."""
        self.means[:] = means
        self._has_means, self.lacks_means = True, False

    def learn_tolerances(self, features: np.ndarray) -> None:
        """Work out which gradients of features without penalty count as 0.

        A collective call, after :meth:`Design.fetch`. These are small parts of the
        gradient that a column of that spread can have.
        """
        if not len(features) or (self.tolerances[features] < np.inf).all():
            return
        moments = self.design.moments(features, self.loss.weight)
        raw, means = self.design.sum(moments).T
        if not self.fit_intercept:
            means = np.zeros_like(means)
        spread = np.sqrt(np.maximum(raw - means**2, 0.0))
        largest = _SETTLED * spread + _INTERCEPT_TOLERANCE * np.sqrt(raw)
        self.tolerances[features] = largest * np.sqrt(2 * self.null)

    def set_model(self, model: Sparse) -> None:
        """Work out the margins of a model; a collective call."""
        nonzero = np.flatnonzero(model.coef)
        features = model.coordinates // self.n_outputs
        self.design.fetch(np.unique(features))
        if len(features) or not self.lacks_means:
            self.learn_means()
        self.margins = self.change(model.coordinates[nonzero], model.coef[nonzero])
        self.margins += model.intercept
        self.settle_intercept(model)

    def value_of(self, model: Sparse) -> float:
        """Objective of a model, which is set; a collective call."""
        with np.errstate(over="ignore", invalid="ignore"):
            self.set_model(model)
            value = float(self._sum([self.loss.value(self.margins)])[0])
        return value + self.penalty.of(model.coordinates // self.n_outputs, model.coef)

    def change(self, coordinates: np.ndarray, coef: np.ndarray) -> np.ndarray:
        """What coefficients add to the margins, of shape (n_rows, n_outputs)."""
        features, places = np.unique(coordinates // self.n_outputs, return_inverse=True)
        values = np.zeros((len(features), self.n_outputs))
        values[places, coordinates % self.n_outputs] = coef
        result = self.design.dot(features, values)
        if self.centers:
            result -= self.means[features] @ values
        return result

    def settle_intercept(self, model: Sparse) -> None:
        """Bring the intercept to its optimum for the coefficients; a collective call.

        At the optimum the slopes add up to 0, which makes them a point of the dual
        problem. The margins follow. Where means have been taken out there is nothing to
        do but :meth:`center`.
        """
        if not self.fit_intercept or self.centers:
            return
        inverse, before = None, 0.0
        for _ in range(_INTERCEPT_STEPS):
            # Of many classes the second derivatives take much longer than slopes, and
            # those of a step before will do while they lead on fast.
            slopes, hessian = self._intercept_slopes(inverse is None)
            size = np.abs(slopes).max()
            if size <= _INTERCEPT_TOLERANCE:
                break
            if hessian is not None:
                # Outputs that all move together change nothing: the shortest step.
                inverse = np.linalg.pinv(hessian, rcond=1e-10, hermitian=True)
            elif size > _SLOW * before:
                inverse = None
                continue
            step, before = inverse @ slopes, size
            # Newton's method may overshoot far from the optimum.
            step /= max(1.0, np.abs(step).max())
            model.intercept += step
            self.margins += step
            if np.abs(step).max() <= 1e-15 * (1 + np.abs(model.intercept).max()):
                break
            if self.n_outputs == 1:
                inverse = None

    def own_gradient(self, coordinates: np.ndarray) -> list[np.ndarray]:
        """Negative gradient of the loss, and its constant term, from own rows.

        Parameters
        ----------
        coordinates : ndarray of int64 of shape (m,)
            Coefficients to find it for; the intercepts come behind them.

        Returns
        -------
        sums : list of ndarray, of shape (m + n_outputs,) and (1,)
            To be added up over ranks. The gradient by the intercept is left out where
            means are taken from the columns.
        """
        slopes = self.loss.negative_slopes(self.margins)
        K = self.n_outputs
        features, places = np.unique(coordinates // K, return_inverse=True)
        products = self.design.transposed_dot(features, slopes)
        gradient = products[places, coordinates % K]
        if self.centers:
            gradient = gradient - self.means[coordinates] * slopes.sum()
        else:
            gradient = np.concatenate([gradient, slopes.sum(axis=0)])
        norm = np.array([self.loss.norm(self.margins)])
        if not self.design.is_counted():
            return [np.zeros_like(gradient), np.zeros(1)]
        return [gradient, norm]

    def own_sums(self, slopes: np.ndarray) -> np.ndarray:
        """What :meth:`center` needs of this rank's rows, to be added up over ranks.

        Parameters
        ----------
        slopes : ndarray of shape (n_rows, n_outputs)
            Negative slopes of the loss at the present margins.
        """
        value = self.loss.value(self.margins)
        if not self.loss.is_quadratic:
            return np.array([value])
        along = float(slopes[:, 0] @ self.loss.y)
        return np.array([value, along, float(slopes.sum())])

    def center(self, sums: np.ndarray) -> np.ndarray:
        """Take from the margins what rounding has left of a mean of the residuals.

        Parameters
        ----------
        sums : ndarray
            Of what :meth:`own_sums` has given, over ranks.

        Returns
        -------
        sums : ndarray
            The same of the new margins.
        """
        if not self.centers:
            return sums
        value, along, mean = (float(number) for number in sums)
        self.margins += mean
        return np.array([value - mean * mean / 2, along, 0.0])

    def shown_intercept(self, model: Sparse) -> np.ndarray:
        """Intercepts of a model for rows as they are, without means taken out."""
        if not self.centers:
            # A number added to the intercepts of all classes changes nothing.
            shared = model.intercept.mean() if self.n_outputs > 1 else 0.0
            return np.asarray(model.intercept - shared)
        features = model.coordinates  # there is one output
        return np.array([self.offset - self.means[features] @ model.coef])

    def _intercept_slopes(self, is_bent: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Negative slope by the intercepts, and second derivatives where wanted."""
        K = self.n_outputs
        values = np.zeros((1 + K * is_bent, K))
        values[0] = self.loss.negative_slopes(self.margins).sum(axis=0)
        if is_bent:
            values[1:] = self.loss.summed_curvatures(self.margins)
        values = self._sum(values)
        return values[0], values[1:] if is_bent else None

    def _take_level(self, level: float | None) -> float:
        """Take the mean from the targets; this rank's part of what is left of it."""
        loss = self.loss
        if level is None:
            level = float(self._sum([float(loss.weight @ loss.y)])[0])
        left = float(loss.weight @ (loss.y - level))
        self._shift_targets(level)
        return left

    def _shift_targets(self, off: float) -> None:
        """Take a number from the targets."""
        self.offset += off
        self.loss.y = self.loss.y - off
        # Of equal targets rounding may be left, which nothing can be fitted to.
        self.loss.y[np.abs(self.loss.y) <= _ROUNDING * abs(self.offset)] = 0.0

    def _sum(self, values: Any) -> np.ndarray:
        return self.design.sum(np.asarray(values, dtype=np.float64))
