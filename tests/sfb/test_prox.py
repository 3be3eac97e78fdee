"""Proximal operators against closed forms, optimality conditions and a minimiser."""

import math
import pickle

import numpy as np
import pytest
from scipy.optimize import minimize

from dask_ma.kernels.prox import _singular_values
from dask_ma.sfb import prox
from dask_ma.sfb.prox import L1, L2, ColumnNormBall, ElasticNet, NoPenalty, TraceNorm

PENALTIES = [NoPenalty(), L1(0.3), L2(0.7), ColumnNormBall(1.5), TraceNorm(0.4)]
PENALTIES += [ElasticNet(0.3, 0.5)]
COLUMNWISE = [penalty for penalty in PENALTIES if penalty.is_columnwise]
by_name = {"ids": lambda penalty: type(penalty).__name__}
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def make_matrix(shape=(4, 7), seed=0, dtype=np.float64):
    return np.random.default_rng([*shape, seed]).normal(size=shape).astype(dtype)


def with_singular_values(values, shape, seed=0):
    """A matrix of the given singular values."""
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(shape[0], len(values))))[0]
    right = np.linalg.qr(rng.normal(size=(shape[1], len(values))))[0]
    return (left * values) @ right.T


def lowered(matrix, threshold):
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return (left * np.maximum(values - threshold, 0)) @ right


def test_closed_forms_of_a_small_matrix():
    matrix = np.array([[3.0, -0.5, 0.0], [4.0, 0.2, -2.0]])
    np.testing.assert_allclose(
        L1(0.5)(matrix, 0.6), [[2.7, -0.2, 0.0], [3.7, 0.0, -1.7]], atol=1e-15
    )
    np.testing.assert_allclose(L2(0.5)(matrix, 2.0), matrix / 2, rtol=1e-15)
    np.testing.assert_allclose(
        ColumnNormBall(2.5)(matrix, 0.1), matrix * [0.5, 1.0, 1.0], rtol=1e-15
    )
    np.testing.assert_array_equal(NoPenalty()(matrix, 0.1), matrix)
    np.testing.assert_allclose(
        ElasticNet(0.5, 2.0)(matrix, 0.6),
        np.array([[2.7, -0.2, 0.0], [3.7, 0.0, -1.7]]) / 2.2,
        atol=1e-15,
    )
    diagonal = np.array([[5.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
    np.testing.assert_allclose(
        TraceNorm(2.0)(diagonal, 1.0), [[3.0, 0, 0], [0, 0, 0]], atol=1e-15
    )


def test_values_of_a_small_matrix():
    matrix = np.array([[3.0, 0.0], [0.0, -4.0]])
    assert NoPenalty().value(matrix) == 0
    assert L1(0.5).value(matrix) == 3.5
    assert L2(0.5).value(matrix) == 6.25
    assert ElasticNet(0.5, 0.25).value(matrix) == 3.5 + 3.125
    assert TraceNorm(0.5).value(matrix) == pytest.approx(3.5)
    assert ColumnNormBall(4.0).value(matrix) == 0
    assert ColumnNormBall(3.9).value(matrix) == math.inf


@pytest.mark.parametrize("penalty", PENALTIES, **by_name)
@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (1, 5), (5, 1)])
def test_no_other_matrix_is_better(penalty, shape):
    matrix, step = 2 * make_matrix(shape), 0.8

    def objective(candidate):
        distance = np.sum((candidate - matrix) ** 2) / 2
        return step * penalty.value(candidate) + distance

    result = penalty(matrix, step)
    least = objective(result)
    # The objective is 1-strongly convex, so it rises by half the squared distance.
    rng = np.random.default_rng(1)
    others = [result + size * rng.normal(size=shape) for size in [1e-3, 0.1, 1]]
    others += [t * result for t in [0, 0.9, 0.99, 1.01]] + [matrix]
    for other in others:
        bound = least + np.sum((other - result) ** 2) / 2
        assert objective(other) >= bound - 1e-12 * max(1, least)


@pytest.mark.parametrize("penalty", PENALTIES[1:], **by_name)
def test_a_minimiser_finds_the_same(penalty):
    matrix, step = 1.5 * make_matrix((2, 3), seed=3), 0.9
    constraints = []
    if isinstance(penalty, ColumnNormBall):
        constraints = [
            {"type": "ineq", "fun": lambda z: 1.5**2 - (z.reshape(2, 3) ** 2).sum(0)}
        ]

    def objective(flat):
        candidate = flat.reshape(2, 3)
        value = 0.0 if constraints else penalty.value(candidate)
        return step * value + np.sum((candidate - matrix) ** 2) / 2

    # A method without derivatives for functions with kinks.
    method = "SLSQP" if constraints else "Nelder-Mead"
    found = minimize(
        objective,
        matrix.ravel(),
        method=method,
        constraints=constraints,
        options={"maxiter": 5000} | ({} if constraints else {"xatol": 1e-9}),
    )
    np.testing.assert_allclose(
        penalty(matrix, step).ravel(), found.x, atol=2e-4, rtol=0
    )


@pytest.mark.parametrize("penalty", PENALTIES, **by_name)
@dtypes
def test_the_result_is_new_and_of_the_same_dtype(penalty, dtype):
    matrix = make_matrix(dtype=dtype)
    before = matrix.copy()
    for argument in (matrix, np.asfortranarray(matrix)):
        for step in (0.0, 0.5):
            result = penalty(argument, step)
            assert result.dtype == dtype
            assert result.shape == matrix.shape
            assert not np.shares_memory(result, argument)
    np.testing.assert_array_equal(matrix, before)


@pytest.mark.parametrize("penalty", PENALTIES, **by_name)
def test_integers_and_empty_matrices(penalty):
    integers = np.array([[2, 0], [-1, 3]])
    result = penalty(integers, 0.5)
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, penalty(integers.astype(float), 0.5))
    for shape in [(0, 3), (3, 0)]:
        assert penalty(np.zeros(shape), 0.5).shape == shape
        assert penalty.value(np.zeros(shape)) == 0


