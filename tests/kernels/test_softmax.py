"""The multinomial log loss against loops, finite differences and SciPy."""

import math

import numpy as np
import pytest
from scipy import optimize, special

from dask_ma.kernels import (
    PartOfLogLoss,
    entropy_sum,
    log_loss_sum,
    part_of_log_losses,
    residuals,
    softmax,
    softmax_slopes,
)

every_width = pytest.mark.parametrize("n_columns", [1, 2, 5])
every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])
either_weight = pytest.mark.parametrize("weighted", [False, True])


def problem(n_columns, n_rows=11, dtype=np.float64, weighted=True):
    """Margins, class codes and row weights."""
    rng = np.random.default_rng([n_columns, n_rows])
    margins = rng.normal(scale=2, size=(n_rows, n_columns)).astype(dtype)
    y = rng.integers(max(2, n_columns), size=n_rows)
    weight = rng.uniform(0.1, 2, n_rows).astype(dtype)
    return margins, y, weight if weighted else None


def all_classes(margins):
    """Margins with a column for each of two classes."""
    if margins.shape[1] > 1:
        return margins
    return np.hstack([np.zeros_like(margins), margins])


@every_dtype
@every_width
def test_softmax_is_that_of_scipy(n_columns, dtype):
    margins, _, _ = problem(n_columns, dtype=dtype)
    p = softmax(margins)
    assert p.dtype == dtype
    assert p.shape == margins.shape
    expected = special.softmax(all_classes(margins), axis=1)
    np.testing.assert_allclose(p, expected[:, -n_columns:], rtol=1e-5)


@every_dtype
@either_weight
@every_width
def test_loss_by_hand(n_columns, weighted, dtype):
    margins, y, weight = problem(n_columns, dtype=dtype, weighted=weighted)
    expected = 0.0
    for i, m in enumerate(all_classes(margins).astype(np.float64)):
        loss = math.log(sum(math.exp(value) for value in m)) - m[y[i]]
        expected += loss * (weight[i] if weighted else 1)
    found = log_loss_sum(margins, y, weight)
    assert found == pytest.approx(expected, rel=1e-5 if dtype == np.float32 else 1e-12)


@either_weight
@every_width
def test_slopes_are_the_derivatives(n_columns, weighted):
    margins, y, weight = problem(n_columns, weighted=weighted)

    def loss(flat):
        return log_loss_sum(flat.reshape(margins.shape), y, weight)

    expected = optimize.approx_fprime(margins.ravel(), loss, 1e-7)
    found = softmax_slopes(margins, y, weight)
    np.testing.assert_allclose(found.ravel(), expected, atol=1e-5)


@every_width
def test_residuals_by_hand(n_columns):
    margins, y, _ = problem(n_columns)
    dual = softmax(margins)
    kept = dual.copy()
    a = residuals(dual, y)
    np.testing.assert_array_equal(dual, kept)
    for i, k in np.ndindex(*a.shape):
        label = 1 if n_columns == 1 else k
        assert a[i, k] == pytest.approx(dual[i, k] - (y[i] == label))


@either_weight
@every_width
def test_entropy_by_hand(n_columns, weighted):
    margins, _, weight = problem(n_columns, weighted=weighted)
    dual = softmax(margins)
    expected = 0.0
    for i, q in enumerate(dual):
        full = [1 - q[0], q[0]] if n_columns == 1 else list(q)
        entropy = -sum(value * math.log(value) for value in full)
        expected += entropy * (weight[i] if weighted else 1)
    assert entropy_sum(dual, weight) == pytest.approx(expected)


@every_width
def test_one_hot_vectors_have_no_entropy(n_columns):
    dual = np.eye(max(2, n_columns))[:, -n_columns:]
    assert entropy_sum(dual) == 0


@every_width
def test_loss_is_the_conjugate_of_minus_entropy(n_columns):
    margins, y, weight = problem(n_columns)
    other, _, _ = problem(n_columns, n_rows=11)
    loss = log_loss_sum(margins, y, weight)
    for dual, slack in [(softmax(margins), 0), (softmax(0.3 * other[::-1]), 0.1)]:
        a = residuals(dual, y)
        bound = entropy_sum(dual, weight) + float(weight @ (a * margins).sum(axis=1))
        assert loss >= bound + slack - 1e-9
        if slack == 0:
            assert loss == pytest.approx(bound)


@every_dtype
@every_width
def test_large_margins_do_not_overflow(n_columns, dtype):
    margins = np.zeros((2, n_columns), dtype=dtype)
    margins[:, -1] = [1e4, -1e4]
    y = np.array([0, 0])
    assert np.isfinite(softmax(margins)).all()
    lost = 1e4 if n_columns <= 2 else 1e4 + math.log(n_columns - 1)
    rest = 0 if n_columns <= 2 else math.log(n_columns - 1)
    assert log_loss_sum(margins, y) == pytest.approx(lost, abs=2 * rest + 0.01)
    assert log_loss_sum(margins[1:], y[1:]) == pytest.approx(rest, abs=1e-6)


@every_width
def test_no_rows(n_columns):
    nothing, y = np.zeros((0, n_columns)), np.zeros(0, dtype=int)
    assert softmax(nothing).shape == (0, n_columns)
    assert log_loss_sum(nothing, y) == 0
    assert entropy_sum(nothing) == 0


@every_dtype
@pytest.mark.parametrize("cuts", [(), (1,), (2, 4)], ids=str)
def test_parts_of_the_loss_are_that_of_scipy_together(cuts, dtype):
    margins, y, _ = problem(5, n_rows=40, dtype=dtype)
    margins[0], margins[1, 3] = margins[0] + 300, 90  # exponentials beyond float32
    cut = list(zip(np.split(margins, cuts, axis=1), [0, *cuts], strict=True))
    parts = [PartOfLogLoss(part) for part, _ in cut]
    sums = [part.sums for part in parts]
    values = [part_of_log_losses(part, y, first, sums) for part, first in cut]
    slopes = [p.slope(y, a, sums) for p, (_, a) in zip(parts, cut, strict=True)]
    logarithms = special.log_softmax(margins.astype(np.float64), axis=1)
    rtol = 1e-12 if dtype == np.float64 else 2e-5
    expected = -logarithms[np.arange(len(y)), y]
    np.testing.assert_allclose(sum(values), expected, rtol, 300 * rtol)
    expected = np.exp(logarithms) - np.eye(5)[y]
    np.testing.assert_allclose(np.hstack(slopes), expected, rtol, rtol)
    assert slopes[0].dtype == dtype
