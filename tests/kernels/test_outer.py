"""Updates by products of factors against dense products."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.kernels import product_square, subtract_product, used_columns


def make_factors(n_pairs, n_features, density, dtype=np.float64, n_outputs=3):
    """Random factors, with `v` as CSR."""
    rng = np.random.default_rng([n_pairs, n_features])
    v = sparse.random(n_pairs, n_features, density, "csr", dtype=dtype, rng=rng)
    return rng.normal(size=(n_pairs, n_outputs)).astype(dtype), sparse.csr_array(v)


# Few elements are sorted, many are marked.
CASES = [(0, 5, 1.0), (4, 1, 1.0), (3, 9, 0.0), (5, 40, 0.3), (2, 1000, 0.01)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_used_columns(case):
    _, v = make_factors(*case)
    columns = used_columns(v)
    assert columns.dtype == np.int64
    np.testing.assert_array_equal(columns, np.flatnonzero((v.toarray() != 0).any(0)))


def test_stored_zeros_and_repeated_columns_are_used():
    parts = [0.0, 1.0, 2.0], [6, 2, 2], [0, 1, 3]
    v = sparse.csr_array(parts, shape=(2, 8))
    assert used_columns(v).tolist() == [2, 6]
    assert used_columns(sparse.csr_array(parts, shape=(2, 900))).tolist() == [2, 6]
    u, matrix = np.array([[5.0], [7.0]]), np.zeros((8, 1))
    subtract_product(matrix, u, v, -1.0)
    assert matrix.ravel().tolist() == [0, 0, 21, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", ["dense", "csr_array", "csr_matrix"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_subtract_product(case, kind, dtype):
    u, v = make_factors(*case, dtype)
    before = np.random.default_rng(0).normal(size=(case[1], 3)).astype(dtype)
    matrix = before.copy()
    given = v.toarray() if kind == "dense" else getattr(sparse, kind)(v)
    subtract_product(matrix, u, given, 0.5)
    assert matrix.dtype == dtype
    rtol = 1e-12 if dtype == np.float64 else 1e-5
    expected = before - 0.5 * (v.toarray().T @ u)
    np.testing.assert_allclose(matrix, expected, rtol, rtol)
    if kind != "dense":
        again = before.copy()
        subtract_product(again, u, given, 0.5, used_columns(given))
        np.testing.assert_array_equal(again, matrix)


def test_the_type_of_the_matrix_stays():
    u, v = make_factors(4, 6, 0.5, np.float32)
    double, single = np.ones((6, 3)), np.ones((6, 3), np.float32)
    subtract_product(double, u, v, 1 / 3)
    subtract_product(single, u.astype(np.float64), v.toarray(), 1 / 3)
    np.testing.assert_allclose(single, double, rtol=1e-5)
    # The scale has not been rounded to the type of the factors.
    exact = 1 - (v.toarray().T.astype(float) @ u.astype(float)) / 3
    np.testing.assert_allclose(double, exact, rtol=1e-14)


def test_only_used_rows_are_touched():
    u, v = make_factors(3, 50, 0.05)
    matrix = np.full((50, 3), np.nan)
    columns = used_columns(v)
    matrix[columns] = 0
    subtract_product(matrix, u, v, 1.0)
    untouched = np.setdiff1d(np.arange(50), columns)
    assert np.isnan(matrix[untouched]).all() and np.isfinite(matrix[columns]).all()


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", ["dense", "csr_array"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_product_square(case, kind, dtype):
    u, v = make_factors(*case, dtype)
    given = v.toarray() if kind == "dense" else v
    expected = np.sum((v.toarray().T.astype(float) @ u.astype(float)) ** 2)
    rtol = 1e-12 if dtype == np.float64 else 1e-5
    assert product_square(u, given) == pytest.approx(expected, rtol, 1e-12)