@pytest.mark.parametrize("penalty", COLUMNWISE, **by_name)
@dtypes
def test_late_steps_equal_punctual_ones(penalty, dtype):
    matrix = make_matrix((3, 6), dtype=dtype)
    steps = [0.5, 0.25, 0.125]
    punctual = matrix
    for step in steps:
        punctual = penalty(punctual, step)
    late = matrix.T.copy()
    penalty.shrink(late, sum(map(penalty.amount, steps)))
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(late.T, punctual, rtol=8 * eps, atol=8 * eps)


@pytest.mark.parametrize("penalty", COLUMNWISE, **by_name)
@dtypes
def test_each_column_has_its_own_amount(penalty, dtype):
    matrix = make_matrix((3, 6), dtype=dtype)
    steps = np.linspace(0, 2, 6)
    columns = matrix.T.copy()
    penalty.shrink(columns, np.array([penalty.amount(step) for step in steps]))
    for column, source, step in zip(columns, matrix.T, steps, strict=True):
        np.testing.assert_array_equal(column, penalty(source[:, None], step)[:, 0])


def test_constraint_holds_after_the_projection():
    ball = ColumnNormBall(0.3)
    for dtype in (np.float32, np.float64):
        matrix = 5 * make_matrix((11, 200), dtype=dtype)
        assert ball.value(matrix) == math.inf
        projected = ball(matrix, 1.0)
        assert ball.value(projected) == 0
        assert ball.value(projected * dtype(1 + 1e-5)) == math.inf


def test_float32_columns_whose_squares_overflow():
    matrix = np.full((2, 1), 1e30, dtype=np.float32)
    result = ColumnNormBall(1.0)(matrix, 1.0)
    np.testing.assert_allclose(result, np.sqrt([[0.5], [0.5]]), rtol=1e-6)


SPECTRA = {
    "far from the threshold": [5.0, 4.0, 3.0, 1e-3],
    "close to it": [2.0, 0.5 + 1e-9, 0.5 - 1e-9, 0.4],
    "rank 2": [3.0, 2.0],
    "small ones stay": [100.0, 1.0, 0.6],
    "tiny": [1e-3, 1e-4],
}


