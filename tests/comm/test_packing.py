"""Several arrays in one vector per dtype."""

import numpy as np
import pytest

from dask_ma.comm._packing import pack, unpack

ARRAYS = {
    "one": [np.arange(6.0).reshape(2, 3)],
    "0-d": [np.array(3.0), np.array(7, dtype=np.int64)],
    "empty": [np.empty((0, 4)), np.ones(3), np.empty(0)],
    "several dtypes": [
        np.arange(4, dtype=np.float32),
        np.arange(6.0).reshape(3, 2),
        np.arange(3),
        np.arange(8, dtype=np.float32).reshape(2, 2, 2),
        np.array(1.5),
        np.array([True, False]),
    ],
    "not contiguous": [np.arange(12.0).reshape(3, 4).T, np.arange(10.0)[::2]],
    "none": [],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_round_trip(name):
    arrays = ARRAYS[name]
    result = unpack(pack(arrays))
    assert len(result) == len(arrays)
    for got, expected in zip(result, arrays, strict=True):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        np.testing.assert_array_equal(got, expected)


def test_one_vector_per_dtype():
    flats = pack(ARRAYS["several dtypes"]).flats
    assert [flat.dtype.name for flat in flats] == [
        "float32",
        "float64",
        "int64",
        "bool",
    ]
    assert [flat.size for flat in flats] == [12, 7, 3, 2]
    assert all(flat.ndim == 1 for flat in flats)


def test_an_array_alone_in_its_dtype_is_not_copied():
    array = np.arange(6.0).reshape(2, 3)
    other = np.arange(3)
    for flat, given in zip(pack([array, other]).flats, [array, other], strict=True):
        assert np.shares_memory(flat, given)
