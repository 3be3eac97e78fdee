"""Smooth losses against finite differences, bounds and conjugates found by search."""

import numpy as np
import pytest
from scipy import special

from dask_ma.kernels import (
    LOSSES,
    ROUNDED_LOSSES,
    SMOOTHED_LOSSES,
    loss_values,
    smooth_loss,
)

MARGIN = {"hinge", "log_loss", "modified_huber", "squared_hinge"}
EPSILON = 0.3
STEP = 1e-5
CASES = [
    (name, width) for name in sorted(SMOOTHED_LOSSES) for width in (1e-2, 0.2, 3.0)
]


@pytest.fixture
def points(global_random_seed=0):
    rng = np.random.default_rng(global_random_seed)
    p = 3 * rng.standard_normal(400)
    return rng.choice([-1.0, 1.0], 400), p


def targets_of(name, y):
    return y if name in MARGIN else 2 * y + 0.1


def test_every_loss_but_the_perceptron():
    assert set(LOSSES) - SMOOTHED_LOSSES == {"perceptron"}
    with pytest.raises(ValueError, match="loss must be one of .* got 'perceptron'"):
        smooth_loss("perceptron", np.ones(1), np.ones(1), EPSILON, 1.0)


@pytest.mark.parametrize(("name", "width"), CASES)
def test_derivatives(points, name, width):
    y, p = points
    y = targets_of(name, y)
    here, above, below = (
        smooth_loss(name, y, q, EPSILON, width) for q in (p, p + STEP, p - STEP)
    )
    slopes = (above.smooth - below.smooth) / (2 * STEP)
    np.testing.assert_allclose(here.slopes, slopes, atol=1e-6)
    curvatures = (above.slopes - below.slopes) / (2 * STEP)
    # Some losses change their curvature in a step.
    near = np.abs(above.curvatures - below.curvatures) < 0.05 * (1 + curvatures)
    assert near.mean() > 0.95
    np.testing.assert_allclose(here.curvatures[near], curvatures[near], atol=0.05)


@pytest.mark.parametrize(("name", "width"), CASES)
def test_gap_is_what_the_conjugate_says(points, name, width):
    """loss*(slope), the maximum of slope q - loss(q), on a fine grid of q."""
    y, p = points[0][:20], points[1][:20]
    y = targets_of(name, y)
    found = smooth_loss(name, y, p, EPSILON, width)
    np.testing.assert_allclose(found.values, loss_values(name, y, p, EPSILON))
    q = np.linspace(-30, 30, 60001)
    grid = loss_values(name, y[:, np.newaxis], q, EPSILON)
    conjugate = (found.slopes[:, np.newaxis] * q - grid).max(axis=1)
    gaps = found.values + conjugate - found.slopes * p
    assert (found.gaps >= 0).all()
    np.testing.assert_allclose(found.gaps, gaps, atol=1e-3)
    if name not in ROUNDED_LOSSES:
        assert not found.gaps.any()
        np.testing.assert_array_equal(found.smooth, found.values)


@pytest.mark.parametrize("name", ["hinge", "epsilon_insensitive"])
def test_gap_shrinks_with_the_width(points, name):
    y, p = targets_of(name, points[0]), points[1]
    sums = [
        smooth_loss(name, y, p, EPSILON, w).gaps.sum() for w in (1, 0.1, 1e-2, 1e-3)
    ]
    assert sums == sorted(sums, reverse=True)
    assert sums[-1] < 1e-3 * sums[0]


def test_huber_is_itself_when_narrow(points):
    y, p = points
    found = smooth_loss("huber", y, p, EPSILON, EPSILON / 2)
    np.testing.assert_array_equal(found.smooth, found.values)
    assert not found.gaps.any()
    assert smooth_loss("huber", y, p, EPSILON, EPSILON).gaps.any()


@pytest.mark.parametrize("name", ["hinge", "epsilon_insensitive", "log_loss"])
@pytest.mark.parametrize("width", [0.05, 1.0])
def test_full_caution_is_never_below(points, name, width):
    """The parabola with the cautious curvature lies above the smooth loss."""
    y, p = targets_of(name, points[0]), points[1]
    found = smooth_loss(name, y, p, EPSILON, width, caution=1.0)
    own = smooth_loss(name, y, p, EPSILON, width)
    np.testing.assert_array_equal(found.slopes, own.slopes)
    assert (found.curvatures >= own.curvatures * (1 - 1e-12)).all()
    for step in (-5.0, -0.3, 0.01, 0.3, 5.0):
        parabola = own.smooth + step * own.slopes + 0.5 * step**2 * found.curvatures
        there = smooth_loss(name, y, p + step, EPSILON, width).smooth
        assert (there <= parabola + 1e-12).all()
    half = smooth_loss(name, y, p, EPSILON, width, caution=0.5)
    np.testing.assert_allclose(
        half.curvatures, 0.5 * (own.curvatures + found.curvatures)
    )


@pytest.mark.parametrize("name", sorted(SMOOTHED_LOSSES))
def test_far_from_everything_nothing_overflows(name):
    y, p = np.array([-1.0, 1.0, 1.0]), np.array([1e6, 1e6, -1e6])
    found = smooth_loss(name, y, p, EPSILON, 1e-6)
    assert all(np.isfinite(array).all() for array in found)


@pytest.mark.parametrize("width", [1e-6, 0.05, 1.0])
def test_one_exponential_is_as_good_as_two(width):
    """Values and slopes are those of SciPy, near the kink and far from it."""
    p = np.concatenate([np.linspace(-3, 3, 1001), [-1e6, 1e6, np.nextafter(1, 2)]])
    y = np.ones(len(p))
    u = (1 - p) / width
    found = smooth_loss("hinge", y, p, EPSILON, width)
    np.testing.assert_allclose(found.smooth, width * np.logaddexp(0, u), atol=1e-300)
    np.testing.assert_allclose(-found.slopes, special.expit(u), rtol=1e-15, atol=1e-300)
    found = smooth_loss("log_loss", y, p, EPSILON, width)
    np.testing.assert_allclose(found.smooth, np.logaddexp(0, -p), atol=1e-300)
    np.testing.assert_allclose(
        -found.slopes, special.expit(-p), rtol=1e-15, atol=1e-300
    )
