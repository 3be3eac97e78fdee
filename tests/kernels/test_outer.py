"""Updates by products of factors against dense products."""

import numpy as np
import pytest
from scipy import sparse
from traced import traced

from dask_ma.kernels import (
    _outer,
    by_features,
    product_of,
    product_square,
    subtract_product,
    subtract_scaled,
    used_columns,
)


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
    by_columns = used_columns(v.tocsc())
    assert by_columns.dtype == np.int64
    np.testing.assert_array_equal(by_columns, columns)


def test_stored_zeros_and_repeated_columns_are_used():
    parts = [0.0, 1.0, 2.0], [6, 2, 2], [0, 1, 3]
    v = sparse.csr_array(parts, shape=(2, 8))
    assert used_columns(v).tolist() == [2, 6]
    assert used_columns(sparse.csr_array(parts, shape=(2, 900))).tolist() == [2, 6]
    u, matrix = np.array([[5.0], [7.0]]), np.zeros((8, 1))
    subtract_product(matrix, u, v, -1.0)
    assert matrix.ravel().tolist() == [0, 0, 21, 0, 0, 0, 0, 0]


@pytest.mark.each(2)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("is_dense", [True, False])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_products_are_what_is_subtracted_from_nothing(case, is_dense, n_outputs):
    u, v = make_factors(*case, n_outputs=n_outputs)
    given = v.toarray() if is_dense else v
    matrix = np.zeros((v.shape[1], n_outputs), dtype=np.float32)
    subtract_product(matrix, u, given, -1.0)
    found = product_of(u, given, np.float32)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found, matrix, rtol=1e-5, atol=1e-6)


def test_other_threads_go_on_during_a_dense_product(monkeypatch):
    # SciPy's routines keep them from running, NumPy's do not.
    monkeypatch.delattr(_outer, "blas")
    u, v = make_factors(5, 40, 0.3)
    expected = v.toarray().T @ u
    np.testing.assert_allclose(product_of(u, v.toarray(), np.float64), expected)


@pytest.mark.each(2)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", ["dense", "csr_array", "csr_matrix", "csc_array"])
@pytest.mark.parametrize("is_public", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_subtract_product(monkeypatch, case, kind, is_public, dtype):
    if is_public:  # where SciPy has hidden its routine elsewhere
        monkeypatch.setattr(_outer, "_add_sparse_product", None)
    u, v = make_factors(*case, dtype)
    before = np.random.default_rng(0).normal(size=(case[1], 3)).astype(dtype)
    matrix = before.copy()
    given = v.toarray() if kind == "dense" else getattr(sparse, kind)(v)
    subtract_product(matrix, u, given, 0.5)
    assert matrix.dtype == dtype
    rtol = 1e-12 if dtype == np.float64 else 1e-5
    expected = before - 0.5 * (v.toarray().T @ u)
    np.testing.assert_allclose(matrix, expected, rtol, rtol)


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_large_matrices_are_read_by_features(monkeypatch, kind, dtype):
    """Few elements are taken as they lie, many sorted, with the same bits."""
    u, v = make_factors(30, 40, 0.4, dtype)
    v, matrix = kind(v), np.random.default_rng(0).normal(size=(40, 3)).astype(dtype)
    plain, found, product = matrix.copy(), matrix.copy(), v @ matrix
    subtract_product(plain, u, v, 0.5)
    assert by_features(v, matrix) is v
    monkeypatch.setattr(_outer, "_MANY_PRODUCTS", 3 * v.nnz)
    assert by_features(v, matrix) is v
    monkeypatch.setattr(_outer, "_LARGE", matrix.nbytes)
    assert by_features(v, matrix) is v  # of few outputs
    monkeypatch.setattr(_outer, "_FEWEST_OUTPUTS", 3)
    assert by_features(v[:-9], matrix).format == "csr"
    assert by_features(v, matrix).format == "csc"
    dense = v.toarray()
    assert by_features(dense, matrix) is dense
    np.testing.assert_array_equal(by_features(v, matrix) @ matrix, product)
    subtract_product(found, u, v, 0.5)
    np.testing.assert_array_equal(found, plain)


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


@pytest.mark.each(2)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", ["dense", "csr_array"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_product_square(case, kind, dtype):
    u, v = make_factors(*case, dtype)
    given = v.toarray() if kind == "dense" else v
    expected = np.sum((v.toarray().T.astype(float) @ u.astype(float)) ** 2)
    rtol = 1e-12 if dtype == np.float64 else 1e-5
    assert product_square(u, given) == pytest.approx(expected, rtol, 1e-12)


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_factors_of_other_layouts(n_outputs):
    """Rows that are every other one, or lie the other way, and other types."""
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=(8, n_outputs)), rng.normal(size=(8, 5)).astype(np.float32)
    for left, right in ((u[::2], v[::2]), (np.asfortranarray(u), v.T.copy().T)):
        matrix = np.ones((5, n_outputs))
        subtract_product(matrix, left, right, 0.5)
        np.testing.assert_allclose(matrix, 1 - 0.5 * (right.T @ left), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_subtract_scaled(dtype):
    total = np.random.default_rng(0).normal(size=(70_000, 3)).astype(dtype)
    matrix = np.ones_like(total)
    subtract_scaled(matrix, total, 0.3)
    assert matrix.dtype == dtype
    np.testing.assert_allclose(matrix, 1 - total * dtype(0.3), 1e-6)


@pytest.mark.parametrize("kind", ["sparse", "dense", "scaled"])
def test_no_second_matrix(kind):
    rng = np.random.default_rng(0)
    matrix, u = np.zeros((20_000, 100), np.float32), np.ones((4, 100), np.float32)
    v = sparse.random_array((4, 20_000), density=0.5, format="csr", rng=0)
    v = v.astype(np.float32)
    v = v.toarray() if kind == "dense" else v
    total = rng.random(matrix.shape, dtype=np.float32)
    with traced() as memory:
        if kind == "scaled":
            subtract_scaled(matrix, total, 0.5)
        else:
            subtract_product(matrix, u, v, 0.5)
    assert memory.peak < 0.1 * matrix.nbytes


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_a_part_of_the_columns_of_a_matrix(kind):
    rng = np.random.default_rng(0)
    whole, u = rng.normal(size=(9, 6)), rng.normal(size=(4, 3))
    v = rng.normal(size=(4, 9))
    expected = whole.copy()
    expected[:, 1:4] -= 0.5 * v.T @ u
    subtract_product(whole[:, 1:4], u, kind(v), 0.5)
    np.testing.assert_allclose(whole, expected)
