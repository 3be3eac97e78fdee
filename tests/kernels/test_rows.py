"""Row slices share memory and equal ordinary slices."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.kernels import row_slice, transposed_copy
from dask_ma.kernels._rows import transposed

DENSE = np.arange(60, dtype=np.float32).reshape(12, 5) % 7
RANGES = [(0, 12), (0, 1), (3, 7), (11, 12), (5, 5), (12, 12)]


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csr_array])
@pytest.mark.parametrize("start, stop", RANGES)
def test_csr(make, start, stop):
    X = make(DENSE)
    rows = row_slice(X, start, stop)
    assert type(rows) is type(X)
    assert rows.shape == (stop - start, 5)
    assert rows.dtype == X.dtype
    assert rows.indptr.dtype == X.indptr.dtype
    np.testing.assert_array_equal(rows.toarray(), DENSE[start:stop])
    rows.check_format(full_check=True)


@pytest.mark.parametrize("start, stop", [(0, 1), (3, 7), (0, 12)])
def test_csr_shares_memory(start, stop):
    X = sparse.csr_matrix(DENSE)
    rows = row_slice(X, start, stop)
    assert np.shares_memory(rows.data, X.data)
    assert np.shares_memory(rows.indices, X.indices)


@pytest.mark.each(2)
@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csr_array, np.asarray])
@pytest.mark.parametrize("start, stop", RANGES)
def test_transposes(make, start, stop):
    rows = row_slice(make(DENSE), start, stop)
    columns = transposed(rows)
    assert type(columns) is type(rows.T)
    assert columns.shape == (5, stop - start)
    assert columns.dtype == DENSE.dtype
    for values in (np.ones(stop - start), np.ones((stop - start, 2))):
        np.testing.assert_array_equal(columns @ values, rows.T @ values)


def test_transposes_of_few_rows_share_memory():
    X = sparse.csr_matrix(np.ones((1000, 3)))
    rows = row_slice(X, 10, 20)
    assert not np.shares_memory(rows.T.data, X.data)  # SciPy's
    columns = transposed(rows)
    for name in ("data", "indices", "indptr"):
        assert np.shares_memory(getattr(columns, name), getattr(rows, name))


def test_slice_of_slice():
    X = sparse.csr_matrix(DENSE)
    rows = row_slice(row_slice(X, 2, 10), 1, 4)
    np.testing.assert_array_equal(rows.toarray(), DENSE[3:6])


def test_dense_shares_memory():
    rows = row_slice(DENSE, 3, 7)
    assert np.shares_memory(rows, DENSE)
    np.testing.assert_array_equal(rows, DENSE[3:7])


@pytest.mark.parametrize("start, stop", [(-1, 3), (4, 3), (0, 13)])
def test_range_out_of_bounds(start, stop):
    with pytest.raises(ValueError, match="start and stop .* 12 rows"):
        row_slice(DENSE, start, stop)


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (128, 2), (300, 7), (5, 400)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_copies_of_transposes(shape, order):
    array = np.asarray(np.random.default_rng(0).normal(size=shape), order=order)
    found = transposed_copy(array)
    assert found.flags.c_contiguous and not np.shares_memory(found, array)
    np.testing.assert_array_equal(found, array.T)
    place = np.zeros((shape[1] + 2, shape[0]))
    transposed_copy(array, out=place[1:-1])
    np.testing.assert_array_equal(place[1:-1], array.T)
    assert not place[[0, -1]].any()
