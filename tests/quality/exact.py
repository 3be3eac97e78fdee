"""Optima by a primal-dual interior-point method, certified by a duality gap.

Hinge and L1 are sums of absolute values ``c_k |e_k|`` of affine functions `e` of the
model: ``max(0, 1 - m) = (1 - m) / 2 + |1 - m| / 2``. What is left is smooth. Each
absolute value gets a variable `t` with ``-t <= e <= t``, and Newton's method follows
the path of ``l_1 (t - e) = l_2 (t + e) = mu`` to `mu` = 0, as in S. Boyd, L.
Vandenberghe, "Convex Optimization", section 11.7. Columns are centred and scaled for
the arithmetic; the penalty is that of the columns as they are. Hinge and L1 together
are a linear program, and SciPy's HiGHS solves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import linalg, optimize, sparse, special

from .bounds import lower_bound
from .objectives import Objective, Problem

_PRECISION = 1e-8  # of an optimum, relative
_AIM = 1e-10
_ROUNDING = 1e-24  # of the objective without a model, as of targets that are all alike
_MAX_STEPS = 300
_LEAST_STEP = 1e-10
_CORRECTIONS = 4  # of the solution of linear equations
_NEAR = 1e-6  # a gap from which on steps without a better one are counted
_IDLE = 5  # of them before the end


class Stride(NamedTuple):
    """How long the steps along a path are.

    Attributes
    ----------
    least_share : float
        Of the distance along the path that a step may aim to leave.
    to_boundary : float
        Part of the way to a boundary that a step may go.
    """

    least_share: float
    to_boundary: float


# Long steps are few; where rounding spoils their bounds, short ones pass more points at
# which to find better.
_STRIDES = (Stride(1e-4, 0.99), Stride(0.3, 0.99), Stride(0.3, 0.9), Stride(0.1, 0.9))


class Optimum(NamedTuple):
    """A model, the objective there, and a bound for what is below it."""

    value: float
    gap: float
    coef: np.ndarray
    intercept: np.ndarray


class InexactError(ArithmeticError):
    """The gap could not be closed."""


def solve(objective: Objective) -> float:
    """The least value of an objective; 0 where nothing but rounding is left of it.

    Raises
    ------
    InexactError
        If it may be off by more than 1e-8 of itself.
    """
    optima = [minimize(problem) for problem in objective.problems]
    value = float(np.mean([optimum.value for optimum in optima]))
    if value <= _ROUNDING * objective.untrained:
        return 0.0
    gap = float(np.mean([optimum.gap for optimum in optima]))
    if not gap <= _PRECISION * value:
        raise InexactError(f"the least value is {value:.6g}, or less by {gap:.1e}")
    return value


def minimize(problem: Problem) -> Optimum:
    """Minimise an objective; the best model on the way, with its gap."""
    if problem.loss == "hinge" and problem.l1_ratio == 1:
        return _solve_program(problem)
    best = Optimum(np.inf, np.inf, None, None)
    for stride in _STRIDES:
        best = min(best, _follow_path(problem, stride), key=lambda one: one.gap)
        if best.gap <= _PRECISION * best.value:
            break
    return best


def _follow_path(problem: Problem, stride: Stride) -> Optimum:
    """The best model on a path to the optimum, with its gap."""
    scaled = _Scaled.of(problem)
    state: _State | None = scaled.start()
    best, bound, n_idle = Optimum(np.inf, np.inf, None, None), -np.inf, 0
    for _ in range(_MAX_STEPS):
        coef, intercept = scaled.model(state.theta)
        value, gap = problem.value(coef, intercept), best.gap
        bound = max(bound, lower_bound(problem, scaled.slopes(state)))
        if value < best.value:
            best = Optimum(value, 0.0, coef, intercept)
        best = best._replace(gap=best.value - bound)
        is_near = best.gap < _NEAR * best.value
        n_idle = n_idle + 1 if is_near and best.gap > 0.9 * gap else 0
        if best.gap <= _AIM * best.value or n_idle == _IDLE:
            break
        state = scaled.advance(state, stride)
        if state is None:
            break
    return best


def _solve_program(problem: Problem) -> Optimum:
    """Hinge and L1 as a linear program, by the simplex method of HiGHS."""
    n, d = problem.X.shape
    means = problem.parts @ problem.X
    X = problem.X - means
    scales = np.maximum(np.abs(X).max(axis=0), np.finfo(float).tiny)
    # Model = positive - negative part, intercept likewise; then what rows lack to 1.
    signed = problem.y[:, None] * np.column_stack([X / scales, np.ones(n)])
    unit = problem.parts.max()
    cost = np.append(problem.alpha / scales, 0.0)
    result = optimize.linprog(
        np.concatenate([cost, cost, problem.parts]) / unit,
        A_ub=-sparse.hstack([signed, -signed, sparse.eye_array(n)], format="csr"),
        b_ub=-np.ones(n),
        method="highs-ds",
        options={"dual_feasibility_tolerance": 1e-10},
    )
    scaled = result.x[: d + 1] - result.x[d + 1 : 2 * (d + 1)]
    coef = scaled[None, :d] / scales
    intercept = scaled[d:] - coef @ means
    slopes = problem.y * result.ineqlin.marginals * unit / problem.parts
    value = problem.value(coef, intercept)
    return Optimum(
        value, value - lower_bound(problem, slopes[:, None]), coef, intercept
    )


class _State(NamedTuple):
    """A point of the path, or a step.

    Attributes
    ----------
    theta : ndarray of shape (n_outputs, n_features + 1)
        The model of the scaled columns; the intercept is the last.
    above, below : ndarray of shape (n_kinks,)
        ``t - e`` and ``t + e``.
    upper, lower : ndarray of shape (n_kinks,)
        Their multipliers `l_1` and `l_2`, whose sum is the cost.
    """

    theta: np.ndarray
    above: np.ndarray
    below: np.ndarray
    upper: np.ndarray
    lower: np.ndarray

    def moved(self, step: _State, size: float) -> _State:
        """The state after so much of a step.

        Sums would lose what is small, so each part goes its own way.
        """
        return _State(*(here + size * by for here, by in zip(self, step, strict=True)))

    @property
    def pull(self) -> np.ndarray:
        """What the kinks add to the gradient, between -c and c."""
        return self.upper - self.lower

    @property
    def products(self) -> np.ndarray:
        """``l_1 (t - e)`` and ``l_2 (t + e)``, end to end."""
        return np.concatenate([self.upper * self.above, self.lower * self.below])


@dataclass(frozen=True, eq=False)
class _Scaled:
    """A problem whose columns have mean 0 and variance 1, with a column of ones."""

    problem: Problem
    A: np.ndarray  # (n_rows, n_features + 1)
    means: np.ndarray
    scales: np.ndarray
    ridge: np.ndarray  # of each coefficient, the intercept's last
    cost: np.ndarray  # c_k of the rows of the hinge, then of the coefficients
    n_kinked_rows: int

    @classmethod
    def of(cls, problem: Problem) -> _Scaled:
        """Scale the columns of a problem."""
        means = problem.parts @ problem.X
        centered = problem.X - means
        scales = np.sqrt(problem.parts @ centered**2)
        scales[scales <= 1e-12 * np.abs(problem.X).max(axis=0, initial=1.0)] = 1.0
        A = np.column_stack([centered / scales, np.ones(len(centered))])
        ridge = problem.alpha * (1 - problem.l1_ratio) / scales**2
        l1 = problem.alpha * problem.l1_ratio / scales
        rows = problem.parts / 2 if problem.loss == "hinge" else np.empty(0)
        kinks = np.tile(l1, problem.n_outputs) if problem.l1_ratio else np.empty(0)
        return cls(
            problem,
            A,
            means,
            scales,
            np.append(ridge, 0.0),
            np.concatenate([rows, kinks]),
            len(rows),
        )

    def start(self) -> _State:
        """No coefficients."""
        theta = np.zeros((self.problem.n_outputs, self.A.shape[1]))
        if self.problem.loss == "squared_error":
            theta[0, -1] = self.problem.parts @ self.problem.y
        spread = np.sqrt(np.square(self.problem.y).mean())
        e = self.kinks(theta)
        t = np.abs(e) + max(1.0, float(spread))
        return _State(theta, t - e, t + e, self.cost / 2, self.cost / 2)

    def model(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercepts of the columns as they are."""
        coef = theta[:, :-1] / self.scales
        return coef, theta[:, -1] - coef @ self.means

    def kinks(self, theta: np.ndarray) -> np.ndarray:
        """The affine functions whose absolute values are part of the objective."""
        values = []
        if self.n_kinked_rows:
            values.append(1 - self.problem.y * (self.A @ theta[0]))
        if self.problem.l1_ratio:
            values.append(theta[:, :-1].ravel())
        return np.concatenate(values) if values else np.empty(0)

    def slopes(self, state: _State) -> np.ndarray:
        """Derivatives of the losses at a state, of shape (n_rows, n_outputs)."""
        scores, y = self.A @ state.theta.T, self.problem.y
        if self.problem.loss == "softmax":
            return special.softmax(scores, axis=1) - np.eye(scores.shape[1])[y]
        if self.problem.loss == "hinge":
            rows = state.pull[: self.n_kinked_rows] / self.problem.parts
            return (-y * (0.5 + rows))[:, None]
        if self.problem.loss == "log_loss":
            return (-y * special.expit(-y * scores[:, 0]))[:, None]
        return scores - y[:, None]

    def advance(self, state: _State, stride: Stride) -> _State | None:
        """A step along the path; None if there is none."""
        mu = self.target(state, stride) if len(self.cost) else 0.0
        step = self.newton(state, mu)
        size = self.room(state, step, stride)
        if self.problem.loss in ("hinge", "squared_error"):
            return state.moved(step, size)  # straight between the kinks
        before = self.residual(state, mu)
        while size > _LEAST_STEP:
            moved = state.moved(step, size)
            if self.residual(moved, mu) <= (1 - 0.01 * size) * before:
                return moved
            size /= 2
        return None

    def target(self, state: _State, stride: Stride) -> float:
        """How far along the path to aim, by how far a straight step would come."""
        straight = self.newton(state, 0.0)
        moved = state.moved(straight, self.room(state, straight, stride))
        here = float(state.products.mean())
        left = max(0.0, float(moved.products.mean())) / here
        return here * min(0.5, max(stride.least_share, left**3))

    def residual(self, state: _State, mu: float) -> float:
        """How far a state is from the conditions of its place on the path."""
        parts = [self.gradient(state).ravel(), state.products - mu]
        return float(np.linalg.norm(np.concatenate(parts)))

    def gradient(self, state: _State) -> np.ndarray:
        """Of the Lagrangian, of the shape of `theta`."""
        problem, rows = self.problem, self.n_kinked_rows
        # The slopes of the hinge have the multipliers of their rows in them.
        gradient = (problem.parts[:, None] * self.slopes(state)).T @ self.A
        gradient += self.ridge * state.theta
        if problem.l1_ratio:
            gradient[:, :-1] += state.pull[rows:].reshape(problem.n_outputs, -1)
        return gradient

    def room(self, state: _State, step: _State, stride: Stride) -> float:
        """How much of a step leaves everything inside its bounds."""
        rates = [
            np.max(-change / here, initial=0.0)
            for here, change in zip(state[1:], step[1:], strict=True)
        ]
        return min(1.0, stride.to_boundary / max(*rates, 1e-300))

    def newton(self, state: _State, mu: float) -> _State:
        """The step of Newton's method."""
        _, above, below, upper, lower = state
        common = lower * above + upper * below
        weight = 4 * upper * lower / common
        push = 2 * (mu * (lower - upper) + upper * lower * (below - above)) / common
        rhs = -self.gradient(state) - self.transposed(push, state.theta.shape)
        theta = self.solve(state, weight, rhs)
        de = self.kinks(theta) - self.kinks(np.zeros_like(theta))
        by = (weight * de + push) / 2  # of `upper`, and of `lower` with a minus
        # From l_1 (t - e) = mu and l_2 (t + e) = mu: the one that is not cancelled.
        d_above = (mu - above * by) / upper - above
        d_below = (mu + below * by) / lower - below
        first = upper >= lower
        d_above, d_below = (
            np.where(first, d_above, d_below - 2 * de),
            np.where(first, d_above + 2 * de, d_below),
        )
        return _State(theta, d_above, d_below, by, -by)

    def transposed(self, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Values of the kinks, through the transpose of their matrix."""
        result, rows = np.zeros(shape), self.n_kinked_rows
        if rows:
            result[0] -= (self.problem.y * values[:rows]) @ self.A
        if self.problem.l1_ratio:
            result[:, :-1] += values[rows:].reshape(shape[0], -1)
        return result

    def solve(self, state: _State, weight: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        """Solve with the second derivatives, those of the kinks among them."""
        diagonal = np.tile(self.ridge, len(rhs)).reshape(rhs.shape)
        if self.problem.l1_ratio:
            diagonal[:, :-1] += weight[self.n_kinked_rows :].reshape(len(rhs), -1)
        if self.problem.loss == "softmax":
            matrix = self.softmax_curvature(state.theta)
            matrix[np.diag_indices_from(matrix)] += diagonal.ravel()
            return _solve_normal(matrix, rhs.ravel()).reshape(rhs.shape)
        rows = self.row_curvature(state, weight[: self.n_kinked_rows])
        return _solve_rows(self.A, rows, diagonal[0], rhs[0])[None, :]

    def row_curvature(self, state: _State, kinked: np.ndarray) -> np.ndarray:
        """Second derivatives of the losses by the scores, with those of the kinks."""
        if self.problem.loss == "hinge":
            return kinked
        if self.problem.loss == "squared_error":
            return self.problem.parts
        chance = special.expit(self.A @ state.theta[0])
        return self.problem.parts * chance * (1 - chance)

    def softmax_curvature(self, theta: np.ndarray) -> np.ndarray:
        """That of the softmax; a common shift of the intercepts is held in place."""
        parts, A = self.problem.parts, self.A
        chance = special.softmax(A @ theta.T, axis=1)
        n, size = theta.shape
        matrix = np.empty((n, size, n, size))
        for k in range(n):
            for j in range(k, n):
                rows = parts * chance[:, k] * ((k == j) - chance[:, j])
                block = (A * rows[:, None]).T @ A
                matrix[k, :, j, :] = block
                matrix[j, :, k, :] = block
        matrix[:, -1, :, -1] += 1 / n
        return matrix.reshape(n * size, n * size)


def _solve_normal(matrix: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Solve by Cholesky's factors, each row and column by its size."""
    size = 1 / np.sqrt(np.maximum(matrix.diagonal(), np.finfo(float).tiny))
    matrix = matrix * size[:, None] * size
    matrix[np.diag_indices_from(matrix)] += 1e-15
    return size * linalg.cho_solve(linalg.cho_factor(matrix), size * rhs)


def _solve_rows(
    A: np.ndarray, rows: np.ndarray, diagonal: np.ndarray, rhs: np.ndarray
) -> np.ndarray:
    """Solve ``(A' diag(rows) A + diag(diagonal)) x = rhs``.

    By the orthogonal factors of the square root, as rows on a kink weigh many orders of
    magnitude more than others; then again for what is left.
    """
    size = 1 / np.sqrt(rows @ A**2 + diagonal + np.finfo(float).tiny)
    order = np.argsort(-rows)  # heavy rows first
    roots = np.sqrt(rows[order])[:, None] * A[order]
    stacked = np.vstack([roots, np.diag(np.sqrt(diagonal))]) * size
    factor = linalg.qr(stacked, mode="r", check_finite=False)[0][: len(rhs)]
    tiny = np.abs(factor.diagonal()) < 1e-15
    factor[tiny, tiny] = 1e-15

    def apply(values: np.ndarray) -> np.ndarray:
        inner = linalg.solve_triangular(factor, size * values, trans="T")
        return size * linalg.solve_triangular(factor, inner)

    solution = np.zeros_like(rhs)
    for _ in range(_CORRECTIONS):
        left = rhs - (A.T @ (rows * (A @ solution)) + diagonal * solution)
        solution = solution + apply(left)
    return solution
