"""Digamma, at every precision and shape, and weights of words, against SciPy."""

import numpy as np
import pytest
from scipy import special

from dask_ma.kernels import _digamma, digamma, exp_digamma, word_weights

# Around the root at 1.46 and around the usual thresholds, too.
POINTS = np.concatenate(
    [np.logspace(-6, 8, 20011), np.linspace(1.4, 1.5, 101), np.linspace(8, 51, 431)]
)
CHUNK = _digamma._CHUNK
both_functions = pytest.mark.parametrize("function", [digamma, exp_digamma])
every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])
every_threshold = pytest.mark.parametrize("threshold", [None, 9.0])


def points(dtype):
    """Arguments in a dtype, and SciPy's values of exactly these."""
    x = POINTS.astype(dtype)
    return x, special.psi(x.astype(np.float64))


def truncation(threshold):
    """Bound on what the series leaves out."""
    return 0.0 if threshold is None else 1 / (252 * threshold**6)


# Precision --------------------------------------------------------------------------


@pytest.mark.parametrize("threshold, bound", [(9, 1e-5), (49, 1e-8)])
def test_bounds_of_the_paper(threshold, bound):
    x, expected = points(np.float64)
    # Near the root, no relative error is small.
    scale = np.maximum(1, np.abs(expected))
    assert (np.abs(digamma(x, threshold) - expected) / scale).max() < bound


@pytest.mark.parametrize("threshold", [1, 2, 3.5, 9, 20, 49])
def test_error_is_below_the_bound(threshold):
    x, expected = points(np.float64)
    rounding = 8 * np.finfo(float).eps * np.maximum(np.log(x + threshold + 2), 1 / x)
    error = np.abs(digamma(x, threshold) - expected)
    assert (error < truncation(threshold) + rounding).all()


def test_numbers_of_the_docstring():
    x, expected = points(np.float64)
    moderate = x > 0.1  # below, the rounding of large values hides the rest
    for threshold, bound in [(9, 1e-8), (49, 3e-13)]:
        error = np.abs(digamma(x, threshold) - expected)[moderate]
        assert error.max() < bound
    np.testing.assert_array_equal(digamma(x), digamma(x, 9.0))


def test_a_higher_threshold_is_more_precise():
    x, expected = points(np.float64)
    errors = [np.abs(digamma(x, c) - expected)[x > 0.01].max() for c in (2, 4, 9, 49)]
    assert (np.diff(np.log10(errors)) < -1).all()


@pytest.mark.parametrize("threshold", [None, 9, 49])
def test_single_precision_rounds(threshold):
    x, expected = points(np.float32)
    terms = np.maximum(np.log(x + (threshold or 0) + 2), 1 / x)
    error = np.abs(digamma(x, threshold) - expected)
    assert (error < 8e-7 * np.maximum(1, terms)).all()


@pytest.mark.parametrize("function", [digamma, exp_digamma])
def test_single_precision_goes_as_far_as_can_be_told(function):
    x, _ = points(np.float32)
    far, farther = function(x, 5.0), function(x, 9.0)
    np.testing.assert_array_equal(far, farther)
    wide = x.astype(np.float64)
    assert (function(wide, 5.0) != function(wide, 9.0)).any()


@every_threshold
def test_known_values(threshold):
    x = np.array([1.0, 0.5, 2.0, 10.0])
    harmonic = sum(1 / n for n in range(1, 10))
    expected = np.array([0, -2 * np.log(2), 1, harmonic]) - np.euler_gamma
    np.testing.assert_allclose(digamma(x, threshold), expected, atol=1e-8)


@every_dtype
def test_without_a_threshold_it_is_scipys(dtype):
    x, _ = points(dtype)
    np.testing.assert_array_equal(digamma(x, None), special.psi(x))


@every_dtype
@pytest.mark.parametrize("threshold", [None, 1, 3.5, 9, 49])
def test_exp_digamma(threshold, dtype):
    x, logs = points(dtype)
    clear = logs > (-75 if dtype == np.float32 else -690)
    values = exp_digamma(x, threshold)[clear].astype(np.float64)
    error = np.abs(values / np.exp(logs[clear]) - 1)
    # The error of the exponent is that of the result, relative to it; it is as large
    # as the exponent's rounding.
    rounding = 8 * np.finfo(dtype).eps * np.maximum(5, np.abs(logs[clear]))
    assert (error < np.expm1(truncation(threshold)) + rounding).all()


@every_dtype
@pytest.mark.parametrize("threshold", [None, 1, 9, 49])
def test_floor(threshold, dtype):
    """Nothing is 0 or subnormal, and what is at the floor is negligible."""
    x = np.logspace(-30, -4, 53).astype(dtype)
    values = exp_digamma(x, threshold)
    lowest, most = (1e-35, 1e-32) if dtype == np.float32 else (9e-305, 1e-301)
    assert (values >= lowest).all()
    assert (values <= most).all()
    assert (values >= np.finfo(dtype).tiny).all()
    # The floor is reached smoothly.
    near = np.linspace(1 / 90, 1 / 70, 401).astype(dtype)
    if dtype == np.float64:
        near /= 9
    rising = exp_digamma(near, threshold)
    assert (np.diff(rising) >= -2e-5 * rising[1:]).all()
    assert rising[-1] > 100 * rising[0]


@every_dtype
def test_exp_above(dtype):
    x = np.array([0.0, -1.0, -79.0, -1e4, -np.inf], dtype=dtype)
    expected = np.exp(x[:3].astype(np.float64))
    values = _digamma.exp_above(x)
    assert values is x
    np.testing.assert_allclose(values[:3], expected, rtol=1e-5)
    assert values[0] == 1
    assert values[3] == values[4] > np.finfo(dtype).tiny
    assert values[4] < 1e-34


