"""Kernels of matrix factorization against formulas written out."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.kernels import (
    NormalEquations,
    Side,
    add_elements,
    best_columns,
    hashed_uniform,
    losses_of_rows,
    row_batches,
    sgd_step,
    solve_rows,
    step_batches,
)

RNG = np.random.default_rng(0)


def make_matrix(n_rows=40, n_columns=30, density=0.3):
    """Rows of many lengths, none among them, with stored zeros and a place twice."""
    filled = (
        RNG.random((n_rows, n_columns)) < density * np.linspace(0, 2, n_rows)[:, None]
    )
    rows, columns = np.nonzero(filled)
    rows, columns = np.append(rows, rows[-1]), np.append(columns, columns[-1])
    values = RNG.normal(size=len(rows))
    values[::7] = 0
    indptr = np.r_[0, np.cumsum(np.bincount(rows, minlength=n_rows))]
    return sparse.csr_array((values, columns, indptr), shape=(n_rows, n_columns)), rows


@pytest.mark.parametrize("capacity", [1, 10, 4000])
def test_batches_hold_every_element_once(capacity):
    matrix, rows = make_matrix()
    curvatures, pulls = RNG.random((2, matrix.nnz)) + 0.1
    batches = row_batches(matrix, curvatures, pulls, capacity)
    found = []
    for batch in batches:
        inside = batch.pulls > 0
        row = np.broadcast_to(batch.rows[:, None], inside.shape)
        fields = (row, batch.columns, batch.values, batch.curvatures, batch.pulls)
        found += list(zip(*(part[inside] for part in fields), strict=True))
        assert not batch.curvatures[~inside].any()
        assert len(np.unique(batch.rows)) == len(batch.rows)
    expected = zip(rows, matrix.indices, matrix.data, curvatures, pulls, strict=True)
    assert sorted(found) == sorted(expected)
    if capacity == 4000:
        assert len(batches) < 25


@pytest.mark.parametrize("with_gram", [False, True])
@pytest.mark.parametrize("with_offsets", [False, True])
def test_least_squares_row_by_row(with_offsets, with_gram):
    matrix, rows = make_matrix()
    curvatures, pulls = RNG.random((2, matrix.nnz)) + 0.1
    factors = RNG.normal(size=(30, 5))
    offsets = RNG.normal(size=30) if with_offsets else None
    gram = factors.T @ factors if with_gram else None
    ridges = RNG.random(40)
    equations = NormalEquations.zeros(40, 5, np.dtype(float))
    batches = row_batches(matrix, curvatures, pulls)
    add_elements(equations, batches[:3], factors, offsets)
    add_elements(equations, batches[3:], factors, offsets)
    found = solve_rows(equations, ridges, gram)
    losses = losses_of_rows(equations, found, gram)
    for row in range(40):
        own = rows == row
        near = factors[matrix.indices[own]]
        values = matrix.data[own].copy()
        if with_offsets:
            values -= offsets[matrix.indices[own]]
        G = np.zeros((5, 5)) if gram is None else gram
        A = near.T @ (curvatures[own][:, None] * near) + G
        b = near.T @ (pulls[own] * values)
        x = (
            np.linalg.solve(A + ridges[row] * np.eye(5), b)
            if own.any()
            else np.zeros(5)
        )
        np.testing.assert_allclose(found[row], x, atol=1e-9)
        loss = x @ A @ x - 2 * b @ x + pulls[own] @ values**2
        assert losses[row] == pytest.approx(max(loss, 0), abs=1e-9)


def test_a_singular_row_gets_the_smallest_solution():
    matrix = sparse.csr_array(np.array([[2.0, 0, 0]]))
    equations = NormalEquations.zeros(1, 3, np.dtype(float))
    factors = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    add_elements(equations, row_batches(matrix, np.ones(1), np.ones(1)), factors)
    np.testing.assert_allclose(solve_rows(equations, np.zeros(1)), [[2, 0, 0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_step_is_that_of_the_gradient(dtype):
    matrix, rows = make_matrix()
    weights = (RNG.random(matrix.nnz) + 0.5).astype(dtype)
    left = RNG.normal(size=(40, 4)).astype(dtype), np.full(40, 0.7, dtype)
    right = RNG.normal(size=(30, 4)).astype(dtype), np.full(30, 0.3, dtype)
    alphas = RNG.random(40).astype(dtype), RNG.random(30).astype(dtype)
    batches = step_batches(
        rows,
        matrix.indices,
        matrix.data.astype(dtype),
        weights,
        (40, 30),
        50,
        np.random.default_rng(1),
    )
    assert sum(len(batch.values) for batch in batches) == matrix.nnz
    P, Q = left[0].astype(float), right[0].astype(float)
    squares = [left[1].astype(float), right[1].astype(float)]
    for batch in batches:
        loss = sgd_step(
            batch, Side(*left, alphas[0], 1), Side(*right, alphas[1], None), 0.2
        )
        errors = batch.values - (P[batch.rows] * Q[batch.columns]).sum(axis=1)
        assert loss == pytest.approx((batch.weights * errors**2).sum(), rel=1e-4)
        ups = np.zeros_like(P), np.zeros_like(Q)
        for n, (i, j) in enumerate(zip(batch.rows, batch.columns, strict=True)):
            w = batch.weights[n]
            ups[0][i] += w * (errors[n] * Q[j] - alphas[0][i] * P[i])
            ups[1][j] += w * (errors[n] * P[i] - alphas[1][j] * Q[j])
        ups[0][:, 1] = 0
        for factors, square, up in zip((P, Q), squares, ups, strict=True):
            square += (up**2).mean(axis=1)
            factors += 0.2 / np.sqrt(square)[:, None] * up
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if dtype == np.float32 else {"rtol": 1e-9}
    np.testing.assert_allclose(left[0], P, **tolerance)
    np.testing.assert_allclose(right[0], Q, **tolerance)
    np.testing.assert_allclose(left[1], squares[0], **tolerance)


def test_steps_of_many_rows_are_on_some_of_them():
    """Factors of the rows of a batch are close to each other in memory."""
    n, n_rows = 5000, 50_000
    rows, columns = RNG.integers(0, n_rows, n), RNG.integers(0, 10, n)
    ones = np.ones(n)
    batches = step_batches(
        rows, columns, np.arange(n) + 0.0, ones, (n_rows, 10), 100, RNG
    )
    found = np.concatenate([batch.values for batch in batches])
    np.testing.assert_array_equal(np.sort(found), np.arange(n))
    assert max(np.ptp(batch.rows) for batch in batches) < n_rows / 4


@pytest.mark.parametrize(("n_columns", "n"), [(5, 10), (300, 3), (1000, 1), (777, 20)])
@pytest.mark.parametrize("kinds", [3, 10**6])
def test_the_best_columns(n_columns, n, kinds):
    """Equal scores go by their column; minus infinity comes last."""
    scores = RNG.integers(kinds, size=(20, n_columns)).astype(np.float32)
    scores[3] = -np.inf
    scores[4, 1:] = -np.inf
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :n]
    np.testing.assert_array_equal(best_columns(scores, n, 16), expected)


@pytest.mark.parametrize("shape", [(0, 50), (3, 0)])
def test_the_best_of_no_columns_or_for_no_rows(shape):
    found = best_columns(np.zeros(shape), 10)
    assert found.shape == (shape[0], min(10, shape[1]))
    assert found.dtype == np.intp


def test_random_numbers_belong_to_ids():
    ids = RNG.permutation(20_000)
    numbers = hashed_uniform(3, ids, 4)
    np.testing.assert_array_equal(hashed_uniform(3, ids[::-1], 4)[::-1], numbers)
    np.testing.assert_array_equal(hashed_uniform(3, ids, 2), numbers[:, :2])
    assert (hashed_uniform(4, ids, 4) != numbers).mean() > 0.999
    assert numbers.min() >= -1 and numbers.max() < 1
    np.testing.assert_allclose(numbers.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(np.corrcoef(numbers.T), np.eye(4), atol=0.03)
    assert (numbers**2).mean() == pytest.approx(1 / 3, abs=0.01)
