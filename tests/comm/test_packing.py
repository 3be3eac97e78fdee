"""Several arrays in one vector per dtype."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.comm._exchange import pack, unpack
from dask_ma.comm._group import map_arrays
from dask_ma.comm._packing import as_message, from_message

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


@pytest.mark.parametrize(
    "payload",
    [
        None,
        np.arange(5, dtype=np.float32),
        ((0, 3), np.eye(2)),
        {"step": [np.zeros(0), 1.5, "a", None], "more": (True, b"x", np.int8(3))},
    ],
    ids=lambda payload: type(payload).__name__,
)
def test_short_messages_are_one_string(payload):
    message = as_message(payload)
    assert message["payload"] is None and isinstance(message["pickled"], bytes)
    found = from_message(**message)
    assert repr(found) == repr(payload)
    arrays = []
    map_arrays(found, lambda array: arrays.append(array) or array)
    assert all(array.flags.aligned and array.flags.writeable for array in arrays)


@pytest.mark.parametrize(
    "payload",
    [
        np.zeros(4_000),
        [np.zeros(1_500), np.zeros(1_500)],
        {"text": "a" * 20_000},
        np.array([{}], dtype=object),
        sparse.csr_array(np.eye(3)),
    ],
    ids=lambda payload: type(payload).__name__,
)
def test_others_travel_as_dask_has_them(payload):
    """Long ones, and those whose length cannot be told without a copy."""
    message = as_message(payload)
    assert message["payload"].data is payload
    assert from_message(payload, message.get("pickled")) is payload
