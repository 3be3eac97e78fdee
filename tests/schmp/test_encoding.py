"""Blocks on their way: what is mostly zeros travels sparse, bit for bit."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.comm._group import payload_nbytes
from dask_ma.schmp.runtime._block_states import _copy_common
from dask_ma.schmp.runtime._encoding import decode, encode


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8", "u2", "?"])
@pytest.mark.parametrize("filled", [0.0, 0.05, 0.9])
def test_the_same_bits_arrive(dtype, filled):
    rng = np.random.default_rng(0)
    array = (rng.integers(1, 100, (200, 30)) * (rng.random((200, 30)) < filled)).astype(
        dtype
    )
    if array.dtype.kind == "f":
        array[3, 4], array[5, 6], array[7, 8] = -0.0, np.nan, np.inf
    message = encode({"a": array, "b": array[:, :2].T})
    found = decode(message)
    for name, expected in (("a", array), ("b", array[:, :2].T)):
        assert found[name].dtype == expected.dtype
        assert found[name].shape == expected.shape
        assert found[name].tobytes() == np.ascontiguousarray(expected).tobytes()
        assert found[name].flags.writeable
        assert not np.shares_memory(found[name], array)


@pytest.mark.each
@pytest.mark.parametrize(
    ("dtype", "largest", "size"),
    [("i4", 7, 1), ("i8", 300, 2), ("i4", 70_000, 4), ("f4", 7, 4), ("i4", -7, 4)],
)
@pytest.mark.parametrize(("width", "gap"), [(100, 1), (300, 2), (70_000, 4)])
def test_few_elements_cost_few_bytes(dtype, largest, size, width, gap):
    counts = np.zeros((20, width), dtype=dtype)
    counts[:, 3] = largest
    message = encode({"counts": counts})
    assert payload_nbytes(message) == 20 * (size + gap)
    np.testing.assert_array_equal(decode(message)["counts"], counts, strict=True)
    dense = counts + 1
    message = encode({"counts": dense})
    assert payload_nbytes(message) == dense.size * size
    np.testing.assert_array_equal(decode(message)["counts"], dense, strict=True)


@pytest.mark.parametrize(("width", "size"), [(1, 1), (256, 1), (257, 2), (70_000, 4)])
@pytest.mark.parametrize(("largest", "bytes_of"), [(255, 1), (256, 2), (70_000, 4)])
def test_sparse_rows_arrive_as_such(width, size, largest, bytes_of):
    table = np.zeros((40, width), dtype=np.int32)
    table[7, -1], table[9, 0], table[9, width // 2], table[39, 0] = 3, largest, 1, 5
    rows = sparse.csr_array(table)
    message = encode({"counts": rows})
    assert payload_nbytes(message) <= rows.nnz * (bytes_of + size) + 41 * 4 + 8
    found = decode(message)["counts"]
    assert isinstance(found, sparse.csr_array)
    assert found.dtype == rows.dtype
    np.testing.assert_array_equal(found.toarray(), table)
    found.data[:] = 0
    np.testing.assert_array_equal(rows.toarray(), table)


def test_sparse_rows_stay_sparse_where_blocks_are_cut_anew():
    rng = np.random.default_rng(0)
    table = sparse.random_array((12, 5), density=0.3, rng=rng, format="csr")
    own, into, left = np.array([1, 4, 7, 9]), {}, np.ones(4, dtype=bool)
    for parameters in (np.array([0, 1, 7]), np.array([4, 8, 10, 11])):
        values = {"counts": table[parameters], "sums": table[parameters].toarray()}
        _copy_common(parameters, values, own, into, left)
    np.testing.assert_array_equal(left, [False, False, False, True])
    expected = table.toarray()[own] * ~left[:, np.newaxis]
    assert sparse.issparse(into["counts"]) and into["counts"].dtype == table.dtype
    np.testing.assert_array_equal(into["counts"].toarray(), expected)
    np.testing.assert_array_equal(into["sums"], expected)
