"""Minima of models without second derivatives across outputs."""

import numpy as np
import pytest

from dask_ma.kernels import block_point, newton_point


def problem(dtype=np.float64, n_features=6, n_outputs=3):
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(n_outputs, n_features + 2, n_features))
    blocks = np.einsum("krj,kri->jki", roots, roots)
    gradient, point = rng.normal(size=(2, n_features, n_outputs))
    l1, l2 = rng.uniform(0.1, 1, size=(2, n_features))
    l1[-1] = l2[-1] = 0  # an intercept
    return blocks.astype(dtype), gradient, point, l1, l2


@pytest.mark.parametrize("share", [0.0, 1.0, 3.0])
def test_each_output_is_a_model_of_its_own(share):
    blocks, gradient, point, l1, l2 = problem()
    found = block_point(blocks, gradient, point, share * l1, l2, tol=1e-9)
    for k in range(3):
        parts = gradient[:, k], point[:, k], share * l1, l2
        expected = newton_point(blocks[:, k], *parts, tol=1e-10)
        np.testing.assert_allclose(found[:, k], expected, atol=1e-6)
    assert (found == 0).any() == (share > 0)


def test_rounded_blocks():
    expected = block_point(*problem(), tol=1e-9)
    found = block_point(*problem(np.float32), tol=1e-5)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_a_loose_tolerance_ends_sooner_and_lower_than_the_start():
    blocks, gradient, point, l1, l2 = problem()

    def value(x):
        step = x - point
        quadratic = np.einsum("jk,jki,ik", step, blocks, step) / 2
        norms = l1 @ np.abs(x).sum(axis=1) + l2 @ (x**2).sum(axis=1) / 2
        return (gradient * step).sum() + quadratic + norms

    rough, best = (
        block_point(blocks, gradient, point, l1, l2, tol=t) for t in (0.9, 1e-9)
    )
    assert value(best) < value(rough) < value(point)


def test_features_without_spread_stay_where_the_penalty_puts_them():
    blocks, gradient, point, l1, l2 = problem()
    blocks[2], blocks[:, :, 2], gradient[2] = 0, 0, 0
    found = block_point(blocks, gradient, point, l1, l2)
    np.testing.assert_array_equal(found[2], 0)
    assert np.isfinite(found).all()


def test_shifts_of_all_outputs_are_free():
    """None lowers the penalty in the end, and it is lower than without them."""
    blocks, gradient, point, l1, l2 = problem()
    gradient -= gradient.mean(axis=1, keepdims=True)  # as that of softmax

    def penalties(x):
        return l1 * np.abs(x).sum(axis=1) + l2 * (x**2).sum(axis=1) / 2

    found, without = (
        block_point(blocks, gradient, point + 2, l1, l2, has_shifts=s, tol=1e-9)
        for s in (True, False)
    )
    for shift in np.linspace(-3, 3, 601):
        assert (penalties(found + shift) >= penalties(found) - 1e-3).all()
    assert penalties(found).sum() < penalties(without).sum()


@pytest.mark.parametrize("n_outputs", [2, 3, 4, 5])
def test_shifts_without_a_parabola_end_in_a_zero(n_outputs):
    """The penalty cannot be lower, and there is no such shift left among the signs."""
    blocks, gradient, point, l1, l2 = problem(n_outputs=n_outputs)
    gradient -= gradient.mean(axis=1, keepdims=True)
    l1 = l1 / 100
    found = block_point(blocks, gradient, point + 2, l1, 0 * l2, has_shifts=True)
    penalised, shifts = found[:-1], np.linspace(-3, 3, 601)
    assert np.isclose(penalised, 0, atol=0.05).any(axis=1).all()
    least = np.abs(penalised).sum(axis=1)
    for shift in shifts:
        assert (np.abs(penalised + shift).sum(axis=1) >= least - 0.1).all()