@pytest.mark.pairs
@pytest.mark.parametrize("values", SPECTRA.values(), ids=SPECTRA.keys())
@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (5, 5)])
@pytest.mark.parametrize("threshold", [0.5, 1e-4, 1e-9])
def test_trace_norm_lowers_singular_values(values, shape, threshold):
    matrix = with_singular_values(values, shape)
    result = TraceNorm(2 * threshold)(matrix, 0.5)
    atol = 1e-12 * values[0]
    np.testing.assert_allclose(result, lowered(matrix, threshold), rtol=0, atol=atol)
    expected = sorted(np.maximum(np.array(values) - threshold, 0), reverse=True)
    found = np.linalg.svd(result, compute_uv=False)[: len(values)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("smallest", [1e-2, 1e-5, 1.2e-6, 1e-8, 1e-11])
@pytest.mark.parametrize("seed", range(5))
def test_trace_norm_where_the_gram_matrix_loses_digits(smallest, seed):
    matrix = with_singular_values([1.0, 0.5, smallest], (3, 20), seed)
    for threshold in (smallest / 100, smallest / 1.2, 1.2 * smallest):
        result = TraceNorm(1.0)(matrix, threshold)
        expected = lowered(matrix, threshold)
        np.testing.assert_allclose(result, expected, rtol=0, atol=2e-13)


def test_trace_norm_takes_the_gram_matrix_only_where_it_is_exact(monkeypatch):
    calls = []
    exact = _singular_values._lower_by_svd

    def spy(*args):
        calls.append(args)
        return exact(*args)

    monkeypatch.setattr(_singular_values, "_lower_by_svd", spy)
    good = with_singular_values([2.0, 1.0, 0.5], (3, 20))
    without_mean = with_singular_values([2.0, 1.0], (3, 20))
    for matrix in (good, without_mean):
        TraceNorm(1.0)(matrix, 1e-3)
    assert not calls
    bad = with_singular_values([2.0, 1.0, 1e-4], (3, 20))
    TraceNorm(1.0)(bad, 1e-5)
    assert len(calls) == 1
    TraceNorm(1.0)(bad.astype(np.float32), 1e-5)
    assert len(calls) == 1


def test_trace_norm_in_float32():
    matrix = with_singular_values([3.0, 1.0, 0.2], (6, 30)).astype(np.float32)
    expected = lowered(matrix.astype(np.float64), 0.1)
    np.testing.assert_allclose(TraceNorm(1.0)(matrix, 0.1), expected, atol=1e-6)


def test_trace_norm_refuses_elements_that_are_not_finite():
    matrix = np.array([[1.0, np.nan], [0.0, 1.0]])
    with pytest.raises(np.linalg.LinAlgError):
        TraceNorm(1.0)(matrix, 0.1)


@pytest.mark.parametrize("kind", [L1, L2, TraceNorm])
@pytest.mark.parametrize("alpha", [-1e-9, math.nan, math.inf, "1", None])
def test_wrong_strengths_are_refused(kind, alpha):
    with pytest.raises(ValueError, match="alpha must be a finite number"):
        kind(alpha)
    assert kind(np.float32(0.5)).alpha == 0.5


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf, "1"])
def test_wrong_radii_are_refused(radius):
    with pytest.raises(ValueError, match="radius must be a finite number above 0"):
        ColumnNormBall(radius)


@pytest.mark.parametrize("penalty", PENALTIES, **by_name)
@pytest.mark.parametrize("step", [-0.1, math.nan, math.inf])
def test_wrong_steps_are_refused(penalty, step):
    with pytest.raises(ValueError, match="step must be a finite number"):
        penalty(make_matrix(), step)


@pytest.mark.parametrize("penalty", PENALTIES, **by_name)
def test_penalties_are_values(penalty):
    copy = pickle.loads(pickle.dumps(penalty))
    assert copy == penalty
    assert eval(repr(penalty), vars(prox)) == penalty
    assert L1(0.5) != L1(0.25) != L2(0.25)
