"""The matrix that is penalised late, against the slow loop."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

from dask_ma.sfb import ParameterMatrix
from dask_ma.sfb.model import _dual
from dask_ma.sfb.model._factors import Factors
from dask_ma.sfb.prox import L1, L2, ColumnNormBall, NoPenalty, Prox, TraceNorm

J, D = 3, 12
PENALTIES = [NoPenalty(), L1(0.3), L2(0.5), ColumnNormBall(0.4), TraceNorm(0.3)]
every_penalty = pytest.mark.parametrize("prox", PENALTIES, ids=repr)
every_kind = pytest.mark.parametrize("kind", ["dense", "sparse"])


def make_updates(kind, n_updates=15, dtype=np.float64):
    """Factors of some iterations, and their steps; few columns at a time."""
    rng = np.random.default_rng(3)
    for number in range(n_updates):
        u = rng.normal(size=(2, J)).astype(dtype)
        v = sparse.random(2, D, 0.15, "csr", dtype=dtype, rng=rng)
        yield Factors(u, v if kind == "sparse" else v.toarray()), 0.5 / (1 + number)


def make_start(dtype=np.float64):
    return np.random.default_rng(1).normal(size=(J, D)).astype(dtype)


@pytest.mark.pairs
@every_penalty
@every_kind
@pytest.mark.parametrize("with_intercept", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_late_equals_eager(prox, kind, with_intercept, dtype):
    W = make_start(dtype)
    b = np.arange(J, dtype=dtype) if with_intercept else None
    matrix = ParameterMatrix(W, b, prox)
    W, b = W.astype(np.float64), np.arange(J) * 1.0 * with_intercept
    X = np.random.default_rng(2).normal(size=(4, D)) * (np.arange(D) % 3 == 0)
    tol = 1e-12 if dtype == np.float64 else 2e-5
    for number, (factors, step) in enumerate(make_updates(kind, dtype=dtype)):
        matrix.subtract(factors, 0.1, 0.5)
        matrix.penalise(step)
        u, v = (np.asarray(f @ np.eye(f.shape[1])) for f in factors)
        W = prox(W - 0.1 * u.T @ v, step)
        b = b - 0.05 * u.sum(axis=0) * with_intercept
        if number % 4 == 3:  # only some columns are looked at
            rows = sparse.csr_array(X.astype(dtype)) if number % 8 == 3 else X
            np.testing.assert_allclose(matrix.product(rows), X @ W.T + b, tol, tol)
    assert matrix.dtype == matrix.values.dtype == dtype
    assert matrix.shape == (J, D)
    np.testing.assert_allclose(matrix.penalty(), prox.value(W), 10 * tol)
    np.testing.assert_allclose(np.asarray(matrix), W, tol, tol)
    if with_intercept:
        assert matrix.intercept.dtype == dtype
        np.testing.assert_allclose(matrix.intercept, b, tol, tol)


@every_penalty
def test_whole_updates(prox):
    W, b = make_start(), np.ones(J)
    matrix = ParameterMatrix(W, b, prox)
    for factors, step in make_updates("dense", 5):
        total, slopes = factors.v.T @ factors.u, factors.u.sum(axis=0)
        for part in (slice(0, 5), slice(5, D)):
            matrix.subtract_part(part, total[part], 0.1)
        matrix.subtract_slopes(slopes, 0.2)
        matrix.penalise(step)
        W = prox(W - 0.1 * factors.u.T @ factors.v, step)
        b = b - 0.2 * factors.u.sum(axis=0)
    np.testing.assert_allclose(matrix, W, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(matrix.intercept, b)


@pytest.mark.parametrize("prox", [L1(0.3), L2(0.5)], ids=repr)
def test_an_iteration_touches_few_columns(prox):
    matrix = ParameterMatrix(make_start(), None, prox)
    v = sparse.csr_array(([1.0], [4], [0, 1]), shape=(1, D))
    matrix.subtract(Factors(np.ones((1, J)), v), 0.1)
    matrix.penalise(1.0)
    matrix.product(v)
    others = np.arange(D) != 4
    np.testing.assert_array_equal(matrix.values[others], make_start().T[others])
    used = make_start().T[4] - 0.1
    # L1 has been applied to the column; L2 is a factor of all columns.
    assert (matrix.values[4] != used).all() == isinstance(prox, L1)
    assert (matrix.whole()[others] != make_start().T[others]).any(axis=1).all()
    np.testing.assert_allclose(matrix.values[4], prox(used[np.newaxis], 1.0)[0])


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("n_pairs", [0, 2])
def test_updates_without_elements(kind, n_pairs):
    matrix = ParameterMatrix(make_start(), np.zeros(J), L1(0.1))
    matrix.penalise(1.0)
    v = sparse.csr_array((n_pairs, D)) if kind == "sparse" else np.zeros((n_pairs, D))
    matrix.subtract(Factors(np.ones((n_pairs, J)), v), 0.5)
    np.testing.assert_array_equal(matrix, L1(0.1)(make_start(), 1.0))
    np.testing.assert_array_equal(matrix.intercept, np.full(J, -0.5 * n_pairs))


def test_a_start_outside_of_a_constraint_is_pulled_in():
    ball = ColumnNormBall(0.5)
    matrix = ParameterMatrix(make_start(), None, ball)
    v = sparse.csr_array(([1.0], [4], [0, 1]), shape=(1, D))
    assert matrix.penalty() == np.inf
    matrix.subtract(Factors(np.ones((1, J)), v), 0.1)
    matrix.penalise(1.0)
    assert matrix.penalty() == 0


def test_two_updates_before_one_penalty():
    ball = ColumnNormBall(0.5)
    matrix = ParameterMatrix(np.zeros((J, D)), None, ball)
    matrix.penalise(1.0)
    for column in (4, 7):
        v = sparse.csr_array(([1.0], [column], [0, 1]), shape=(1, D))
        matrix.subtract(Factors(np.ones((1, J)), v), -9.0)
    matrix.penalise(1.0)
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=0)[[4, 7]], 0.5)


@pytest.mark.parametrize("prox", [L1(0.3), ColumnNormBall(0.4)], ids=repr)
def test_replaced_values_are_up_to_date(prox):
    matrix = ParameterMatrix(make_start(), np.zeros(J), prox)
    matrix.penalise(1.0)
    values, intercept = 0.1 * np.ones((D, J)), np.arange(J) * 1.0
    matrix.replace(values, intercept)
    np.testing.assert_array_equal(matrix, values.T)
    np.testing.assert_array_equal(matrix.intercept, intercept)
    assert not np.shares_memory(matrix.values, values)
    assert not np.shares_memory(matrix.intercept, intercept)
    matrix.replace(100 * values, intercept)
    matrix.penalise(0.5)
    np.testing.assert_allclose(matrix, prox(100 * values.T, 0.5))


def test_the_start_is_copied_and_one_output_is_enough():
    start, intercept = np.ones((1, D)), np.zeros(1)
    matrix = ParameterMatrix(start, intercept, NoPenalty())
    v = sparse.csr_array(np.eye(2, D))
    matrix.subtract(Factors(np.ones((2, 1)), v), 1.0)
    assert (start == 1).all() and (intercept == 0).all()
    product = matrix.product(np.eye(D))
    expected = np.where(np.arange(D) < 2, 0.0, 1.0) - 2
    np.testing.assert_array_equal(product[:, 0], expected)
    np.testing.assert_array_equal(matrix.product(sparse.csr_array(np.eye(D))), product)


def test_copies_of_the_matrix():
    matrix = ParameterMatrix(make_start(), None, NoPenalty())
    copy = np.array(matrix, dtype=np.float32)
    assert copy.dtype == np.float32
    copy = np.array(matrix)
    copy[:] = 0
    np.testing.assert_array_equal(matrix, make_start())


@pytest.mark.pairs
@every_penalty
@every_kind
@pytest.mark.parametrize("is_watched", [False, True])
def test_frozen_values_stay(prox, kind, is_watched):
    """Whatever is done to the matrix, which goes on as one that was never frozen."""
    frozen, other = (ParameterMatrix(make_start(), None, prox) for _ in range(2))
    if is_watched:
        frozen.watch()
    kept = []
    for number, (factors, step) in enumerate(make_updates(kind)):
        for matrix in (frozen, other):
            matrix.penalise(step)
            if number % 5 == 4:
                matrix.replace(np.array(matrix).T / 2, None)
            elif number % 3 == 2:
                product = factors.v.T @ factors.u
                matrix.subtract_part(slice(0, D), product, 0.1)
            else:
                matrix.subtract(factors, 0.1)
            matrix.settle()
        values = frozen.freeze()
        kept.append((values, values.copy()))
        assert not values.flags.writeable
    for values, expected in kept:
        np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(np.array(frozen), np.array(other))


def test_frozen_values_are_copied_at_the_next_change():
    """And no sooner, nor twice."""
    matrix = ParameterMatrix(make_start(), None, NoPenalty())
    before = matrix.values
    kept = matrix.freeze()
    assert np.shares_memory(kept, before) and matrix.values is before
    factors, _ = next(make_updates("dense"))
    matrix.subtract(factors, 0.1)
    changed = matrix.values
    assert not np.shares_memory(kept, changed)
    matrix.subtract(factors, 0.1)
    assert matrix.values is changed


def test_penalties_of_users():
    class Positive(Prox):
        def __call__(self, matrix, step):
            return np.maximum(matrix, 0)

        def value(self, matrix):
            return 0.0 if (matrix >= 0).all() else np.inf

    matrix = ParameterMatrix(make_start(), None, Positive())
    matrix.penalise(0.1)
    np.testing.assert_array_equal(matrix, np.maximum(make_start(), 0))
    assert matrix.values.flags.c_contiguous and matrix.penalty() == 0


def test_a_state_that_was_kept_comes_back_without_a_copy():
    """Unless there have been changes since."""
    matrix = ParameterMatrix(np.arange(6.0).reshape(2, 3), None, L2(0.5))
    kept = matrix.freeze()
    matrix.penalise(1.0)  # late: nothing is written
    matrix.replace(kept, None)
    assert np.shares_memory(matrix.values, kept)
    np.testing.assert_array_equal(matrix.whole(), np.arange(6.0).reshape(2, 3).T)
    matrix.subtract(Factors(np.ones((1, 2)), np.ones((1, 3))), 1.0)
    matrix.replace(kept, None)
    assert not np.shares_memory(matrix.values, kept)
    np.testing.assert_array_equal(matrix.whole(), kept)
    np.testing.assert_array_equal(kept, np.arange(6.0).reshape(2, 3).T)


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize(
    "picked", [np.s_[::-1], np.s_[:, ::-1], np.s_[:1], np.s_[:, :1], np.s_[:]], ids=str
)
def test_values_in_another_order_are_other_values(picked, is_frozen):
    matrix = ParameterMatrix(np.arange(6.0).reshape(2, 3), None, NoPenalty())
    before = matrix.whole().copy()
    kept = matrix.freeze() if is_frozen else None
    matrix.replace(matrix.whole()[picked], None)
    expected = np.broadcast_to(before[picked], before.shape)
    np.testing.assert_array_equal(matrix.whole(), expected)
    if kept is not None:
        np.testing.assert_array_equal(kept, before)


@every_kind
@pytest.mark.parametrize("chunk", [1, 7, 10**6])
def test_a_matrix_made_of_dual_sums_some_columns_at_a_time(monkeypatch, kind, chunk):
    """For products with rows, and for sums over its elements."""
    monkeypatch.setattr(_dual, "_CHUNK", chunk)
    calls = []

    def operator(sums):
        calls.append(sums.shape[1])
        return 2 * sums

    view = _dual.DualView(operator, "operator", is_columnwise=True)
    sums = np.random.default_rng(0).normal(size=(J, D))
    matrix = ParameterMatrix(sums, None, NoPenalty(), view)
    rows = sparse.random_array((5, D), density=0.3, format="csr", rng=0)
    X = rows if kind == "sparse" else rows.toarray()
    np.testing.assert_allclose(matrix.product(X), 2 * (rows @ sums.T))
    np.testing.assert_array_equal(np.vstack(list(matrix.chunks())), 2 * sums.T)
    assert max(calls) <= max(1, chunk // J)
    n_calls = len(calls)
    for _ in range(2):
        np.testing.assert_array_equal(matrix.whole(), 2 * sums.T)
    assert len(calls) == n_calls + -(-D // max(1, min(D, chunk // J)))
    matrix.replace(3 * matrix.stored(), None)
    np.testing.assert_allclose(matrix.whole(), 6 * sums.T)


def test_what_optimisers_change_is_looked_at_again():
    view = _dual.DualView(lambda sums: 2 * sums, "operator", is_columnwise=False)
    matrix = ParameterMatrix(make_start(), None, NoPenalty(), view)
    before, gradient = matrix.whole().copy(), np.ones((D, J))
    optimizer = SimpleNamespace(step=lambda x, g, length: np.subtract(x, g, out=x))
    matrix.descend(optimizer, gradient, 1.0)
    np.testing.assert_allclose(matrix.whole(), before - 2)


def test_a_matrix_is_not_forgotten_while_it_is_found():
    view = _dual.DualView(lambda sums: 2 * sums, "operator", is_columnwise=False)
    other = threading.Thread(target=view.forget)
    with view._lock:
        other.start()
        other.join(0.05)
        assert other.is_alive()
    other.join(10)
    assert not other.is_alive()