# Shapes -----------------------------------------------------------------------------


@pytest.mark.pairs
@both_functions
@every_dtype
@every_threshold
@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (3, 0), (4, 5), (2, 3, 4)])
def test_shapes(shape, threshold, dtype, function):
    x = np.random.default_rng(0).gamma(1.0, size=shape) + 0.05
    x = np.asarray(x, dtype=dtype)
    expected = special.psi(x.astype(np.float64))
    if function is exp_digamma:
        expected = np.exp(expected)
    values = function(x, threshold)
    assert isinstance(values, np.ndarray)
    assert values.shape == shape
    assert values.dtype == dtype
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)


VIEWS = {
    "every second": lambda x: x[::2],
    "backwards": lambda x: x[::-1, ::-1],
    "columns": lambda x: x[:, 3:8],
    "transposed": lambda x: x.T,
    "fortran": np.asfortranarray,
    "repeated": lambda x: np.broadcast_to(x[0], (4, 20)),
    "swapped": lambda x: x.reshape(6, 5, 4).transpose(1, 2, 0),
}


@pytest.mark.each
@both_functions
@every_threshold
@pytest.mark.parametrize("view", sorted(VIEWS))
def test_strides(view, threshold, function):
    x = VIEWS[view](np.random.default_rng(1).gamma(0.5, size=(6, 20)) + 1e-3)
    values = function(x, threshold)
    expected = [function(np.array([v]), threshold)[0] for v in x.ravel()]
    np.testing.assert_allclose(values.ravel(), expected, rtol=1e-13)
    assert values.flags.writeable


@pytest.mark.each(2)
@both_functions
@pytest.mark.parametrize("n_pieces", [1, 2, 5])
@pytest.mark.parametrize("more", [-1, 0, 1, CHUNK + 3])
def test_sizes_around_a_chunk(more, n_pieces, function):
    size = CHUNK // n_pieces + more
    x = np.linspace(0.1, 30, size)
    expected = special.psi(x) if function is digamma else np.exp(special.psi(x))
    np.testing.assert_allclose(function(x), expected, rtol=1e-7, atol=1e-8)


@both_functions
def test_chunks_of_any_size(function, monkeypatch):
    x = np.random.default_rng(2).gamma(1.0, size=(5, 4)) + 0.01
    expected = function(x)
    for size in range(1, 130):
        monkeypatch.setattr(_digamma, "_CHUNK", size)
        np.testing.assert_allclose(function(x), expected, rtol=1e-13)


@both_functions
@every_dtype
@every_threshold
def test_input_is_not_changed(threshold, dtype, function):
    x, _ = points(dtype)
    before = x.copy()
    values = function(x, threshold)
    np.testing.assert_array_equal(x, before)
    assert not np.shares_memory(values, x)
    x.flags.writeable = False
    np.testing.assert_array_equal(function(x, threshold), values)


# Weights of words -------------------------------------------------------------------


def parameters_of_topics(n_words=30, n_topics=7):
    """Their parameters, most of them small, and the sums over a larger vocabulary."""
    rng = np.random.default_rng([n_words, n_topics])
    parameters = 0.01 + rng.gamma(0.2, 20, (n_words, n_topics))
    return parameters, parameters.sum(axis=0) + 50


@every_dtype
@pytest.mark.parametrize("threshold, rtol", [(None, 1e-12), (9.0, 2e-8), (49.0, 1e-11)])
@pytest.mark.parametrize("n_topics", [1, 7])
def test_weights(n_topics, threshold, rtol, dtype):
    parameters, totals = parameters_of_topics(n_topics=n_topics)
    before = parameters.copy(), totals.copy()
    got = word_weights(parameters.astype(dtype), totals, threshold)
    assert got.weights.dtype == got.shift.dtype == dtype
    logs = special.psi(parameters) - special.psi(totals)
    largest = logs.max(axis=1)
    expected = np.exp(logs - largest[:, np.newaxis])
    rtol = rtol if dtype == np.float64 else 1e-4
    clear = expected > 1e-33  # the floor of single precision is near
    np.testing.assert_allclose(got.weights[clear], expected[clear], rtol=rtol)
    np.testing.assert_allclose(got.shift, largest, rtol=rtol, atol=rtol)
    np.testing.assert_array_equal(got.weights.max(axis=1), 1)
    np.testing.assert_array_equal((*before[0], before[1]), (*parameters, totals))


@every_dtype
@every_threshold
def test_weights_of_rare_words(threshold, dtype):
    """They would underflow without the divisor, and keep their order with it."""
    parameters = np.array([[2e-3, 2.1e-3, 1e-3], [1e-5, 1e-5, 1e-5]], dtype=dtype)
    got = word_weights(parameters, np.full(3, 1e4), threshold)
    assert (got.shift < -400).all()
    np.testing.assert_array_equal(got.weights.max(axis=1), 1)
    np.testing.assert_array_equal(got.weights[1], 1)
    first = got.weights[0].astype(np.float64)
    expected = np.exp(special.psi(2e-3) - special.psi(2.1e-3))
    assert first[0] == pytest.approx(expected, rel=2e-3)
    assert np.finfo(dtype).tiny < first[2] < 1e-34


def test_weights_without_words():
    got = word_weights(np.empty((0, 4)), np.ones(4))
    assert got.weights.shape == (0, 4)
    assert got.shift.shape == (0,)
