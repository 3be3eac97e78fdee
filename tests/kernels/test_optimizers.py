"""Optimisers against loops written from the formulas."""

import numpy as np
import pytest

from dask_ma.kernels import SGD, Adam, add_distance, shift_towards
from dask_ma.kernels._optimizers import BLOCK

KINDS = {
    "adam": lambda n, dtype: Adam(n, dtype, 0.8, 0.99, 1e-3),
    "momentum": lambda n, dtype: SGD(n, dtype, 0.7, nesterov=False),
    "nesterov": lambda n, dtype: SGD(n, dtype, 0.7, nesterov=True),
}
every_kind = pytest.mark.parametrize("kind", sorted(KINDS))
every_length = pytest.mark.parametrize("n_values", [0, 1, 7, BLOCK, 2 * BLOCK + 5])


def gradients(n_values, n_steps=4, dtype=np.float64):
    """Start values and the gradients of some steps."""
    rng = np.random.default_rng(n_values)
    numbers = rng.normal(size=(n_steps + 1, n_values)).astype(dtype)
    return numbers[0], numbers[1:]


def adam(x, gradients, rates):
    """Algorithm 1 of Kingma and Ba in the form at the end of their section 2."""
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        m = 0.8 * m + 0.2 * g
        v = 0.99 * v + 0.01 * g**2
        x = x - rate * np.sqrt(1 - 0.99**t) / (1 - 0.8**t) * m / (np.sqrt(v) + 1e-3)
    return x


def momentum(x, gradients, rates):
    velocity = np.zeros_like(x)
    for g, rate in zip(gradients, rates, strict=True):
        velocity = 0.7 * velocity - rate * g
        x = x + velocity
    return x


def nesterov(x, gradients, rates):
    velocity = np.zeros_like(x)
    for g, rate in zip(gradients, rates, strict=True):
        velocity = 0.7 * velocity - rate * g
        x = x + 0.7 * velocity - rate * g
    return x


REFERENCES = {"adam": adam, "momentum": momentum, "nesterov": nesterov}


@every_kind
@every_length
def test_steps_follow_the_formula(kind, n_values):
    start, slopes = gradients(n_values)
    rates = [0.1, 0.2, 0.05, 0.3]
    values, optimizer = start.copy(), KINDS[kind](n_values, np.float64)
    for slope, rate in zip(slopes, rates, strict=True):
        given = slope.copy()
        optimizer.step(values, slope, rate)
        np.testing.assert_array_equal(slope, given)
    np.testing.assert_allclose(
        values, REFERENCES[kind](start, slopes, rates), rtol=1e-12, atol=1e-14
    )


@every_kind
def test_float32_stays_float32(kind):
    start, slopes = gradients(BLOCK + 3, dtype=np.float32)
    values, optimizer = start.copy(), KINDS[kind](len(start), np.float32)
    for slope in slopes:
        optimizer.step(values, slope, np.float64(0.1))
    expected = REFERENCES[kind](start.astype(float), slopes.astype(float), [0.1] * 4)
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    vectors = [v for v in optimizer.state_dict().values() if isinstance(v, np.ndarray)]
    assert vectors and all(vector.dtype == np.float32 for vector in vectors)


@every_kind
def test_a_state_goes_on_in_another_optimizer(kind):
    start, slopes = gradients(BLOCK + 3)
    values, optimizer = start.copy(), KINDS[kind](len(start), np.float64)
    for slope in slopes[:2]:
        optimizer.step(values, slope, 0.1)
    state, other_values = optimizer.state_dict(), values.copy()
    for slope in slopes[2:]:
        optimizer.step(values, slope, 0.1)
    other = KINDS[kind](len(start), np.float64)
    other.load_state_dict(state)
    for slope in slopes[2:]:
        other.step(other_values, slope, 0.1)
    np.testing.assert_array_equal(other_values, values)
    for name, value in other.state_dict().items():
        np.testing.assert_array_equal(value, optimizer.state_dict()[name])


@every_kind
def test_a_state_is_a_copy(kind):
    start, slopes = gradients(9)
    values, optimizer = start.copy(), KINDS[kind](9, np.float64)
    optimizer.step(values, slopes[0], 0.1)
    state = optimizer.state_dict()
    kept = {name: np.copy(value) for name, value in state.items()}
    other = KINDS[kind](9, np.float64)
    other.load_state_dict(state)
    optimizer.step(values, slopes[1], 0.1)
    other.step(values, slopes[2], 0.1)
    for name, value in state.items():
        np.testing.assert_array_equal(value, kept[name])


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            SGD(5, np.float64).state_dict(),
            r"Adam holds .*first_moment.* got .*velocity",
        ),
        (Adam(4, np.float64).state_dict(), r"first_moment must have the shape \(5,\)"),
    ],
)
def test_a_state_of_another_optimizer_is_refused(state, message):
    with pytest.raises(ValueError, match=message):
        Adam(5, np.float64).load_state_dict(state)


@pytest.mark.parametrize("lengths", [(4, 4), (5, 4), (4, 5), (6, 6)])
def test_vectors_of_another_length_are_refused(lengths):
    values, gradient = (np.zeros(length) for length in lengths)
    with pytest.raises(ValueError, match="made for 5 values"):
        SGD(5, np.float64).step(values, gradient, 0.1)


@every_kind
def test_a_slice_steps_as_the_whole(kind):
    start, slopes = gradients(2 * BLOCK)
    cut = BLOCK + 11
    whole, parts = start.copy(), start.copy()
    optimizer = KINDS[kind](len(start), np.float64)
    first, second = (KINDS[kind](n, np.float64) for n in (cut, len(start) - cut))
    for slope in slopes:
        optimizer.step(whole, slope, 0.1)
        first.step(parts[:cut], slope[:cut], 0.1)
        second.step(parts[cut:], slope[cut:], 0.1)
    np.testing.assert_allclose(parts, whole, rtol=1e-13, atol=1e-15)


@every_length
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shift_towards_is_equation_7(n_values, dtype):
    x, (anchor, *_) = gradients(n_values, dtype=dtype)
    values = x.copy()
    shift_towards(values, anchor, np.float64(0.3))
    assert values.dtype == dtype
    np.testing.assert_allclose(values, x - 0.3 * (x - anchor), rtol=1e-5, atol=1e-6)


@every_length
def test_add_distance_is_the_gradient_in_equation_6(n_values):
    x, (anchor, slope, *_) = gradients(n_values)
    gradient, values = slope.copy(), x.copy()
    add_distance(gradient, values, anchor, 0.3)
    np.testing.assert_array_equal(values, x)
    np.testing.assert_allclose(gradient, slope + 0.3 * (x - anchor), rtol=1e-14)
