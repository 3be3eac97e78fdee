"""What solvers ask of a loss, against searches and finite differences."""

import numpy as np
import pytest

from dask_ma.kernels import LOSSES, Loss, MultinomialLogLoss, log_loss_of, make_loss
from dask_ma.kernels.losses import MarginLoss

EPSILON, STEP = 0.3, 1e-5
CURVED = sorted(
    name for name in LOSSES if np.isfinite(make_loss(name, EPSILON).smoothness)
)
every_name = pytest.mark.parametrize("name", sorted(LOSSES))
every_curved = pytest.mark.parametrize("name", CURVED)


def problem(loss, n=200, spread=2.0):
    rng = np.random.default_rng(0)
    shape = (n,) if loss.n_outputs == 1 else (n, loss.n_outputs)
    p = spread * rng.normal(size=shape)
    y = rng.integers(max(2, loss.n_outputs), size=n)
    is_class = isinstance(loss, MarginLoss) or loss.n_outputs > 1
    return loss.targets(y if is_class else y + rng.normal(size=n)), p


def test_which_losses_have_bounded_curvature():
    assert set(LOSSES) - set(CURVED) == {"hinge", "perceptron", "epsilon_insensitive"}


def test_parameters_are_those_of_the_object():
    assert make_loss("huber", 0.7).epsilon == 0.7
    assert make_loss("huber", 0.7) == make_loss("huber", 0.7) != make_loss("huber", 0.6)
    with pytest.raises(ValueError, match="loss must be one of"):
        make_loss("cubic")
    with pytest.raises(ValueError, match="n_classes must be at least 2, got 1"):
        MultinomialLogLoss(1)


@pytest.mark.each
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_name
def test_targets_of_classes_are_signs(name, dtype):
    loss = make_loss(name)
    found = loss.targets(np.array([0, 1, 1]), dtype)
    is_margin = isinstance(loss, MarginLoss)
    assert found.tolist() == ([-1, 1, 1] if is_margin else [0, 1, 1])
    assert found.dtype == dtype
    np.testing.assert_array_equal(loss.targets(found, dtype), found)


@every_name
def test_conjugate_meets_the_loss_at_its_slope(name):
    """Fenchel and Young: loss(q) + loss*(u) >= u q, equal where u is the slope."""
    loss = make_loss(name, EPSILON)
    y, p = problem(loss)
    slopes = loss.slope(y, p)
    conjugate = loss.conjugate(y, slopes)
    np.testing.assert_allclose(
        loss.value(y, p) + conjugate, slopes * p, rtol=1e-12, atol=1e-13
    )
    for q in np.linspace(-8, 8, 33):
        assert (loss.value(y, q + 0 * p) + conjugate >= slopes * q - 1e-12).all()
    # Half of a slope is a slope that the loss has somewhere, at least in the limit.
    some = loss.conjugate(y, slopes / 2)
    q = np.linspace(-50, 50, 50_001)[:, np.newaxis]
    grid = (slopes[:20] / 2 * q - loss.value(y[:20], q)).max(axis=0)
    np.testing.assert_allclose(some[:20], grid, atol=1e-3)


@pytest.mark.parametrize("scale", [0.0, 0.4, 1.0])
def test_conjugate_of_several_classes(scale):
    loss = MultinomialLogLoss(3)
    y, p = problem(loss)
    slopes = scale * loss.slope(y, p)
    conjugate = loss.conjugate(y, slopes)
    if scale == 1:
        np.testing.assert_allclose(
            loss.value(y, p) + conjugate, (slopes * p).sum(axis=1), atol=1e-12
        )
    rng = np.random.default_rng(1)
    for size in (0.1, 1, 10):
        q = size * rng.normal(size=p.shape)
        least = (slopes * q).sum(axis=1) - 1e-12
        assert (loss.value(y, q) + conjugate >= least).all()
    # The maximum is where the slope is: the logarithm of the mixed probabilities.
    best = np.log(np.maximum(slopes + np.eye(3)[y], 1e-300))
    np.testing.assert_allclose(
        (slopes * best).sum(axis=1) - loss.value(y, best), conjugate, atol=1e-12
    )


