"""Working sets: the coefficients that violate optimality most, solved together.

In each round all ranks work out the gradient, tell each other which coefficients
violate optimality, and choose alike; they add up the Hessian of the chosen ones, and
rank 0 solves the small problem. Where rows are few, rank 0 gets the columns themselves.

A round of a quadratic loss is four collectives: the gradient with the sums that the
duality gap is made of (:meth:`Design.products`); the worst coefficients of each rank,
and how bad they are (:meth:`Solver.check`); what is new of the Hessian, with the
features that each rank cannot rule out (:meth:`HessianCache.update`); and the step,
with the features that are left. Where columns are shared out, those chosen travel in
place of the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_ma import _config
from dask_ma.comm import allgather, allreduce, broadcast
from dask_ma.engine import RoundLog
from dask_ma.layouts._design import is_among
from dask_ma.schmp.l1._gram import Gram, ScaledGram
from dask_ma.schmp.l1._hessian import HessianCache, System
from dask_ma.schmp.l1._levels import TARGET, next_level, raised
from dask_ma.schmp.l1._problem import Objective, Sparse
from dask_ma.schmp.l1._product_steps import ProductSteps
from dask_ma.schmp.l1._quadratic import Quadratic, minimize
from dask_ma.schmp.l1._solver import DualityGap, Solver

_FIRST_SIZE = 400  # of a working set, if there are as many rows
_SMALLEST_FIRST = 100
_GROWTH = 2  # coefficients that may come into one, for each that is not zero
_GROWTH_NEWTON = 1  # the same where each step takes another Hessian
# The same where rank 0 has the columns themselves: coefficients cost little there.
_FIRST_PER_ROW = 3
_GROWTH_FEW_ROWS = 4
_NEAR = 0.9  # of its bound: a zero coefficient this close stays in the working set
# Of the gap so far, which the small problem is solved to.
_INNER_GAP = 0.05
_INNER_GAP_FEW_ROWS = 0.1
_INNER_GAP_NEWTON = 0.3  # where each step takes another Hessian
# Of what a Newton step is to gain, which its quadratic model is solved to. A Hessian
# costs more than a few turns more, and a model that is solved badly leaves many
# coefficients other than zero: the next working set, and its Hessian, grow with them.
_WITHIN_STEP = 0.2
_MAX_NEWTON = 10
_CLOSE = 0.97  # to its bound: so close one may come beyond it next
# Of the gap that the small problem is solved to: that for the columns which come first.
_PART_GAP = 2
_CHECKS_FIRST = 10  # before the first features are ruled out
_ROOM = 32  # proposals of a rank, beyond what is its share
_ROUNDING = 1e-13
_SETTLED = 1e-15  # of the null objective: a Newton step that gains less is the last
_N_LENGTHS = 8  # that a line search tries at once, each half of the one before
# Of any margin, by the shortest step that it tries; and that step beside the whole.
_LEAST_CHANGE, _SHORTEST = 2.0**-40, 2.0**-1000


class _Found(NamedTuple):
    """Coefficients of all ranks that may come into a working set, sorted."""

    coordinates: np.ndarray
    ratios: np.ndarray  # of the gradient to its bound
    gradient: np.ndarray  # negative, with the ridge penalty


class WorkingSets(Solver):
    """Solver of one problem, on one rank among others.

    Parameters
    ----------
    objective : Objective
        What to minimise.
    model : Sparse
        Model to begin with; it is changed in place.
    log : RoundLog
        Where computing is timed.
    screening_tol : float, default=1e-2
        Gap, as a fraction of the null objective, from which features are ruled out.
    """

    def __init__(
        self,
        objective: Objective,
        model: Sparse,
        log: RoundLog,
        screening_tol: float = 1e-2,
    ) -> None:
        super().__init__(objective, model, log)
        self._hessian = HessianCache(objective, log)
        self._free_hessian = HessianCache(objective, log)  # of those without penalty
        self._products = ProductSteps(objective, log)
        self._has_few_rows = self._hessian.has_few_rows
        self._inner_gap = _INNER_GAP_NEWTON
        if objective.loss.is_quadratic:
            few = self._has_few_rows
            self._inner_gap = _INNER_GAP_FEW_ROWS if few else _INNER_GAP
        self._limit = _config.get_count("schmp.max-working-set")
        self._spread: np.ndarray | None = None  # of each column about its mean
        self._screening_tol = screening_tol
        self._turn = 0
        self._n_checks = 0
        self._start()

    def improve(self) -> None:
        """Choose the next working set and solve it; a collective call."""
        possible = self._possible() if self._screens() else None
        objective, penalty = self.objective, self.objective.penalty
        new = ~is_among(self._found.coordinates, self.model.coordinates)
        level = next_level(objective, self._found.ratios[new], self.reach, self._size)
        kept, inside = self._choose(level)
        self._set_coordinates(kept)
        self._inside = is_among(kept, inside)
        objective.penalty = raised(penalty, level)
        gradient: Any = self._known_gradient(inside)
        is_quadratic = objective.loss.is_quadratic
        target = self._inner_gap * self._certificate.gap
        if level > 1:  # where the gap is that of another problem
            target = TARGET * self._certificate.objective
        is_part = not self._inside.all()
        if is_part:
            target = 0.0  # a part's gap may be small while that of the whole is not
        is_solved_once = is_part or is_quadratic
        within = target if is_quadratic else _WITHIN_STEP * target
        for _ in range(1 if is_solved_once else _MAX_NEWTON):
            expected = self._solve(
                within, gradient=gradient, possible=possible, later=self._later
            )
            # They belong to the model of the check.
            gradient = possible = None
            if expected <= target:
                break
        objective.penalty = penalty
        if not is_quadratic:
            self.settle()

    def check(self) -> DualityGap:
        """Objective and duality gap of the model; a collective call."""
        self._n_checks += 1
        certificate = super().check()
        if not self.is_settled:
            self.settle()
            certificate = super().check()
        return certificate

    def settle(self) -> None:
        """Bring coefficients without any penalty to their optimum; a collective call.

        As with the intercept, the slopes are a point of the dual problem only there:
        the small problem is solved for a model of the loss, which leaves some of their
        gradient.
        """
        free = self._unpenalized
        if not len(free):
            return
        self._inside = is_among(self.model.coordinates, free)
        for _ in range(_MAX_NEWTON):
            if self._solve(0.0, self._free_hessian) <= _SETTLED * self.objective.null:
                break

    def _start(self) -> None:
        """Take coefficients without L1 into the working set, and solve for them."""
        objective, K = self.objective, self.objective.n_outputs
        free = np.flatnonzero(objective.penalty.l1 == 0)
        free_coordinates = (free[:, np.newaxis] * K + np.arange(K)).ravel()
        if len(free_coordinates) > self._limit:
            raise ValueError(
                f"{len(free_coordinates)} coefficients have no L1 penalty, and working "
                f"sets solve for at most {self._limit} of them at once "
                "(dask-ma.schmp.max-working-set); raise alpha or l1_ratio, or choose "
                "another schedule"
            )
        self._free = free_coordinates
        self._unpenalized = free_coordinates[
            objective.penalty.l2[free_coordinates // K] == 0
        ]
        self._set_coordinates(np.union1d(self.model.coordinates, free_coordinates))
        objective.learn_tolerances(self._unpenalized[::K] // K)
        if not len(self.model.coordinates):
            objective.learn_own_means()
        objective.set_model(self.model)
        if len(free):
            self._inside = is_among(self.model.coordinates, free_coordinates)
            for _ in range(1 if objective.loss.is_quadratic else _MAX_NEWTON):
                if self._solve(0.0) <= _SETTLED * objective.null:
                    break

    @property
    def _size(self) -> int:
        """How many coefficients may come into the next working set."""
        # More than rows, times the classes but one, are seldom other than zero.
        rows, n_used = self.objective.n_rows, int(np.count_nonzero(self.model.coef))
        if self._has_few_rows:
            return max(_FIRST_PER_ROW * rows, _GROWTH_FEW_ROWS * n_used)
        first = min(_FIRST_SIZE, max(_SMALLEST_FIRST, rows))
        if self.objective.loss.is_quadratic:
            return max(first, _GROWTH * n_used)
        left = rows * max(1, self.objective.n_outputs - 1) - n_used
        return max(first, min(_GROWTH_NEWTON * n_used, left))

    def _choose(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """All coefficients to have at hand, and those of the next working set."""
        coordinates, coef = self.model.coordinates, self.model.coef
        found, ratios = self._found.coordinates, self._found.ratios
        known = is_among(found, coordinates)
        needed = (coef != 0) | is_among(coordinates, self._free)
        near = is_among(coordinates, found[known & (ratios > _NEAR * level)])
        new = np.flatnonzero(~known & (ratios > _CLOSE * level))
        new = new[np.argsort(-ratios[new], kind="stable")][: self._size]
        self._later = self._hessian.may_be_late(found[new])
        kept = coordinates[needed | near]
        # Only a quadratic loss has a Hessian to keep; others make all of it anew.
        is_quadratic = self.objective.loss.is_quadratic
        if is_quadratic and len(kept) > 0.5 * len(coordinates):
            kept = coordinates
        return self._bounded(kept, found[new])

    def _proposal(self) -> tuple[np.ndarray, ...]:
        """This rank's coefficients that violate optimality most, and those known."""
        K = self.objective.n_outputs
        ratios = self._ratios.ravel()
        features = self._part.features
        known = self.model.coordinates
        row = np.searchsorted(features, known // K)
        mine = row < len(features)
        mine[mine] = features[row[mine]] == known[mine] // K
        own = row[mine] * K + known[mine] % K
        is_worst = ratios > _CLOSE
        is_worst[own] = False
        worst = np.flatnonzero(is_worst)
        # Some ranks have more of the worst than others, but hardly four times as many.
        most = min(self._size, _ROOM + -(-4 * self._size // self._group.size))
        if len(worst) > most:
            worst = worst[np.argpartition(-ratios[worst], most)[:most]]
        places = np.union1d(worst, own)
        found = features[places // K]
        values = self._part.values.ravel()[places]
        means = [self.objective.means[found]] if self.objective.lacks_means else []
        return found * K + places % K, ratios[places], values, *means

    def _take_proposals(self, proposals: Sequence[Sequence[np.ndarray]]) -> None:
        coordinates, ratios, gradient, *means = map(np.concatenate, proposals)
        if means:
            self.objective.means[coordinates // self.objective.n_outputs] = means[0]
        order = np.argsort(coordinates)
        self._found = _Found(coordinates[order], ratios[order], gradient[order])

    def _known_gradient(self, coordinates: np.ndarray) -> list[np.ndarray] | None:
        """Gradient at the last check, and the constant term, if they do for a step."""
        if not self.objective.loss.is_quadratic:
            return None  # the intercepts want theirs, too
        places = np.searchsorted(self._found.coordinates, coordinates)
        # The residuals of the null model are the targets.
        return [self._found.gradient[places], np.array([2 * self.objective.null])]

    def _bounded(
        self, kept: np.ndarray, new: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """All coefficients at hand, and those to be solved for at once."""
        together = np.union1d(kept, new)
        if len(together) <= self._limit:
            return together, together
        # The others keep their values for a round: some of the old ones, in turns.
        new = new[: max(1, self._limit // 2)]
        free = self._free
        others = np.setdiff1d(kept, free)
        room = max(1, self._limit - len(new) - len(free))
        self._turn = (self._turn + room) % max(1, len(others))
        others = np.roll(others, -self._turn)[:room]
        return np.union1d(kept, new), np.union1d(np.union1d(new, others), free)

    def _set_coordinates(self, coordinates: np.ndarray) -> None:
        """Leave out coefficients that are zero, and take in new ones."""
        coef = np.zeros(len(coordinates))
        before = self.model.coordinates
        stays = is_among(before, coordinates)
        coef[np.searchsorted(coordinates, before[stays])] = self.model.coef[stays]
        self.model.coordinates, self.model.coef = coordinates, coef
        K = self.objective.n_outputs
        self._design.fetch(np.unique(coordinates // K))

    def _solve(
        self,
        target: float,
        cache: HessianCache | None = None,
        gradient: list[np.ndarray] | None = None,
        possible: np.ndarray | None = None,
        later: np.ndarray | None = None,
    ) -> float:
        """Solve the quadratic model; the fall that it promises. A collective call."""
        inside = np.flatnonzero(self._inside)
        coordinates = self.model.coordinates[inside]
        step: Any = None
        if cache is None and self._products.serve(coordinates, self.reach):
            found = self._products.step(self.model.coef[inside], possible)
            if found is not None:
                step = *found[:3], self._left(found.payloads)
        else:
            cache = cache or self._hessian
            riders: list[np.ndarray] = []
            if gradient is None:
                with self.log.computing():
                    riders = self.objective.own_gradient(coordinates)
            system = cache.update(coordinates, riders, possible, later)
            if system is not None:
                with self.log.computing():
                    sums = gradient or self._with_ridge(system.sums, inside)
                    step = self._step(system, sums, inside, target)
                    step = *step, self._left(system.payloads)
        change, shift, expected, alive = broadcast(self._group, step)
        length = self._apply(inside, change, shift)
        if alive is not None:
            self._design.restrict(alive)
        return float(expected) if length else 0.0

    def _with_ridge(self, sums: list[np.ndarray], inside: np.ndarray) -> list[Any]:
        """The sums of the riders, the ridge penalty taken into account."""
        gradient, norm = sums
        features = self.model.coordinates[inside] // self.objective.n_outputs
        ridge = self.objective.penalty.l2[features] * self.model.coef[inside]
        gradient[: len(inside)] -= ridge
        return [gradient, norm]

    def _step(
        self,
        system: System,
        sums: list[np.ndarray],
        inside: np.ndarray,
        target: float,
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Change of the coefficients and intercepts that solves the quadratic model."""
        objective, K = self.objective, self.objective.n_outputs
        gradient, norm = sums
        rows = system.order
        coef = self.model.coef[inside[rows]]
        features = self.model.coordinates[inside[rows]] // K
        l1, l2 = objective.penalty.l1[features], objective.penalty.l2[features]
        n = len(inside)
        has_border = objective.fit_intercept and not objective.centers
        size = n + K if has_border else n
        gradient = np.concatenate([gradient[rows], gradient[n:size]])
        start, bounds, ridge = (np.zeros(size) for _ in range(3))
        start[:n], bounds[:n], ridge[:n] = coef, l1, l2

        def gram_of(first: slice) -> Gram:
            gram = system.hessian
            return ScaledGram(gram, ridge[first]) if l2.any() else gram

        def solve(values: np.ndarray, target: float) -> np.ndarray:
            # The first of the coefficients; the others stay as they are.
            first = slice(0, len(values))
            gram = gram_of(first)
            linear = gram.dot(start[first]) + gradient[first]
            positive = objective.penalty.positive
            problem = Quadratic(gram, linear, bounds[first], float(norm[0]), positive)
            return minimize(problem, values, target)

        begun = start.copy()
        if system.rest is not None:
            at_hand = slice(0, n - system.n_late)
            begun[at_hand] = solve(start[at_hand], _PART_GAP * target)
            system.rest()
        found = solve(begun, target)
        gram = gram_of(slice(size))
        step = found - start
        expected = gradient @ step - step @ gram.dot(step) / 2
        expected += l1 @ (np.abs(coef) - np.abs(found[:n]))
        change = np.zeros(n)
        change[rows] = step[:n]
        shift = step[n:] if len(step) > n else np.zeros(K)
        return change, shift, float(expected)

    def _apply(
        self, inside: np.ndarray, change: np.ndarray, shift: np.ndarray
    ) -> float:
        """Go as far along a step as the objective falls; a collective call."""
        objective, model = self.objective, self.model
        moved = np.flatnonzero(change)
        coordinates = model.coordinates[inside]
        with self.log.computing():
            margins = objective.change(coordinates[moved], change[moved])
            margins += shift
        length = 1.0
        if not objective.loss.is_quadratic:
            length = self._line_search(inside, change, margins)
            self._products.take_length(length)
        if length == 0:
            return 0.0
        model.coef[inside] += length * change
        if length < 1:  # what was to become zero has not
            model.coef[np.abs(model.coef) < 1e-300] = 0.0
        objective.margins += length * margins
        model.intercept += length * shift
        objective.settle_intercept(model)
        return length

    def _line_search(
        self, inside: np.ndarray, change: np.ndarray, margins: np.ndarray
    ) -> float:
        """Length, among some, with the lowest objective; 0 if none lowers it."""
        # Where the margins are large, the second derivatives of some rows are nearly 0:
        # the model then ends very far off, and only a very small part of the way is of
        # use, but without it the next model would be the same.
        lengths = 0.5 ** np.arange(_N_LENGTHS)
        # The objective is convex: if half the way leads no lower, nor does less of it.
        # Differences that are rounding tell nothing: Newton is right near the optimum.
        here, whole, half = self._values_along(inside, change, margins, lengths[:2])
        if whole <= min(here, half) + _ROUNDING * abs(here):
            return 1.0
        # A row that is wrong by a margin of 80 sends a step off by exp(80).
        own = np.array(np.abs(margins).max(initial=0.0))
        farthest = max(1.0, float(allreduce(self._group, own, "max")))
        while lengths[0] >= max(_LEAST_CHANGE / farthest, _SHORTEST):
            values = self._values_along(inside, change, margins, lengths)
            if best := int(np.argmin(values)):
                return float(lengths[best - 1])
            lengths = lengths[-1] / 2 * lengths / lengths[0]
        return 0.0

    def _values_along(
        self,
        inside: np.ndarray,
        change: np.ndarray,
        margins: np.ndarray,
        lengths: np.ndarray,
    ) -> np.ndarray:
        """Objective here and after some lengths of a step; a collective call."""
        objective, model = self.objective, self.model
        lengths = np.append(0.0, lengths)
        features = model.coordinates[inside] // objective.n_outputs
        coef = model.coef[inside]
        with self.log.computing("evaluate"):
            losses = np.array(
                [objective.loss.value(objective.margins + t * margins) for t in lengths]
            )
            penalties = np.zeros_like(losses)
            if self._group.rank == 0:  # others may have processors that round otherwise
                penalties[:] = [
                    objective.penalty.of(features, coef + t * change) for t in lengths
                ]
        if not self._design.is_counted():
            losses = np.zeros_like(losses)
        losses, penalties = allreduce(self._group, [losses, penalties])
        return losses + penalties

    def _screens(self) -> bool:
        """Whether features are to be ruled out."""
        # The sums of squares that this takes cost as much as some checks.
        if self._spread is None and self._n_checks <= _CHECKS_FIRST:
            return False
        return self._certificate.gap <= self._screening_tol * self.objective.null

    def _possible(self) -> np.ndarray:
        """Features that this rank cannot rule out; the first call is collective."""
        objective, penalty = self.objective, self.objective.penalty
        features = self._part.features
        spread = self._known_spread()[features] + penalty.l2[features]
        # Gap safe rule: the gap gives the radius of a ball with the dual optimum in it.
        # The ball belongs to the point in its middle, which may not be the best so far.
        gap = max(self._certificate.gap_of_point, 1e-14 * objective.null)
        radius = np.sqrt(2 * objective.loss.smoothness * gap * np.maximum(spread, 0))
        values = self._part.values if penalty.positive else np.abs(self._part.values)
        largest = values.max(axis=1, initial=-np.inf) * self._certificate.scale
        possible = largest + radius >= penalty.l1[features] * (1 - 1e-12)
        return features[possible]

    def _known_spread(self) -> np.ndarray:
        """Sums of squares of all columns, about their means if these are taken out."""
        if self._spread is None:  # nothing has been ruled out yet
            objective = self.objective
            objective.learn_means()  # ranks get other parts of what is left
            part = self._design.squares(objective.loss.weight, objective.centers)
            self._spread = np.zeros(self._design.n_features)
            for features, values in allgather(self._group, tuple(part)):
                self._spread[features] = values[:, 0]
        return self._spread

    def _left(self, possible: list[np.ndarray]) -> np.ndarray | None:
        """Features that are left when others are ruled out, if it is worth while."""
        if not possible:
            return None
        n_possible = sum(len(features) for features in possible)
        # Columns are copied, which pays once most are out.
        if 10 * n_possible > len(self._design.alive):
            return None
        used = self.model.coordinates // self.objective.n_outputs
        return np.union1d(np.concatenate(possible), used)
