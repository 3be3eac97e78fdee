"""Working sets: the coefficients that violate optimality most, solved together.

In each round all ranks work out the gradient, rank 0 chooses, the ranks add up the
Hessian of the chosen coefficients, and rank 0 solves the small problem.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma import _config
from dask_ma.comm import allreduce, broadcast, gather, reduce
from dask_ma.engine import RoundLog
from dask_ma.layouts._design import Part
from dask_ma.schmp.l1._hessian import HessianCache
from dask_ma.schmp.l1._problem import Objective, Penalty, Sparse
from dask_ma.schmp.l1._quadratic import Quadratic, minimize
from dask_ma.schmp.l1._solver import DualityGap, Solver

_FIRST_SIZE = 400  # of a working set, if there are as many rows
_SMALLEST_FIRST = 100
_NEAR = 0.9  # of its bound: a zero coefficient this close stays in the working set
# Of the gap so far, which the small problem is solved to.
_INNER_GAP = 0.05
_INNER_GAP_NEWTON = 0.3  # where each step takes another Hessian
_MAX_NEWTON = 10
_ROUNDING = 1e-13
_SETTLED = 1e-15  # of the null objective: a Newton step that gains less is the last
_STEPS = 0.5 ** np.arange(8)  # lengths tried in a line search


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
        self._limit = int(_config.get("schmp.max-working-set"))
        self._squares: Part | None = None
        self._screening_tol = screening_tol
        self._turn = 0
        self._start()

    def change_penalty(self, penalty: Penalty) -> None:
        super().change_penalty(penalty)
        self._squares = None

    def improve(self) -> None:
        """Choose the next working set and solve it; a collective call."""
        if self._certificate.gap <= self._screening_tol * self.objective.null:
            self._screen()
        self._choose()
        is_quadratic = self.objective.loss.is_quadratic
        share = _INNER_GAP if is_quadratic else _INNER_GAP_NEWTON
        target = share * self._certificate.gap
        is_part = not self._inside.all()
        if is_part:
            target = 0.0  # a part's gap may be small while that of the whole is not
        is_solved_once = is_part or is_quadratic
        for _ in range(1 if is_solved_once else _MAX_NEWTON):
            expected = self._solve(target)
            if expected <= target:
                break
        if not is_quadratic:
            self.settle()

    def check(self) -> DualityGap:
        """Objective and duality gap of the model; a collective call."""
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
        self._inside = np.isin(self.model.coordinates, free)
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
        objective.set_model(self.model)
        if len(free):
            self._inside = np.isin(self.model.coordinates, free_coordinates)
            for _ in range(1 if objective.loss.is_quadratic else _MAX_NEWTON):
                if self._solve(0.0) <= _SETTLED * objective.null:
                    break

    def _choose(self) -> None:
        """Have rank 0 choose the coefficients of the next working set."""
        coordinates, coef = self.model.coordinates, self.model.coef
        # More coefficients than rows are seldom other than zero.
        first = min(_FIRST_SIZE, max(_SMALLEST_FIRST, self.objective.n_rows))
        size = max(first, 2 * int(np.count_nonzero(coef)))
        with self.log.computing():
            proposal = self._propose(size)
        proposals = gather(self._group, proposal)
        chosen: Any = None
        if proposals is not None:
            found = np.concatenate([p[0] for p in proposals])
            ratios = np.concatenate([p[1] for p in proposals])
            known = np.isin(found, coordinates)
            needed = (coef != 0) | np.isin(coordinates, self._free)
            near = np.isin(coordinates, found[known & (ratios > _NEAR)])
            new = np.flatnonzero(~known & (ratios > 1))
            new = new[np.argsort(-ratios[new], kind="stable")][:size]
            kept = coordinates[needed | near]
            if np.count_nonzero(needed | near) > 0.5 * len(coordinates):
                kept = coordinates
            chosen = self._bounded(kept, found[new])
        kept, inside = broadcast(self._group, chosen)
        self._set_coordinates(kept)
        self._inside = np.isin(kept, inside)

    def _propose(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """This rank's coefficients that violate optimality most, and those known."""
        K = self.objective.n_outputs
        ratios = self._ratios.ravel()
        features = self._part.features
        worst = np.flatnonzero(ratios > 1)
        if len(worst) > 2 * size:
            worst = worst[np.argpartition(-ratios[worst], 2 * size)[: 2 * size]]
        known = self.model.coordinates
        row = np.searchsorted(features, known // K)
        mine = row < len(features)
        mine[mine] = features[row[mine]] == known[mine] // K
        places = np.union1d(worst, row[mine] * K + known[mine] % K)
        return features[places // K] * K + places % K, ratios[places]

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
        _, old, new = np.intersect1d(
            self.model.coordinates, coordinates, return_indices=True, assume_unique=True
        )
        coef[new] = self.model.coef[old]
        self.model.coordinates, self.model.coef = coordinates, coef
        K = self.objective.n_outputs
        self._design.fetch(np.unique(coordinates // K))
        self.objective.learn_means(coordinates // K)

    def _solve(self, target: float, cache: HessianCache | None = None) -> float:
        """Solve the quadratic model; the fall that it promises. A collective call."""
        objective = self.objective
        inside = np.flatnonzero(self._inside)
        coordinates = self.model.coordinates[inside]
        cache = cache or self._hessian
        hessian = cache.update(coordinates)
        with self.log.computing():
            slopes = objective.loss.negative_slopes(objective.margins)
            gradient = self._own_gradient(coordinates, slopes)
            norm = np.array([objective.loss.norm(objective.margins)])
            if not self._design.is_counted():
                gradient, norm = np.zeros_like(gradient), np.zeros(1)
        sums = reduce(self._group, [gradient, norm])
        step: Any = None
        if sums is not None:
            with self.log.computing():
                step = self._small_solution(hessian, sums, inside, target)
        change, shift, expected = broadcast(self._group, step)
        length = self._apply(inside, change, shift)
        return float(expected) if length else 0.0

    def _own_gradient(self, coordinates: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """Negative gradient of the loss, also by the intercepts, from own rows."""
        K = self.objective.n_outputs
        features, places = np.unique(coordinates // K, return_inverse=True)
        products = self._design.transposed_dot(features, slopes)
        gradient = products[places, coordinates % K]
        if self.objective.centers:
            means = self.objective.means[coordinates]
            return np.asarray(gradient - means * slopes.sum())
        return np.concatenate([gradient, slopes.sum(axis=0)])

    def _small_solution(
        self,
        hessian: np.ndarray,
        sums: list[np.ndarray],
        inside: np.ndarray,
        target: float,
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Change of the coefficients and intercepts that solves the quadratic model."""
        objective, K = self.objective, self.objective.n_outputs
        gradient, norm = sums
        coef = self.model.coef[inside]
        features = self.model.coordinates[inside] // K
        l1, l2 = objective.penalty.l1[features], objective.penalty.l2[features]
        n = len(inside)
        start = np.zeros(len(hessian))
        start[:n] = coef
        bounds = np.zeros(len(hessian))
        bounds[:n] = l1
        if not objective.centers and not objective.fit_intercept:
            hessian, gradient = hessian[:n, :n], gradient[:n]
            start, bounds = start[:n], bounds[:n]
        linear = hessian @ start + gradient
        gram = hessian
        if l2.any():
            gram = hessian.copy()
            gram[np.arange(n), np.arange(n)] += l2
        problem = Quadratic(
            gram, linear, bounds, float(norm[0]), objective.penalty.positive
        )
        found = minimize(problem, start, target)
        step = found - start
        slope = gradient.copy()
        slope[:n] -= l2 * coef
        expected = slope @ step - step @ gram @ step / 2
        expected += l1 @ (np.abs(coef) - np.abs(found[:n]))
        shift = step[n:] if len(step) > n else np.zeros(K)
        return step[:n], shift, float(expected)

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
        objective, model = self.objective, self.model
        lengths = np.append(0.0, _STEPS)
        with self.log.computing("evaluate"):
            losses = np.array(
                [objective.loss.value(objective.margins + t * margins) for t in lengths]
            )
        losses = self._design.sum(losses)
        coef, features = model.coef[inside], model.coordinates[inside]
        features = features // objective.n_outputs
        values = [
            loss + objective.penalty.of(features, coef + t * change)
            for loss, t in zip(losses, lengths, strict=True)
        ]
        best = lengths[int(np.argmin(values))]
        if values[1] <= min(values) + _ROUNDING * abs(values[0]):
            best = 1.0  # differences are rounding: close to the optimum Newton is right
        return float(broadcast(self._group, float(best)))

    def _screen(self) -> None:
        """Rule out features whose coefficients are zero at every optimum."""
        objective, design = self.objective, self._design
        if self._squares is None:
            weight = objective.loss.weight
            self._squares = design.squares(weight, objective.centers)
        penalty = objective.penalty
        features = self._part.features
        rows = np.searchsorted(self._squares.features, features)
        spread = self._squares.values[rows, 0] + penalty.l2[features]
        # Gap safe rule: the gap gives the radius of a ball with the dual optimum in it.
        # The ball belongs to the point in its middle, which may not be the best so far.
        gap = max(self._certificate.gap_of_point, 1e-14 * objective.null)
        radius = np.sqrt(2 * objective.loss.smoothness * gap * np.maximum(spread, 0))
        values = self._part.values if penalty.positive else np.abs(self._part.values)
        largest = values.max(axis=1, initial=-np.inf) * self._certificate.scale
        possible = largest + radius >= penalty.l1[features] * (1 - 1e-12)
        n_possible = allreduce(self._group, np.array(np.count_nonzero(possible)))
        # Columns are copied, which pays once most are out.
        if 10 * int(n_possible) > len(design.alive):
            return
        parts = gather(self._group, features[possible])
        alive: Any = None
        if parts is not None:
            known = self.model.coordinates // objective.n_outputs
            alive = np.union1d(np.concatenate(parts), known)
        design.restrict(broadcast(self._group, alive))
        self._squares = None
        self.check()