def test_conjugate_of_probabilities_near_zero():
    """Rounding leads to no probability below 0, whose logarithm is none."""
    loss = MultinomialLogLoss(3)
    p = np.array([[-700.0, 0.1, 0.2], [40.0, -1e-3, 0.3]])
    y = np.array([0, 0])
    found = loss.conjugate(y, loss.slope(y, p))
    assert np.isfinite(found).all() and (found <= 0).all()


@every_curved
def test_slopes_grow_no_faster_than_the_smoothness(name):
    loss = make_loss(name, EPSILON)
    y, _ = problem(loss)
    p = np.linspace(-6, 6, 4001)
    slopes = loss.slope(y[:, np.newaxis], p)
    curvatures = np.diff(slopes, axis=1) / np.diff(p)
    assert curvatures.min() >= -1e-9
    assert curvatures.max() == pytest.approx(loss.smoothness, rel=1e-3)


@every_curved
def test_curvature_is_the_derivative_of_the_slope(name):
    loss = make_loss(name, EPSILON)
    y, p = problem(loss)
    change = (loss.slope(y, p + STEP) - loss.slope(y, p - STEP)) / (2 * STEP)
    np.testing.assert_allclose(loss.curvature(y, p), change, atol=1e-8)
    found = loss.curvatures(y, p)(0)
    np.testing.assert_array_equal(found, loss.curvature(y, p)[:, np.newaxis])


def test_curvature_of_the_log_loss_keeps_small_values():
    found = make_loss("log_loss").curvature(np.ones(2), np.array([-40.0, 40.0]))
    np.testing.assert_allclose(found, np.exp(-40), rtol=1e-12)


def test_curvatures_of_several_classes():
    loss = MultinomialLogLoss(4)
    y, p = problem(loss)
    for k in range(4):
        step = STEP * np.eye(4)[k]
        change = (loss.slope(y, p + step) - loss.slope(y, p - step)) / (2 * STEP)
        np.testing.assert_allclose(loss.curvatures(y, p)(k), change, atol=1e-8)


@pytest.mark.parametrize("name", ["squared_error", "log_loss", "squared_hinge"])
def test_working_squares(name):
    """Of the target p - slope / curvature, where there is curvature."""
    loss = make_loss(name)
    y, p = problem(loss)
    curvature = loss.curvature(y, p)
    bent = curvature > 0
    target = p[bent] - loss.slope(y, p)[bent] / curvature[bent]
    expected = np.zeros(len(p))
    expected[bent] = curvature[bent] * target**2
    np.testing.assert_allclose(loss.working_squares(y, p), expected, rtol=1e-9)


def test_working_squares_where_the_loss_is_a_line():
    loss = make_loss("modified_huber")
    found = loss.working_squares(np.ones(3), np.array([-3.0, 0.5, 3.0]))
    assert found.tolist() == [np.inf, 2 * 1.0**2, 0]


@pytest.mark.parametrize("n_columns", [1, 3])
def test_both_at_once(n_columns):
    loss = log_loss_of(n_columns)
    y, p = problem(loss)
    values, slopes = loss.value_and_slope(y, p)
    np.testing.assert_array_equal(values, loss.value(y, p))
    np.testing.assert_array_equal(slopes, loss.slope(y, p))


class Plain(Loss):
    """A loss of which nothing but the value and the slope is known."""

    def value(self, y, p):
        return np.abs(p - y)

    def slope(self, y, p):
        return np.sign(p - y)


def test_what_a_loss_does_not_have_is_said():
    y, p = np.zeros(2), np.ones(2)
    with pytest.raises(NotImplementedError, match="Plain has no curvature of its own"):
        Plain().curvature(y, p)
    with pytest.raises(NotImplementedError, match="Plain has no conjugate"):
        Plain().conjugate(y, p)
