"""Conjugate gradients of rows, and factors that are not negative."""

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import nnls

from dask_ma.kernels import (
    NormalEquations,
    add_elements,
    add_products,
    add_pulls,
    begin_rows,
    descend_batch,
    descend_rows,
    losses_of_descent,
    losses_of_rows,
    row_batches,
    solve_rows,
    solve_rows_nonnegative,
)

RNG = np.random.default_rng(0)
N, M, F = 12, 9, 4
MATRIX = sparse.random_array((N, M), density=0.6, rng=RNG, format="csr")
MATRIX = sparse.csr_array(MATRIX - 0.3 * MATRIX.astype(bool))
CURVATURES = RNG.uniform(0.5, 2, MATRIX.nnz)
PULLS = RNG.uniform(0.5, 2, MATRIX.nnz)
NEAR, OFFSETS = RNG.normal(size=(M, F)), RNG.normal(size=M)
START, RIDGES = RNG.normal(size=(N, F)), RNG.uniform(0.1, 1, N)
GRAM = NEAR.T @ NEAR


def batches(capacity=16):
    return row_batches(MATRIX, CURVATURES, PULLS, capacity)


def equations_of(offsets):
    equations = NormalEquations.zeros(N, F, np.dtype(np.float64))
    add_elements(equations, batches(), NEAR, offsets)
    return equations


def in_parts(n_steps, offsets, gram):
    """Conjugate gradients with the columns in two parts, as they pass by."""
    parts = []
    for own in (slice(0, 5), slice(5, M)):
        inside = np.isin(MATRIX.indices, np.arange(M)[own])
        part = MATRIX[:, own]
        part.sort_indices()
        found = row_batches(part, CURVATURES[inside], PULLS[inside], 16)
        parts.append((found, NEAR[own], None if offsets is None else offsets[own]))
    pulls, products, constants = np.zeros((N, F)), np.zeros((N, F)), np.zeros(N)
    for found, near, shift in parts:
        add_pulls(pulls, products, constants, found, near, START, shift)
    descent = begin_rows(START, pulls, products, RIDGES, gram)
    for _ in range(n_steps):
        products = np.zeros((N, F))
        for found, near, _ in parts:
            add_products(products, found, near, descent.directions)
        descend_rows(descent, products, RIDGES, gram)
    return descent, constants


@pytest.mark.parametrize("offsets", [None, OFFSETS], ids=["plain", "offsets"])
@pytest.mark.parametrize("gram", [None, GRAM], ids=["stored", "all"])
@pytest.mark.parametrize("n_steps", [1, 2, F])
def test_conjugate_gradients(offsets, gram, n_steps):
    """As many steps as factors solve the equations; fewer fall along the gradient."""
    equations = equations_of(offsets)
    descent, constants = in_parts(n_steps, offsets, gram)
    losses = losses_of_descent(descent, constants, RIDGES)
    expected = losses_of_rows(equations, descent.factors, gram)
    np.testing.assert_allclose(losses, expected, atol=1e-9)
    if n_steps == F:
        solved = solve_rows(equations, RIDGES, gram)
        np.testing.assert_allclose(descent.factors, solved, atol=1e-8)
    if n_steps == 1:
        for row in range(N):
            A = equations.matrices[row] + RIDGES[row] * np.eye(F)
            A = A if gram is None else A + gram
            r = equations.vectors[row] - A @ START[row]
            x = START[row] + (r @ r) / (r @ A @ r) * r
            np.testing.assert_allclose(descent.factors[row], x)


@pytest.mark.parametrize("offsets", [None, OFFSETS], ids=["plain", "offsets"])
def test_rows_that_are_whole_need_no_parts(offsets):
    descent, constants = in_parts(2, offsets, GRAM)
    for batch in batches():
        found, own = descend_batch(batch, NEAR, START, RIDGES, 2, GRAM, offsets)
        for one, all_of in zip(found, descent, strict=True):
            np.testing.assert_allclose(one, all_of[batch.rows], atol=1e-10)
        np.testing.assert_allclose(own, constants[batch.rows])


def test_rows_that_have_arrived_stay():
    descent, _ = in_parts(3 * F, None, GRAM)
    before = descent.factors.copy()
    descend_rows(descent, np.zeros((N, F)), RIDGES, GRAM)
    np.testing.assert_allclose(descent.factors, before, atol=1e-9)
    empty = begin_rows(*np.zeros((3, 2, F)), np.zeros(2))
    descend_rows(empty, np.zeros((2, F)), np.zeros(2))
    assert not empty.factors.any()


@pytest.mark.parametrize("gram", [None, GRAM], ids=["stored", "all"])
def test_factors_that_are_not_negative(gram):
    equations = equations_of(None)
    none = np.zeros(F, dtype=bool)
    found = solve_rows_nonnegative(equations, RIDGES, np.abs(START), none, gram)
    for row in range(N):
        A = equations.matrices[row] + RIDGES[row] * np.eye(F)
        L = np.linalg.cholesky(A if gram is None else A + gram)
        best, _ = nnls(L.T, np.linalg.solve(L, equations.vectors[row]))
        np.testing.assert_allclose(found[row], best, atol=1e-4)
    assert found.min() == 0 and (found > 0).any()


def test_factors_that_may_be_negative():
    equations = equations_of(None)
    every = np.ones(F, dtype=bool)
    found = solve_rows_nonnegative(equations, RIDGES, np.zeros((N, F)), every)
    solved = solve_rows(equations, RIDGES)
    np.testing.assert_allclose(found, solved, atol=1e-4)
    free = np.array([True, False, False, False])
    mixed = solve_rows_nonnegative(equations, RIDGES, np.zeros((N, F)), free)
    assert mixed[:, 0].min() < 0 and mixed[:, 1:].min() == 0


def test_rows_without_elements_have_no_factors():
    equations = NormalEquations.zeros(2, F, np.dtype(np.float32))
    found = solve_rows_nonnegative(
        equations, np.zeros(2), np.ones((2, F)), np.zeros(F, bool)
    )
    assert not found.any() and found.dtype == np.float32


def test_what_is_not_defined_is_nan_without_a_warning():
    """The objective tells of it; the flags of BLAS cannot be relied on."""
    matrix = sparse.csr_array(np.ones((3, 2), dtype=np.float32))
    weights = np.ones(matrix.nnz, dtype=np.float32)
    [batch] = row_batches(matrix, weights, weights)
    near = np.array([[1, np.inf], [1, -np.inf]], dtype=np.float32)
    pulls, products = np.zeros((2, 3, 2), dtype=np.float32)
    add_pulls(
        pulls, products, np.zeros(3), [batch], near, np.zeros((3, 2), dtype=np.float32)
    )
    np.testing.assert_array_equal(np.isnan(pulls), [[False, True]] * 3)
    assert np.isnan(products).all()
