"""Steps among points of the same signs."""

import numpy as np
import pytest

from dask_ma.sfb.logistic._face import Face, Step


def problem(dtype=np.float64, n_features=5, n_outputs=3):
    """Point and gradient, penalties, and blocks; the last feature is an intercept."""
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(n_outputs, n_features + 2, n_features))
    blocks = np.einsum("krj,kri->jki", roots, roots).astype(dtype)
    point, gradient = rng.normal(size=(2, n_features, n_outputs))
    point[rng.random(point.shape) < 0.4] = 0
    point[-1, 0] = 0
    gradient[-1] -= gradient[-1].mean()  # as that of softmax
    l1, l2 = rng.uniform(0.1, 1, size=(2, n_features))
    l1[-1] = l2[-1] = 0
    l1, l2 = (np.repeat(v, n_outputs) for v in (l1, l2))
    return (point.ravel(), gradient.ravel(), l1, l2, n_outputs), blocks


def test_signs_stay():
    start, direction = np.array([1.0, -1.0, 0.0, 2.0]), np.array([-3.0, 3.0, -1.0, 1.0])
    fixed = np.array([True, False, False, True])
    step = Step(start, direction, -1.0, fixed)
    np.testing.assert_array_equal(step.at(1.0), [0, 2, -1, 3])
    np.testing.assert_array_equal(step.at(0.25), [0.25, -0.25, -0.25, 2.25])
    np.testing.assert_array_equal(Step(start, direction, -1.0).at(1.0), [-2, 2, -1, 3])


def test_slopes_of_the_objective():
    """By finite differences, of variables that may change; zero of others."""
    (point, gradient, l1, l2, n_outputs), _ = problem()
    face = Face(point, gradient, l1, l2, n_outputs)

    def value(x):
        return gradient @ x + l1 @ np.abs(x) + l2 @ x**2 / 2

    steps = 1e-6 * np.eye(len(point))
    expected = [(value(point + h) - value(point - h)) / 2e-6 for h in steps]
    stays = (point == 0) & (l1 > 0)
    assert stays.any() and not stays.all()
    np.testing.assert_allclose(face.slopes, np.where(stays, 0, expected), atol=1e-6)
    direction = face.within(np.arange(len(point)))
    slope = face.slopes @ np.arange(len(point))
    assert face.step(direction).slope == pytest.approx(slope)
    assert (face.step(-9 * direction).at(1.0) * point >= 0)[l1 > 0].all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inverse_within_outputs(dtype):
    places, blocks = problem(dtype)
    face = Face(*places)
    before = blocks.copy()
    found = face.inverse(blocks)(np.arange(1.0, 16))
    np.testing.assert_array_equal(blocks, before)
    expected = np.zeros((5, 3))
    for k in range(3):
        free = np.flatnonzero(face.within(np.arange(1.0, 16) ** 2)[k::3])
        system = blocks[:, k][np.ix_(free, free)] + np.diag(places[3][k::3][free])
        expected[free, k] = np.linalg.solve(system, np.arange(1.0, 16)[k::3][free])
    expected[-1] -= expected[-1].mean()
    np.testing.assert_allclose(found.reshape(5, 3), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("value", [-1.0, -1e9])
def test_systems_that_are_not_definite(value):
    """The inverse is, of whatever it is one."""
    places, blocks = problem()
    blocks[:, 1] = value * np.eye(5)
    face = Face(*places)
    inverse = face.inverse(blocks)
    found = np.array([inverse(face.within(unit)) for unit in np.eye(15)])
    free = np.array([face.within(unit).any() for unit in np.eye(15)])
    assert (np.diagonal(found)[free] > 0).all()


def test_where_all_are_zero():
    """There is nowhere to go."""
    (point, gradient, l1, l2, n_outputs), blocks = problem()
    face = Face(0 * point, gradient, l1 + 1, l2, n_outputs)
    assert not face.slopes.any()
    assert not face.inverse(blocks)(np.ones(len(point))).any()


def test_changes_of_all_outputs_alike_are_left_out():
    """Where penalties have no curvature; with one output, there is no such change."""
    (point, gradient, l1, _, n_outputs), blocks = problem()
    point[:3] = [1.0, 2, -3]
    places = point, gradient, l1
    face = Face(*places, 0 * l1, n_outputs)
    free = (point != 0) | (l1 == 0)
    is_flat = free.reshape(-1, n_outputs).all(axis=1)
    assert is_flat[[0, -1]].all() and not is_flat.all()
    alike = np.repeat(is_flat, n_outputs) * 1.0
    assert not face.within(alike).any()
    for found in (face.slopes, face.inverse(blocks)(np.arange(1.0, 16))):
        np.testing.assert_allclose(
            found.reshape(-1, n_outputs)[is_flat].sum(axis=1), 0, atol=1e-9
        )
        assert not found[~free].any()
    curved = Face(*places, 1 + 0 * l1, n_outputs)
    np.testing.assert_array_equal(curved.within(alike), alike)
    np.testing.assert_array_equal(Face(*places, 0 * l1, 1).within(alike), alike)
