"""Steps by second derivatives, against SciPy's minimisers and dense formulas."""

import numpy as np
import pytest
from scipy.optimize import minimize

from dask_ma.kernels import (
    CompactMemory,
    _second_order,
    model_point,
    newton_excess,
    newton_point,
    penalty_of,
)


def make_problem(seed, n=12):
    """A convex quadratic, penalties, and a point."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, n)) * 10.0 ** rng.uniform(-1, 1, n)
    B = A @ A.T / n + 0.01 * np.eye(n)
    l1 = np.where(np.arange(n) % 4, rng.uniform(0.1, 3, n), 0)
    l2 = np.where(np.arange(n) % 3, rng.uniform(0, 1, n), 0)
    return B, rng.normal(size=n), rng.normal(size=n) * (rng.random(n) < 0.6), l1, l2


def model_value(x, B, g, v, l1, l2):
    d = x - v
    return g @ d + d @ B @ d / 2 + l1 @ abs(x) + l2 @ x**2 / 2


def by_scipy(B, g, v, l1, l2):
    """The least value, with positive and negative parts as variables."""
    n = len(v)

    def split(z):
        d = z[:n] - z[n:] - v
        smooth = g + B @ d + l2 * (z[:n] - z[n:])
        value = model_value(z[:n] - z[n:], B, g, v, 0 * l1, l2) + np.r_[l1, l1] @ z
        return value, np.r_[smooth + l1, -smooth + l1]

    options = {"maxiter": 10**4, "maxfun": 10**5, "ftol": 1e-15, "gtol": 1e-10}
    bounds = [(0, None)] * (2 * n)
    start = np.r_[np.maximum(v, 0), np.maximum(-v, 0)]
    found = minimize(
        split, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options
    )
    return found.fun


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("has_l1", [True, False])
def test_newton_point_is_the_minimum(seed, has_l1):
    B, g, v, l1, l2 = make_problem(seed)
    l1 = l1 * has_l1
    x = newton_point(B, g, v, l1, l2, tol=1e-9)
    value, least = model_value(x, B, g, v, l1, l2), by_scipy(B, g, v, l1, l2)
    assert value == pytest.approx(least, rel=1e-6)
    assert (x[l1 > 0] == 0).any() == has_l1


@pytest.mark.parametrize("seed", range(6))
def test_model_point_is_never_above_the_start(seed):
    B, g, v, l1, l2 = make_problem(seed)
    before = model_value(v, B, g, v, l1, l2)
    values = [
        model_value(
            model_point(lambda d: B @ d, g, v, l1, l2, tol=1e-8, max_iter=n),
            *(B, g, v, l1, l2),
        )
        for n in (1, 3, 10, 3000)
    ]
    assert before >= values[0] >= values[1] >= values[2] >= values[3]
    assert values[3] == pytest.approx(by_scipy(B, g, v, l1, l2), rel=1e-6)


def test_a_minimum_is_left_alone():
    B, _, v, l1, l2 = make_problem(0)
    v = np.where(l1 > 0, 0.0, v)
    x = model_point(lambda d: B @ d, -l2 * v, v, l1, l2)
    np.testing.assert_array_equal(x, v)


def dense_bfgs(pairs, n):
    """The update of BFGS, pair by pair, from the scale of the last one."""
    s, y = pairs[-1]
    B = (y @ y) / (s @ y) * np.eye(n)
    for s, y in pairs:
        Bs = B @ s
        B = B - np.outer(Bs, Bs) / (s @ Bs) + np.outer(y, y) / (s @ y)
    return B


@pytest.mark.parametrize(("n_pairs", "size"), [(1, 5), (4, 5), (9, 3)])
def test_the_memory_is_that_of_bfgs(n_pairs, size):
    rng = np.random.default_rng(n_pairs)
    H = make_problem(1)[0]
    memory, pairs = CompactMemory(size), []
    for _ in range(n_pairs):
        s = rng.normal(size=12)
        memory.add(s, H @ s)
        pairs = [*pairs, (s, H @ s)][-size:]
    d = rng.normal(size=12)
    np.testing.assert_allclose(memory.product(d), dense_bfgs(pairs, 12) @ d, rtol=1e-8)
    np.testing.assert_allclose(memory.product(pairs[-1][0]), pairs[-1][1], rtol=1e-8)
    assert len(memory.steps) == len(memory.changes) == min(n_pairs, size)


def test_the_memory_has_no_copies_of_pairs(monkeypatch):
    """Products go over some variables at a time."""
    rng = np.random.default_rng(0)
    steps, d = rng.normal(size=(4, 12)), rng.normal(size=12)
    memory = CompactMemory(3)
    for step in steps:
        memory.add(step, 2 * step)
    assert all(
        np.shares_memory(a, b) for a, b in zip(memory.steps, steps[1:], strict=True)
    )
    whole = memory.product(d)
    monkeypatch.setattr(_second_order, "_CHUNK", 5)
    np.testing.assert_allclose(memory.product(d), whole, rtol=1e-12)
    np.testing.assert_allclose(whole, 2 * d, rtol=1e-8)


@pytest.mark.parametrize("n_pairs", [0, 1, 4, 9])
@pytest.mark.parametrize("chunk", [5, 100])
def test_systems_of_the_memory(monkeypatch, n_pairs, chunk):
    monkeypatch.setattr(_second_order, "_CHUNK", chunk)
    rng = np.random.default_rng(n_pairs)
    H = make_problem(1)[0]
    memory = CompactMemory(5)
    for _ in range(n_pairs):
        s = rng.normal(size=12)
        memory.add(s, H @ s)
    # Units make some of the added numbers very large; none may be there at all.
    for added in (np.zeros(12), np.logspace(-6, 6, 12)):
        right = rng.normal(size=12)
        x = memory.solve(right, added)
        np.testing.assert_allclose(memory.product(x) + added * x, right, rtol=1e-6)


def test_pairs_without_curvature_are_passed_over():
    memory, s = CompactMemory(3), np.ones(4)
    for change in (-s, 0 * s, np.array([1.0, -1, 1, -1]), np.full(4, np.nan)):
        memory.add(s, change)
    assert not memory.steps
    np.testing.assert_array_equal(memory.product(s), s)


def test_penalty_of():
    x, l1, l2 = np.array([1.0, -2, 0]), np.array([3.0, 1, 9]), np.array([0.0, 5, 9])
    assert penalty_of(x, l1, l2) == 3 + 2 + 10


@pytest.mark.parametrize("away", [1e-6, 1e-3, 0.3])
@pytest.mark.parametrize("unit", [1.0, 1e3])
def test_the_excess_of_a_logistic_objective(unit, away):
    """Newton's decrement bounds it near the minimum, and says nothing farther away."""
    rng = np.random.default_rng(0)
    X, y, l2 = rng.normal(size=(60, 4)), rng.choice([-1.0, 1], 60), 0.01
    X[:, 1] *= unit

    def derivatives(w):
        p = 1 / (1 + np.exp(y * (X @ w)))
        value = np.logaddexp(0, -y * (X @ w)).mean() + l2 / 2 * w @ w
        hessian = (X.T * (p * (1 - p))) @ X / 60 + l2 * np.eye(4)
        return value, -X.T @ (y * p) / 60 + l2 * w, hessian

    w = np.zeros(4)
    for _ in range(30):
        least, gradient, hessian = derivatives(w)
        w -= np.linalg.solve(hessian, gradient)
    value, gradient, hessian = derivatives(w + away * np.array([1, 1 / unit, -1, 0]))
    decrement = gradient @ np.linalg.solve(hessian, gradient)
    square = (X**2).sum(axis=1).max()
    excess = newton_excess(hessian, decrement, square)
    if away == 0.3 or unit > 1 and away == 1e-3:
        assert excess == np.inf
    else:
        assert value - least <= excess <= 8 * (value - least)
    hessian[2, 2] = 0
    assert newton_excess(hessian, decrement, square) == np.inf


def test_the_newton_point_of_columns_in_all_units():
    """No warning of an ill-conditioned matrix, and the minimum."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(30, 5))
    g, v, l2 = rng.normal(size=5), np.zeros(5), np.logspace(-20, 20, 5)
    x = newton_point(A.T @ A, g, v, np.zeros(5), l2)
    slopes = A.T @ A @ x + l2 * x + g
    assert np.abs(slopes).max() < 1e-9
