"""Objective and duality gap of a model over the rows of all ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dask_ma.comm import allgather
from dask_ma.engine import RoundLog
from dask_ma.layouts._design import Part
from dask_ma.schmp.l1._problem import Objective, Penalty, Sparse

# Of the length of a column: what rounding leaves of gradients, and of an intercept that
# is nearly the best one.
_ROUNDING = 1e-12


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
    tells : callable
        Gives numbers of this rank that are to be added up over ranks at the next check.
    told : ndarray of float64
        Their sums at the last one.
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
        self.tells: Callable[[], np.ndarray] = _nothing
        self.told = _nothing()
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
        """Objective and duality gap of the model; a collective call.

        All ranks work it out from the same numbers, so they have the same bits.
        """
        objective = self.objective
        with self.log.computing("evaluate"):
            slopes = objective.loss.negative_slopes(objective.margins)
            part, sums = self._design.products(slopes, objective.own_sums(slopes))
            self._part = self._gradient(part, sums)
            self._ratios = self._violations(self._part)
            head = self._head(sums)
            proposal = self._proposal()
        received = allgather(self._group, (head, self.tells(), *proposal))
        heads, told, *proposals = zip(*received, strict=True)
        self.told = np.sum(told, axis=0)
        self._take_proposals(proposals)
        self._certificate = self._certify(np.array(heads))
        return self._certificate

    def gradient(self) -> np.ndarray:
        """Negative gradient at the last check; a collective call.

        Returns
        -------
        gradient : ndarray of float64 of shape (n_features, n_outputs)
            0 of features that have been ruled out.
        """
        gradient = np.zeros((self._design.n_features, self.objective.n_outputs))
        for features, values in allgather(self._group, tuple(self._part)):
            gradient[features] = values
        return gradient

    def clear_reach(self) -> float:
        """Largest gradient over its bound, of those above rounding; a collective call.

        Returns
        -------
        reach : float
            0 where rounding is all that there is.
        """
        squares = self._design.squares(self.objective.loss.weight, center=False)
        lengths = np.zeros((self._design.n_features, 1))
        for features, values in allgather(self._group, tuple(squares)):
            lengths[features] = np.sqrt(values)
        part = self._part
        is_clear = np.abs(part.values) > _ROUNDING * lengths[part.features]
        own = np.max(self._ratios, initial=0.0, where=is_clear)
        return float(max(allgather(self._group, float(own))))

    def go_on_from(self, model: Sparse) -> None:
        """Take another model; a collective call before :meth:`check`."""
        self.model = model
        self.objective.set_model(model)

    def _head(self, sums: np.ndarray) -> np.ndarray:
        """Numbers of this rank: two largest ones, two sums, and what rank 0 tells."""
        objective, model = self.objective, self.model
        features = model.coordinates // objective.n_outputs
        penalty = objective.penalty.of(features, model.coef)
        largest = [self._ratios.max(initial=0.0), self._unsettled(self._part)]
        ridge = self._ridge_of_bounded(features)
        return np.array([*largest, self._own_ridge, ridge, penalty, *sums])

    def _proposal(self) -> tuple[np.ndarray, ...]:
        """What this rank tells the others besides; they get it with the gap."""
        return ()

    def _take_proposals(self, proposals: Sequence[Sequence[np.ndarray]]) -> None:
        """Take in what :meth:`_proposal` has given: for each item that of all ranks."""

    def _certify(self, heads: np.ndarray) -> DualityGap:
        """The certificate from the numbers of all ranks; a collective call."""
        objective = self.objective
        reach, unsettled = heads[:, :2].max(axis=0)
        # Others than rank 0 may have another processor, which rounds otherwise.
        ridge, penalty, *sums = (float(number) for number in heads[0, 3:])
        for own in heads[:, 2]:
            ridge += float(own)
        centred = objective.center(np.array(sums))
        self.reach, self.is_settled = float(reach), bool(unsettled <= 1)
        scale = 1.0 if reach <= 1 else 1 / self.reach
        if not self.is_settled:
            # No multiple of the slopes but 0 is a point of the dual problem.
            scale = 0.0
        value = float(centred[0]) + penalty
        dual = self._dual(centred, scale) - scale * scale * ridge / 2
        self.best_dual = max(self.best_dual, dual)
        gap = max(value - self.best_dual, 0.0)
        if not np.isfinite([value, gap]).all():
            raise ValueError(
                f"the model is not finite any more (objective {value}, duality "
                f"gap {gap}): {self._advice}"
            )
        return DualityGap(value, gap, scale, max(value - dual, 0.0))

    def _dual(self, sums: np.ndarray, scale: float) -> float:
        """Dual objective of the slopes times a number, without the ridge penalty."""
        loss = self.objective.loss
        if loss.is_quadratic:
            value, along = float(sums[0]), float(sums[1])
            return scale * along - scale * scale * value
        own = np.array(loss.dual(self.objective.margins, scale))
        return float(self._design.sum(own))

    def _gradient(self, part: Part, sums: np.ndarray) -> Part:
        """Negative gradient without the L1 term, for the features of this rank."""
        penalty = self.objective.penalty
        if self.objective.centers:  # what centred residuals would have given
            part.values[:, 0] -= self.objective.means[part.features] * sums[2]
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

    def _ridge_of_bounded(self, features: np.ndarray) -> float:
        """Twice what the ridge takes from the dual objective where there is L1."""
        # With L1, the gradient is kept within its bound and the coefficient is its own
        # dual; elsewhere the conjugate of the penalty is finite at any gradient, and
        # `_own_ridge` has it.
        penalty = self.objective.penalty
        bound = ~penalty.without_l1[features]
        return float(penalty.l2[features[bound]] @ self.model.coef[bound] ** 2)

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


def _nothing() -> np.ndarray:
    """What a rank tells the others where nobody asks."""
    return np.zeros(0)
