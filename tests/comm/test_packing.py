"""Several arrays in one vector per dtype, and messages between processes."""

import sys
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pytest
from scipy import sparse

from dask_ma.comm._exchange import pack, unpack
from dask_ma.comm._group import map_arrays
from dask_ma.comm._packing import Header, as_message, from_message

HEADER = Header("run", 1, 2, ("step", 3))
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


def test_short_messages_of_other_classes():
    """Those that are known to this process alone go by value, wherever they are."""

    class Point(NamedTuple):
        x: float
        of: np.ndarray

    point = Point(1.0, np.eye(2))
    for payload in (point, [point, 1], {"point": point}):
        _, found = from_message(as_message(HEADER, payload))
        assert repr(found) == repr(payload)
    _, found = from_message(as_message(HEADER, defaultdict(lambda: 7)))
    assert found["a"] == 7


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
    message = as_message(HEADER, payload)
    assert isinstance(message, bytes)
    header, found = from_message(message)
    assert header == HEADER
    assert repr(found) == repr(payload)
    arrays = []
    map_arrays(found, lambda array: arrays.append(array) or array)
    assert all(array.flags.aligned and array.flags.writeable for array in arrays)


@pytest.mark.parametrize(
    "payload",
    [
        np.zeros(80_000),
        [np.zeros(40_000), np.zeros(40_000)],
        {"text": "a" * 600_000},
        np.array([{}], dtype=object),
        sparse.csr_array(np.eye(3)),
    ],
    ids=lambda payload: type(payload).__name__,
)
def test_others_travel_as_dask_has_them(payload):
    """Long ones, and those whose length cannot be told without a copy."""
    isolated = []
    message = as_message(HEADER, payload, lambda array: isolated.append(array) or array)
    given = []
    map_arrays(payload, lambda array: given.append(array) or array)
    assert len(isolated) == len(given)
    assert all(a is b for a, b in zip(isolated, given, strict=True))
    sent = message["payload"].data
    assert type(sent) is type(payload)
    header, found = from_message(message["letter"], sent)
    assert header == HEADER._replace(is_awaited=True) and found is sent


def test_classes_of_a_script_travel_by_value(monkeypatch):
    """As Dask has it: no other process has them."""
    kind = type("Pair", (tuple,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Pair", kind, raising=False)
    letters = [as_message(HEADER, each) for each in (kind("ab"), [kind("c")])]
    monkeypatch.delattr(sys.modules["__main__"], "Pair")
    pair, [inner] = (from_message(letter)[1] for letter in letters)
    assert (*pair, *inner) == ("a", "b", "c")
