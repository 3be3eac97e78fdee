"""Columns of blocks against the same with dense arrays."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.kernels import (
    _columns,
    add_columns,
    column_entries,
    column_products,
    column_squares,
    column_store,
    column_sums,
    columns_dot,
    segment_sums,
    take_columns,
)

RNG = np.random.default_rng(0)
DENSE = np.round(RNG.normal(size=(30, 12)), 2) * (RNG.random((30, 12)) < 0.4)
DENSE[:, 3] = 0
DENSE[:, 5] = 1.5
INDICES = [np.array(i, dtype=int) for i in ([], [3], [0, 11, 3, 5], [7, 2], range(12))]
MAKE = {
    "dense": np.ascontiguousarray,
    "csr_matrix": sparse.csr_matrix,
    "csr_array": sparse.csr_array,
}


@pytest.fixture(params=MAKE)
def make(request):
    return MAKE[request.param]


@pytest.fixture(params=[np.float32, np.float64])
def X(make, request):
    return make(DENSE.astype(request.param))


def expected(X):
    return (X.toarray() if sparse.issparse(X) else X).astype(np.float64)


def test_store(X):
    store = column_store(X)
    assert store.dtype == X.dtype
    if sparse.issparse(X):
        assert store.format == "csc"
        assert store.indices.dtype == store.indptr.dtype == np.int32
    else:
        assert store.flags.f_contiguous
        assert column_store(store) is store
    np.testing.assert_array_equal(expected(store), expected(X))


@pytest.mark.each(2)
@pytest.mark.parametrize("index", INDICES, ids=len)
def test_take(X, index):
    taken = take_columns(column_store(X), index)
    assert taken.dtype == np.float64
    assert taken.shape == (30, len(index))
    np.testing.assert_array_equal(expected(taken), expected(X)[:, index])
    if sparse.issparse(X):
        assert taken.format == "csc"
        taken.check_format(full_check=True)


@pytest.mark.each
@pytest.mark.parametrize("tail", [(), (3,)], ids=["vector", "matrix"])
@pytest.mark.parametrize("index", INDICES, ids=len)
def test_products(X, index, tail):
    r = np.random.default_rng(1).normal(size=(30, *tail))
    products = column_products(column_store(X), index, r)
    assert products.dtype == np.float64
    np.testing.assert_allclose(products, expected(X)[:, index].T @ r, atol=1e-12)


@pytest.mark.each
@pytest.mark.parametrize("tail", [(), (3,)], ids=["vector", "matrix"])
@pytest.mark.parametrize("index", INDICES, ids=len)
def test_dot(X, index, tail):
    values = np.random.default_rng(1).normal(size=(len(index), *tail))
    products = columns_dot(column_store(X), index, values)
    assert products.dtype == np.float64
    np.testing.assert_allclose(products, expected(X)[:, index] @ values, atol=1e-12)


def test_add_with_weights_to_a_part(X):
    weight, values = np.arange(30.0), np.array([2.0, -1.0, 0.5])
    index = np.array([5, 0, 5])  # one of them twice
    out = np.ones(40)
    add_columns(out[10:], column_store(X), index, values, weight)
    np.testing.assert_array_equal(out[:10], 1)
    by_hand = weight * (expected(X)[:, index] @ values) + 1
    np.testing.assert_allclose(out[10:], by_hand, atol=1e-12)


def test_long_columns_are_gathered_in_another_way():
    dense = RNG.normal(size=(900, 4)) * (RNG.random((900, 4)) < 0.7)
    X = column_store(sparse.csr_array(dense))
    index = np.array([2, 0])
    values, rows, bounds = column_entries(X, index)
    assert bounds[-1] > 200 * len(index)
    for number, column in enumerate(index):
        part = slice(*bounds[number : number + 2])
        np.testing.assert_array_equal(rows[part], np.flatnonzero(dense[:, column]))
        np.testing.assert_array_equal(values[part], dense[rows[part], column])


def test_segment_sums():
    values = np.arange(12.0).reshape(6, 2)
    sums = segment_sums(values, np.array([0, 0, 2, 2, 5, 6, 6]))
    by_hand = [[0, 0], [2, 4], [0, 0], [18, 21], [10, 11], [0, 0]]
    np.testing.assert_array_equal(sums, by_hand)
    assert segment_sums(np.zeros(0), np.array([0, 0])).tolist() == [0]


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_and_squares(X, weighted):
    weight = np.linspace(0.5, 2, 30) if weighted else None
    w = np.ones(30) if weight is None else weight
    dense = expected(X)
    store = column_store(X)
    np.testing.assert_allclose(column_sums(store, weight), w @ dense, atol=1e-12)
    np.testing.assert_allclose(column_squares(store, weight), w @ dense**2, atol=1e-12)
    center = w @ dense / w.sum()
    squares = column_squares(store, weight, center)
    np.testing.assert_allclose(squares, w @ (dense - center) ** 2, atol=1e-12)
    assert (squares >= 0).all()
    assert squares[3] == 0
    assert squares[5] < 1e-12


@pytest.mark.parametrize("n_stored", [1, 7, 1000])
@pytest.mark.parametrize("form", ["csc", "csr"])
def test_squares_are_worked_out_some_at_a_time(monkeypatch, form, n_stored):
    monkeypatch.setattr(_columns, "_STORED", n_stored)
    X, weight = sparse.csr_matrix(DENSE).asformat(form), RNG.random(30)
    np.testing.assert_allclose(column_squares(X, weight), weight @ DENSE**2, atol=1e-12)
    np.testing.assert_allclose(column_squares(X), (DENSE**2).sum(axis=0), atol=1e-12)


def test_squares_far_from_zero_keep_their_digits():
    X = 1e6 + RNG.normal(size=(1000, 2))
    center = X.mean(axis=0)
    squares = column_squares(X, center=center)
    np.testing.assert_allclose(squares, ((X - center) ** 2).sum(axis=0), rtol=1e-12)


def test_no_rows(make):
    X = column_store(make(np.zeros((0, 3))))
    index = np.array([0, 2])
    assert column_products(X, index, np.zeros(0)).tolist() == [0, 0]
    assert columns_dot(X, index, np.ones(2)).shape == (0,)
    assert column_sums(X).tolist() == column_squares(X).tolist() == [0, 0, 0]
