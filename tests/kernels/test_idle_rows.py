"""Steps of Adam without a gradient, made all at once, against one after the other."""

import numpy as np
import pytest

from dask_ma.kernels import SGD, Adam, may_wait
from dask_ma.kernels._idle_rows import IdleRows

N_ROWS, N_UNITS = 5, 3
RATES = [0.1, 0.02, 0.3, 0.05, 0.2, 0.1, 0.15]


def make(beta_1=0.8, beta_2=0.99, epsilon=1e-12, n_steps=3, seed=0):
    """Weights, and an optimiser that has made some steps on them."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(N_ROWS, N_UNITS))
    optimizer = Adam(weights.size, np.float64, beta_1, beta_2, epsilon)
    for _ in range(n_steps):
        optimizer.step(weights.reshape(-1), rng.normal(size=weights.size), 0.1)
    return weights, optimizer


def moments_of(optimizer):
    return [each.reshape(N_ROWS, N_UNITS) for each in optimizer.moments]


def wait(optimizer, idle, rates, penalty=0.0):
    """Let all rows wait while the optimiser makes steps of these rates."""
    for rate in rates:
        optimizer.advance(rate)
        idle.note_step(np.arange(0), penalty)


@pytest.mark.parametrize("beta_1", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("n_missed", [1, 2, 7])
def test_rows_are_where_each_step_would_have_taken_them(beta_1, n_missed):
    rates = RATES[:n_missed]
    weights, optimizer = make(beta_1)
    idle = IdleRows(optimizer, N_ROWS)
    wait(optimizer, idle, rates)
    scratch = np.empty_like(weights)
    idle.catch_up(slice(None), weights, moments_of(optimizer), scratch)
    expected, each = make(beta_1)
    for rate in rates:
        each.step(expected.reshape(-1), np.zeros(expected.size), rate)
    np.testing.assert_allclose(weights, expected, rtol=1e-9)
    for found, wanted in zip(optimizer.moments, each.moments, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_rows_wait_for_as_long_as_they_like():
    weights, optimizer = make(0.9, 0.999)
    idle = IdleRows(optimizer, N_ROWS)
    rates = np.random.default_rng(1).uniform(0.01, 0.1, 1000)
    wait(optimizer, idle, rates[:300])
    wait(optimizer, idle, rates[300:])
    idle.catch_up(slice(None), weights, moments_of(optimizer), np.empty_like(weights))
    expected, each = make(0.9, 0.999)
    for rate in rates:
        each.step(expected.reshape(-1), np.zeros(expected.size), rate)
    np.testing.assert_allclose(weights, expected, rtol=1e-8)


def test_rows_wait_from_their_own_step_on():
    """Each row of a matrix is behind by the steps since it was named."""
    weights, optimizer = make()
    expected, each = make()
    idle = IdleRows(optimizer, N_ROWS)
    rng = np.random.default_rng(2)
    for number, rate in enumerate(RATES):
        rows = np.flatnonzero(rng.random(N_ROWS) < 0.4) if number else np.arange(2)
        gradient = np.zeros((N_ROWS, N_UNITS))
        gradient[rows] = rng.normal(size=(len(rows), N_UNITS))
        each.step(expected.reshape(-1), gradient.reshape(-1), rate)
        moments = moments_of(optimizer)
        picked, *own = (part[rows] for part in (weights, *moments))
        scratch = np.empty((1, len(rows), N_UNITS))
        idle.catch_up(rows, picked, own, scratch[0])
        optimizer.advance(rate)
        optimizer.step_block(picked, gradient[rows], own, scratch)
        for whole, part in zip((weights, *moments), (picked, *own), strict=True):
            whole[rows] = part
        idle.note_step(rows, 0.0)
    assert not np.allclose(weights, expected, rtol=1e-3)
    moved = weights.copy()
    idle.move(slice(None), moved, moments_of(optimizer), np.empty_like(moved))
    np.testing.assert_allclose(moved, expected, rtol=1e-9)


@pytest.mark.parametrize("shrinkage", [None, [1.0, 4.0, 0.25, 2.0, 1.0]])
def test_a_penalty_draws_rows_that_wait(shrinkage):
    """As its gradient divided by the root of the second moment, step after step."""
    weights, optimizer = make(beta_2=0.9999)
    for moment in optimizer.moments[:1]:
        moment[...] = 0
    start, root = weights.copy(), np.sqrt(moments_of(optimizer)[1])
    idle = IdleRows(optimizer, N_ROWS)
    strength, drawn = 1e-4, 0.0
    for rate in RATES:
        wait(optimizer, idle, [rate], strength)
        drawn += optimizer.rate * strength
    factors = None if shrinkage is None else np.array(shrinkage)
    scratch = np.empty_like(weights)
    idle.move(slice(None), weights, moments_of(optimizer), scratch, factors)
    rows = drawn * (1 if factors is None else factors[:, np.newaxis])
    np.testing.assert_allclose(weights, start * (1 - rows / root), rtol=1e-5)
    assert np.all(weights != start)


def test_a_penalty_never_takes_rows_past_zero():
    weights, optimizer = make()
    optimizer.moments[0][...] = 0
    start = weights.copy()
    idle = IdleRows(optimizer, N_ROWS)
    wait(optimizer, idle, RATES, 1e9)
    idle.move(slice(None), weights, moments_of(optimizer), np.empty_like(weights))
    np.testing.assert_array_equal(np.sign(weights), np.sign(start))
    # Steps of Adam have the size of the learning rate.
    bound = start**2 / (np.abs(start) + sum(RATES))
    np.testing.assert_allclose(np.abs(weights), bound, rtol=0.4)


@pytest.mark.parametrize("shrinkage", [None, [1.0, 4.0, 0.25, 2.0, 1.0]])
def test_rows_that_have_had_no_gradient_are_drawn_by_the_learning_rate(shrinkage):
    weights, optimizer = make(epsilon=1e-12, n_steps=0)
    expected, each = make(epsilon=1e-12, n_steps=0)
    idle = IdleRows(optimizer, N_ROWS)
    factors = None if shrinkage is None else np.array(shrinkage)
    start = weights.copy()
    for _ in range(5):
        wait(optimizer, idle, [1e-3], 1e-4)
        gradient = expected * 1e-4
        if factors is not None:
            gradient *= factors[:, np.newaxis]
        each.step(expected.reshape(-1), gradient.reshape(-1), 1e-3)
    scratch = np.empty_like(weights)
    idle.move(slice(None), weights, moments_of(optimizer), scratch, factors)
    large = np.abs(start) > 0.1
    moved = np.abs(start - expected)[large]
    np.testing.assert_allclose(moved, 5e-3, rtol=0.05)
    np.testing.assert_allclose(np.abs(start - weights)[large], moved, rtol=0.25)


def test_rows_that_made_a_step_are_drawn_in_it_too():
    weights, optimizer = make()
    optimizer.moments[0][...] = 0
    idle = IdleRows(optimizer, N_ROWS)
    optimizer.advance(0.1)
    idle.note_step(np.arange(2), 1e-3)
    start = weights.copy()
    idle.move(slice(None), weights, moments_of(optimizer), np.empty_like(weights))
    assert np.all(np.abs(weights) < np.abs(start))
    idle.restart()
    again = weights.copy()
    idle.move(slice(None), weights, moments_of(optimizer), np.empty_like(weights))
    np.testing.assert_allclose(weights, again)


def test_only_moments_that_are_soon_gone_may_wait():
    assert may_wait(Adam(1, np.float64))
    assert may_wait(Adam(1, np.float64, 0.0, 0.5))
    assert not may_wait(Adam(1, np.float64, 0.99, 0.999))
    assert not may_wait(Adam(1, np.float64, 0.9, 0.0))
    assert not may_wait(SGD(1, np.float64))
