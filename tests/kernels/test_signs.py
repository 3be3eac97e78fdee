"""The minimum by signs, against the conditions on single variables."""

import numpy as np
import pytest

from dask_ma.kernels import newton_point
from dask_ma.kernels._signs import SignedModel


def make_model(seed, n, spread):
    """Second derivatives whose eigenvalues spread by powers of ten, and the rest."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(n, n)))[0]
    B = (turn * np.logspace(0, -spread, n)) @ turn.T
    g = 3 * B @ rng.normal(size=n)
    l1 = rng.uniform(0, 0.5, n) * np.abs(g).max()
    return B, g, np.where(rng.random(n) < 0.2, 0, l1)


def value(B, g, l1, x):
    return g @ x + x @ B @ x / 2 + l1 @ np.abs(x)


def violation(B, g, l1, x):
    """How far slopes are from what a minimum has (Karush, Kuhn and Tucker)."""
    slopes = g + B @ x
    at_zero = np.maximum(np.abs(slopes) - l1, 0)
    return np.where(x == 0, at_zero, np.abs(slopes + l1 * np.sign(x))).max()


@pytest.mark.parametrize("spread", [0, 4, 8])
@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_the_minimum(n, spread):
    for seed in range(20):
        B, g, l1 = model = make_model(seed, n, spread)
        found = SignedModel(*model).minimum(np.zeros(n))
        assert violation(*model, found) <= 1e-9 * np.abs(g).max()


@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_from_anywhere(n):
    """Of many variables it may be too far away."""
    for seed in range(20):
        B, g, l1 = model = make_model(seed, n, 4)
        x = np.random.default_rng(seed).normal(size=n)
        found = SignedModel(*model).minimum(x)
        assert value(*model, found) < value(*model, x)
        if n <= 5:
            assert violation(*model, found) <= 1e-9 * np.abs(g).max()


def test_how_many_systems(monkeypatch):
    made, original = [], SignedModel._target
    monkeypatch.setattr(
        SignedModel, "_target", lambda *a: made.append(a) or original(*a)
    )
    # Where variables have nothing in common, the first one tells.
    model = SignedModel(*make_model(0, 40, 0))
    found = model.minimum(np.zeros(40))
    assert len(made) == 1
    np.testing.assert_allclose(model.minimum(found), found, rtol=1e-9)
    assert len(made) == 2
    made.clear()
    for seed in range(20):
        SignedModel(*make_model(seed, 120, 4)).minimum(np.zeros(120))
    assert len(made) < 20 * 20


def test_columns_that_are_the_same():
    """Of these there are many minima, all of one value."""
    B, g, l1 = make_model(0, 6, 2)
    l1[:] = 0.1 * np.abs(g).max()
    twice = np.block([[B, B], [B, B]]), np.tile(g, 2), np.tile(l1, 2)
    one = SignedModel(B, g, l1).minimum(np.zeros(6))
    both = SignedModel(*twice).minimum(np.zeros(12))
    assert value(*twice, both) == pytest.approx(value(B, g, l1, one), rel=1e-9)
    assert one.any()


def test_norms_that_take_all():
    B, g, l1 = make_model(1, 5, 1)
    found = SignedModel(B, g, l1 + np.abs(g)).minimum(np.zeros(5))
    np.testing.assert_array_equal(found, 0)


@pytest.mark.parametrize("spread", [2, 9])
def test_newton_point(spread):
    """Features that are much alike take no more than others."""
    for seed in range(5):
        B, g, l1 = make_model(seed, 30, spread)
        v, l2 = np.random.default_rng(seed).normal(size=30), 1e-10 * np.ones(30)
        x = newton_point(B, g, v, l1, l2)
        model = B + np.diag(l2), g - B @ v, l1
        assert violation(*model, x) <= 1e-8 * np.abs(model[1]).max()


def test_a_matrix_of_zeros_comes_to_an_end():
    """Variables without second derivatives have slopes below their 1-norms."""
    model = SignedModel(np.zeros((2, 2)), np.array([0.5, -0.5]), np.ones(2))
    assert np.abs(model.minimum(np.array([0.5, 0.5]))).max() <= 0.5
