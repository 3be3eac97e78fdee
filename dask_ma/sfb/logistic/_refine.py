"""The last part of a fit: steps on the objective of all rows at once.

Stochastic steps need long for the rest where features are alike or rows few. It is
done by proximal Newton steps on the whole gradient: with the second derivatives by all
coefficients that matter, where these are few, by conjugate gradients where there is an
L2 penalty alone, on uncorrelated features if rows are dense, by single variables or
within outputs where there is an L1 penalty and rows are sparse or dense, each followed
by Newton's step among the points of the same signs, and else with limited-memory BFGS.
Rank 0 finds the steps; a step, and each product that it takes, sends a matrix from each
rank to it, and one back.

Where single precision has nothing to gain, or too much to round, steps go on in double
precision, on a matrix of their own.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from dask_ma.comm import broadcast
from dask_ma.engine import RankContext, RoundLog
from dask_ma.kernels import (
    CompactMemory,
    ConjugateGradients,
    model_point,
    penalty_of,
)
from dask_ma.sfb.logistic._face import Face, Step, shorter
from dask_ma.sfb.logistic._memory_state import agreed, fill_memory, memory_state
from dask_ma.sfb.logistic._models import LocalModel, make_model
from dask_ma.sfb.logistic._newton import Sample, excess_of, newton_target, plan_of
from dask_ma.sfb.logistic._objective import Evaluation, Objective
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._room import Room, count_pairs
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.logistic._truncated import truncated_newton
from dask_ma.sfb.logistic._unit_choice import UnitChoice
from dask_ma.sfb.logistic._units import Place, UncorrelatedUnits
from dask_ma.sfb.model._matrix import ParameterMatrix

#: Coefficients with second derivatives at most; the rest is left to BFGS.
MOST_VARIABLES = 1200
_LEFT_ON_FACE = 0.05  # of a gradient, by conjugate gradients among points of its signs
_SUFFICIENT = 1e-4
_MOST_TRIALS, _FEW_TRIALS = 30, 6
# How often a step that has been cut is made longer at most, and by what at least.
_MOST_LONGER, _WORTH = 3, 1.3
_SHORT = 0.2  # share of a step that says that it has been begun at the wrong place
_ROUNDING = 1e-14


class Refinement:
    """Steps on the whole objective; making one is a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    objective : Objective
        The objective of all ranks.
    matrix : ParameterMatrix
        Where to start from; changed by the steps.
    penalty : Penalty
        Without the trace norm.
    totals : Totals
        Sums over all ranks.
    log : RoundLog
        Where computing is timed.
    room : Room
        What there is memory for.
    kept : dict, default=None
        What :meth:`state_dict` has given on this rank.

    Attributes
    ----------
    now : Evaluation
        The objective at the point.
    is_stuck : bool
        Whether the last step has found nothing lower.
    decrease : float
        By how much the last step was to lower the objective; infinite before it.
    """

    def __init__(
        self,
        context: RankContext,
        objective: Objective,
        matrix: ParameterMatrix,
        penalty: Penalty,
        totals: Totals,
        log: RoundLog,
        room: Room,
        kept: dict[str, Any] | None = None,
    ) -> None:
        self._group = context.group
        self._objective = objective
        self._matrix = matrix
        self._log = log
        n_outputs, n_features = matrix.shape
        has_intercept = matrix.intercept is not None
        kept = agreed(context.group, kept)
        shape = n_outputs, n_features
        kinds = shape, penalty, totals, MOST_VARIABLES
        self._choice = UnitChoice(
            objective, *kinds, has_intercept=has_intercept, kept=kept or {}
        )
        with log.computing():
            self._units = self._choice.make()
            self._units.load_state_dict(kept or {})
        self._scales, self._l2 = self._units.scales, self._units.l2
        self._l1 = penalty.l1 / self._scales
        self._l1[n_features * n_outputs :] = 0
        self._trial = self._started(kept)
        # Steps with all second derivatives find intercepts with the rest.
        self._settles = has_intercept and len(self._scales) > self._choice.most
        has_cg = penalty.l2 > 0 and not penalty.l1
        self._truncates = has_cg or self._is_uncorrelated  # where these are too many
        self._features = np.repeat(np.arange(n_features + has_intercept), n_outputs)
        self._outputs = np.tile(np.arange(n_outputs), n_features + has_intercept)
        self._sample = Sample(objective.n_rows, kept or {})
        self._memory = CompactMemory(count_pairs(len(self._scales)))
        fill_memory(self._memory, kept)
        place = objective, penalty, totals, shape, self._scales
        self._model = make_model(*place, has_room=room.blocks)
        if self._model is not None:
            self._model.load_state_dict(kept or {})
        self._newton: np.ndarray | None = None  # step, on rank 0
        self._n_products = 0  # of the last step by conjugate gradients
        self.is_stuck, self.decrease = False, np.inf
        self._decrement = np.inf  # of the last step, on rank 0
        self._is_first = kept is None
        self._share = 1.0  # of the last step that was made, on rank 0
        # Steps are seldom short where features are uncorrelated.
        self._may_begin_anew = self._is_uncorrelated
        if kept and "may_begin_anew" in kept:
            self._may_begin_anew = bool(kept["may_begin_anew"])
        with log.computing():
            self.now = self._evaluate(settles=kept is None)  # in a state they have
            self._place = self._found(self.now)

    def run_round(self) -> None:
        """Make a step that lowers the objective; a collective call."""
        with self._log.computing():
            plan = None
            if self._place is not None:
                size = self._sample, self._choice.most
                names = self._features, self._outputs
                plan = plan_of(self._place, self._l1, *names, *size)
            plan = broadcast(self._group, plan)
            hessian = None
            if plan is not None:
                hessian = self._objective.hessian(self._trial, *plan[1:])
            elif self._truncates:
                self._newton = self._newton_step()
            elif self._model is not None:
                self._model.find(self._trial)
            self._search(plan, hessian)
            if plan is not None:
                self._sample.note(plan[3], self._share)
            if plan is None and self._model is not None:
                self._step_on_face(self._model)
                self._model.forget()
            if self._may_begin_anew:
                self._begin_anew()
            is_rough = self.is_stuck or self._units.wants_double
            if is_rough and self._trial.dtype != np.float64:
                self._sharpen()
            elif self.is_stuck and np.isfinite(self.now.bound):
                self._certify(plan, hessian)
            if plan is None and self._choice.turn(self._n_products):
                self._take_pairs()

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on from here."""
        trial, kept = self._trial, memory_state(self._memory)
        kept.update(self._units.state_dict())
        kept.update(self._choice.state_dict())
        kept.update(self._sample.state_dict())
        kept["may_begin_anew"] = np.array(self._may_begin_anew)
        if self._model is not None:
            kept.update(self._model.state_dict())
        if self._place is not None and trial is not self._matrix:  # on rank 0
            kept["values"] = trial.whole().copy()
            if trial.intercept is not None:
                kept["intercept"] = trial.intercept.copy()
        return kept

    def _take_pairs(self) -> None:
        """Have second derivatives of all pairs from here on; a collective call."""
        self._units = self._choice.make()
        self._scales, self._l2 = self._units.scales, self._units.l2
        self._settles = self._may_begin_anew = False
        self._newton = None
        self._place = self._found(self.now)

    def _begin_anew(self) -> None:
        """Go on from zero if steps are short and that leads lower; collective."""
        # At large weights, rows may have next to no second derivatives, unlike at zero.
        if not broadcast(self._group, 0 < self._share < _SHORT):
            return
        self._may_begin_anew = False  # once is enough
        before = self.now, self.is_stuck, self.decrease, self._decrement
        kept, place = self._kept(), self._place
        self._move(None if place is None else np.zeros_like(place.point))
        self.now = self._evaluate()
        self._place = self._found(self.now)
        self._units.renew()  # other rows are in doubt
        self._newton = self._newton_step()
        self._search(None, None)
        if self.now.objective >= before[0].objective:
            self._units.renew()
            self._put(broadcast(self._group, kept))
            self.now, self.is_stuck, self.decrease, self._decrement = before
            self._place = self._found(self.now)

    def _step_on_face(self, model: LocalModel) -> None:
        """Go towards the minimum among points with these signs; a collective call."""
        before, face, solver = self.now.objective, None, None
        if self._place is not None:
            penalties = self._l1, self._l2
            face = Face(*self._place, *penalties, self._matrix.shape[0])
            solver = ConjugateGradients(
                -face.slopes,
                tol=_LEFT_ON_FACE,
                most=model.most_products,
                precondition=model.inverse(face),
            )
        found, step = self._solve(solver, face), None
        if face is not None and found is not None:
            step = face.step(self._units.without_drift(found))
        share = self._go(step, _FEW_TRIALS)
        model.note_step_on_face(share)
        if share:
            least = max(_ROUNDING, float(np.finfo(self._trial.dtype).eps))
            is_idle = before - self.now.objective <= least * abs(before)
            self.is_stuck = self.is_stuck and is_idle

    @property
    def _is_uncorrelated(self) -> bool:
        """Whether features have been made so."""
        return isinstance(self._units, UncorrelatedUnits)

    def _started(self, kept: dict[str, Any] | None) -> ParameterMatrix:
        """The matrix to begin with; a collective call."""
        found = None
        if kept and "values" in kept:  # on rank 0
            found = kept["values"], kept.get("intercept")
        found = broadcast(self._group, found)
        return self._matrix if found is None else self._exact(*found)

    def _exact(self, values: np.ndarray, intercept: Any) -> ParameterMatrix:
        """A matrix of double precision."""
        if intercept is not None:
            intercept = intercept.astype(np.float64)
        return ParameterMatrix(
            values.T.astype(np.float64), intercept, self._matrix.prox
        )

    def _certify(self, plan: Any, hessian: np.ndarray | None) -> None:
        """Bound the minimum by the second derivatives where it is near; collective."""
        # In the dual objective, what rounding leaves of the gradient is divided by the
        # units of features, and may be large.
        is_whole = plan is not None and len(plan[0]) == len(self._l1) and plan[3] == 1
        if not is_whole or self._l1.any():
            return
        n_features = self._matrix.shape[1]
        scales = self._scales[: n_features * self._matrix.shape[0]]
        largest = self._objective.largest_square(scales[:: self._matrix.shape[0]])
        bound = self.now.bound
        if hessian is not None and self._place is not None:  # on rank 0
            n_outputs = self._matrix.shape[0]
            has_drift = self._matrix.intercept is not None and n_outputs > 1
            excess = excess_of(
                hessian,
                self._scales,
                self._l2,
                n_outputs * has_drift,
                self.now.objective,
                self._decrement,
                largest,
            )
            bound = max(bound, self.now.objective - excess)
        self.now = self.now._replace(bound=float(broadcast(self._group, bound)))

    def _sharpen(self) -> None:
        """Go on from here in double precision; a collective call."""
        self._trial = self._exact(self._matrix.whole(), self._matrix.intercept)
        self.now = self._evaluate()
        self._place = self._found(self.now)
        self.is_stuck = False

    def _evaluate(self, *, settles: bool = True) -> Evaluation:
        """The objective at the trial point, whose intercepts settle; collective."""
        settles = settles and self._settles
        found = self._objective.evaluate(self._trial, settles=settles)
        if settles and self._matrix.intercept is not None:
            self._matrix.intercept[...] = self._trial.intercept
        return found

    def _newton_step(self) -> np.ndarray | None:
        """About Newton's step, on rank 0, by conjugate gradients; a collective call."""
        solver, moments = None, None
        if self._units.is_due:
            moments = self._units.find(self._objective, self._trial)
        if self._place is not None:
            if self._units.meet(self.now.curvature, moments):
                self._place = self._found(self.now)
                assert self._place is not None
            point, gradient = self._place
            gradient = gradient + self._l2 * point  # what units have not in them
            curvature = None if self._is_uncorrelated else self.now.curvature
            place, left = (gradient, self._l2, curvature), self._units.left
            solver = truncated_newton(*place, left=left, is_first=self._is_first)
            self._is_first = False
        found = self._solve(solver)
        self._units.note(self._n_products)
        return found

    def _solve(
        self, solver: ConjugateGradients | None, face: Face | None = None
    ) -> np.ndarray | None:
        """Give a solver, on rank 0, the products it asks for; a collective call."""
        group, units = self._group, self._units
        curvature = self._objective.curvature(self._trial)
        self._n_products = 0
        while True:
            direction = None if solver is None else solver.direction
            asked = None if direction is None else units.values_of(direction)
            asked = broadcast(group, asked)
            if asked is None:
                return None if solver is None else solver.solution
            dtype = self._trial.dtype
            self._n_products += 1
            found = curvature.product(*(part.astype(dtype) for part in asked))
            if solver is not None and direction is not None and found is not None:
                total, slopes = found
                intercept = slopes if len(asked[1]) else None
                product = units.gradient_of(total, intercept, asked[0])
                product += self._l2 * direction  # what units have not in them
                solver.take(product if face is None else face.within(product))

    def _target(
        self, start: Place, plan: Any, hessian: np.ndarray | None
    ) -> np.ndarray:
        """On rank 0, where the model of the objective is least."""
        point, gradient = start
        if self._newton is not None:
            return point - self._newton
        l1, l2 = self._l1, self._l2
        if plan is None and self._model is not None:
            return self._model.target(point, gradient, l1, l2)
        if hessian is None and not l1.any():
            return point - self._memory.solve(gradient + l2 * point, l2)
        if hessian is None:
            return model_point(self._memory.product, gradient, point, l1, l2)
        return newton_target(plan[0], hessian, self._scales, start, (l1, l2))

    def _search(self, plan: Any, hessian: np.ndarray | None) -> None:
        """Go towards the least point of the model as far as the objective falls."""
        before, start, step = self.now, self._place, None
        if start is not None:  # on rank 0, which decides for all
            target = self._target(start, plan, hessian)
            direction = self._units.without_drift(target - start.point)
            target = start.point + direction
            slope = float(start.gradient @ direction)
            slope += self._penalty(target) - self._penalty(start.point)
            # Newton's decrement is at most twice what the model says is to be gained.
            self._decrement = -2 * slope
            step = Step(start.point, direction, slope)
        self._share = self._go(step, _MOST_TRIALS)
        if self._share:
            self._learn(start, plan)
            if plan is None and self._model is not None:
                self._model.note_step(self._share)
            self.decrease = float(broadcast(self._group, -step.slope if step else None))
            self.is_stuck = self._is_noise(before.objective - self.now.objective)
            return
        # What the memory holds may be of another place.
        self.is_stuck = bool(broadcast(self._group, not self._forget(plan)))

    def _go(self, step: Step | None, n_trials: int) -> float:
        """Which share of rank 0's step it has made the objective fall; collective."""
        before, share, longest = self.now.objective, 1.0, 1.0
        slope = 0.0 if step is None else step.slope
        # What rounding hides is no progress. With an L1 part the gap is mostly what is
        # left of the gradient, by which such a step may make it smaller all the same.
        is_hidden, gap = slope >= -_ROUNDING * abs(before), before - self.now.bound
        is_open = self._l1.any() and np.isfinite(gap)
        for trial in range(n_trials):
            candidate = None
            if step is not None and (not is_hidden or (is_open and not trial)):
                candidate = step.at(share)
            if not self._move(candidate):
                break
            found = self._evaluate()
            is_lower = found.objective <= before + _SUFFICIENT * share * slope
            if is_hidden:
                is_lower = found.objective - found.bound <= gap / 2
            if broadcast(self._group, is_lower):
                self.now, self._place = found, self._found(found)
                return self._lengthen(step, before, share, longest)
            longest = share
            share *= shorter(found.objective - before, slope * share)
        self._move(None if step is None else step.start)
        return 0.0

    def _lengthen(
        self, step: Step | None, before: float, share: float, longest: float
    ) -> float:
        """Make more of a step that was cut short, if that leads lower; collective."""
        for _ in range(_MOST_LONGER if self._is_uncorrelated else 0):
            candidate, kept, longer = None, self._kept(), share
            if step is not None:
                # Where a parabola is least, but not near where it was too long.
                bend = self.now.objective - before - share * step.slope
                least = -share * step.slope / max(2 * bend, _ROUNDING * abs(before))
                longer = share * min(least, np.sqrt(longest / share))
                candidate = step.at(longer) if longer > _WORTH * share else None
            if not self._move(candidate):
                break
            found = self._evaluate()
            if not broadcast(self._group, found.objective < self.now.objective):
                self._put(broadcast(self._group, kept))
                break
            self.now, self._place, share = found, self._found(found), longer
        return share

    def _kept(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Coefficients and intercepts, on rank 0, to be put back."""
        if self._place is None:
            return None
        return self._trial.whole().copy(), copy(self._trial.intercept)

    def _is_noise(self, gain: float) -> bool:
        """Whether what a step has gained is what single precision rounds off."""
        dtype = self._trial.dtype
        least = np.finfo(dtype).eps * abs(self.now.objective)
        return bool(dtype != np.float64 and gain <= least)

    def _learn(self, start: Place | None, plan: Any) -> None:
        """Have the memory of BFGS learn from a step, if it is asked."""
        if start is None or self._place is None:
            return
        if plan is None and not self._truncates and self._model is None:
            self._memory.add(
                self._place.point - start.point, self._place.gradient - start.gradient
            )
        else:
            self._forget(plan)

    def _forget(self, plan: Any) -> bool:
        """Empty the memory of BFGS; return whether there was anything in it."""
        had_any = plan is None and bool(self._memory.steps)
        self._memory = CompactMemory(self._memory.size)
        return had_any

    def _penalty(self, point: np.ndarray) -> float:
        return penalty_of(point, self._l1, self._l2)

    def _found(self, found: Evaluation) -> Place | None:
        """The point and its gradient, on rank 0."""
        if found.gradient is None:
            return None
        values, intercept = self._trial.whole(), self._trial.intercept
        slopes = None if intercept is None else found.slopes
        return Place(
            self._units.point_of(values, intercept),
            self._units.gradient_of(found.gradient, slopes, values),
        )

    def _move(self, point: np.ndarray | None) -> bool:
        """Let all ranks take rank 0's point; return whether it has one."""
        trial, found = self._trial, None
        if point is not None:
            parts = self._units.values_of(point)
            found = tuple(part.astype(trial.dtype) for part in parts)
        found = broadcast(self._group, found)
        if found is None:
            return False
        self._put(found)
        return True

    def _put(self, parts: tuple[np.ndarray, np.ndarray | None]) -> None:
        """Take coefficients and intercepts, the same on all ranks."""
        trial = self._trial
        # The matrix of the fit takes them rounded.
        for matrix in (trial,) if trial is self._matrix else (trial, self._matrix):
            values, intercept = parts
            matrix.replace(values, None if matrix.intercept is None else intercept)
