"""Objective and duality gap of a model over the rows of all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dask_ma.comm import allreduce, broadcast
from dask_ma.engine import RoundLog
from dask_ma.layouts._design import Part
from dask_ma.schmp.l1._problem import Objective, Penalty, Sparse


class DualityGap(NamedTuple):
    """How far a model is from the optimum at most.

    Attributes
    ----------
    objective : float
        Of the model.
    gap : float
        Duality gap: the objective minus the best dual objective so far.
    scale : float
        Factor that makes the slopes a point of the dual problem; 0 if only the origin
        is known to be one.
    gap_of_point : float
        The objective minus the dual objective of that point, at least `gap`.
    """

    objective: float
    gap: float
    scale: float
    gap_of_point: float


class Solver(ABC):
    """Rounds that bring a model nearer to the optimum, on one rank among others.

    Parameters
    ----------
    objective : Objective
        What to minimise.
    model : Sparse
        Model to begin with; it is changed in place.
    log : RoundLog
        Where computing is timed.

    Attributes
    ----------
    best_dual : float
        Largest dual objective so far.
    reach : float
        The largest gradient over its bound at the last check.
    is_settled : bool
        Whether, at the last check, the gradient of all coefficients without any penalty
        was 0 but for rounding, as it has to be at a point of the dual problem.
    polished : bool or None
        Whether, in the last round, rank 0 has solved for coefficients that a schedule
        had chosen; None where that is what each round does.
    n_recorded : int
        Stored elements that had been read at the last record.
    """

    # What a user can do about a model that is not finite.
    _advice: ClassVar[str] = "scale the features, and y in a regression"

    def __init__(self, objective: Objective, model: Sparse, log: RoundLog) -> None:
        self.objective = objective
        self.model = model
        self.log = log
        self.best_dual = -np.inf
        self.reach = 0.0
        self.is_settled = True
        self.polished: bool | None = None
        self.n_recorded = objective.design.n_touched
        self._design = objective.design
        self._group = objective.design.group

    @abstractmethod
    def improve(self) -> None:
        """Make a round; a collective call after :meth:`check`."""

    @property
    def n_touched(self) -> int:
        """Stored elements of the data that this rank has read so far."""
        return self._design.n_touched

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the model."""
        return self.model.state_dict()

    def shown_intercept(self) -> np.ndarray:
        """Intercepts of the model for rows as they are."""
        return self.objective.shown_intercept(self.model)

    def change_penalty(self, penalty: Penalty) -> None:
        """Go on with another penalty, with the same coefficients free of L1."""
        self.objective.penalty = penalty
        self.best_dual = -np.inf
        self._design.restore()

    def check(self) -> DualityGap:
        """Objective and duality gap of the model; a collective call."""
        with self.log.computing("evaluate"):
            slopes = self.objective.loss.negative_slopes(self.objective.margins)
            self._part = self._gradient(slopes)
            self._ratios = self._violations(self._part)
        worst = np.array([self._ratios.max(initial=0.0), self._unsettled(self._part)])
        reach, unsettled = allreduce(self._group, worst, "max")
        self.reach, self.is_settled = float(reach), bool(unsettled <= 1)
        scale = 1.0 if reach <= 1 else 1 / self.reach
        if not self.is_settled:
            scale = (
                0.0  # no multiple of the slopes but 0 is a point of the dual problem
            )
        loss, margins = self.objective.loss, self.objective.margins
        sums = self._design.sum(
            np.array([loss.value(margins), loss.dual(margins, scale)])
        )
        features = self.model.coordinates // self.objective.n_outputs
        value = float(sums[0]) + self.objective.penalty.of(features, self.model.coef)
        dual = float(sums[1] - scale**2 * self._dual_ridge(features) / 2)
        self.best_dual = max(self.best_dual, dual)
        # Rank 0 decides, so that ranks on other processors do not decide otherwise.
        gap = max(value - self.best_dual, 0.0)
        certificate = DualityGap(value, gap, scale, max(value - dual, 0.0))
        self._certificate = DualityGap(*broadcast(self._group, tuple(certificate)))
        if not np.isfinite(self._certificate[:2]).all():
            raise ValueError(
                f"the model is not finite any more (objective {value}, duality "
                f"gap {gap}): {self._advice}"
            )
        return self._certificate

    def _gradient(self, slopes: np.ndarray) -> Part:
        """Negative gradient without the L1 term, for the features of this rank."""
        part = self._design.products(slopes)
        penalty = self.objective.penalty
        ridge_only = self._has(part, penalty.without_l1 & (penalty.l2 > 0))
        squares = (part.values[ridge_only] ** 2).sum(axis=1)
        self._own_ridge = float((squares / penalty.l2[part.features[ridge_only]]).sum())
        features, outputs = np.divmod(self.model.coordinates, self.objective.n_outputs)
        places = np.searchsorted(part.features, features)
        places = np.minimum(places, max(0, len(part.features) - 1))
        mine = np.zeros(len(features), dtype=bool)
        if len(part.features):
            mine = part.features[places] == features
        ridge = penalty.l2[features[mine]] * self.model.coef[mine]
        part.values[places[mine], outputs[mine]] -= ridge
        return part

    def _dual_ridge(self, features: np.ndarray) -> float:
        """Twice what the ridge penalty takes from the dual objective, at scale 1."""
        penalty = self.objective.penalty
        # With L1, the gradient is kept within its bound and the coefficient is its own
        # dual; elsewhere the conjugate of the penalty is finite at any gradient.
        bound = ~penalty.without_l1[features]
        ridge = penalty.l2[features[bound]] @ self.model.coef[bound] ** 2
        if (penalty.without_l1 & (penalty.l2 > 0)).any():
            ridge += allreduce(self._group, np.array(self._own_ridge))
        return float(ridge)

    def _unsettled(self, part: Part) -> float:
        """Gradients of coefficients without penalty, over what counts as 0."""
        tolerances = self.objective.tolerances
        rows = self._has(part, tolerances < np.inf)
        tolerated = tolerances[part.features[rows], np.newaxis]
        gradients = np.abs(part.values[rows])
        ratios = np.full_like(gradients, np.inf)
        np.divide(gradients, tolerated, out=ratios, where=tolerated > 0)
        ratios[gradients == 0] = 0.0
        return float(ratios.max(initial=0.0))

    @staticmethod
    def _has(part: Part, mask: np.ndarray) -> np.ndarray:
        """Rows of a part whose features are among some."""
        return np.flatnonzero(mask[part.features])

    def _violations(self, part: Part) -> np.ndarray:
        """Gradient over its bound, where there is one; above 1 it is violated."""
        l1 = self.objective.penalty.l1[part.features][:, np.newaxis]
        values = part.values if self.objective.penalty.positive else np.abs(part.values)
        ratios = np.zeros_like(values)
        np.divide(values, l1, out=ratios, where=l1 > 0)
        return ratios
