"""What a message is, for counting and for copying."""

import numpy as np
import pytest

from dask_ma.comm import Counters
from dask_ma.comm._group import map_arrays, payload_nbytes

ARRAY = np.zeros(5)


@pytest.mark.parametrize(
    ("payload", "nbytes"),
    [
        (ARRAY, 40),
        ([ARRAY, ARRAY], 80),
        ((ARRAY, 1, "text"), 40),
        ({"a": ARRAY, "b": [ARRAY, {"c": np.zeros(2, np.float32)}]}, 88),
        (np.array(1.0), 8),
        (np.empty((0, 3)), 0),
        ("text", 0),
        (None, 0),
    ],
)
def test_bytes_of_a_message(payload, nbytes):
    assert payload_nbytes(payload) == nbytes


def test_mapping_rebuilds_what_holds_the_arrays():
    payload = {"a": [ARRAY, 1], "b": (ARRAY, "text"), 3: None}
    result = map_arrays(payload, lambda array: array.size)
    assert result == {"a": [5, 1], "b": (5, "text"), 3: None}
    assert payload["a"][0] is ARRAY


def test_counters_as_a_dictionary():
    counters = Counters(messages_sent=2, bytes_sent=80)
    assert counters.as_dict() == {
        "messages_sent": 2,
        "messages_received": 0,
        "bytes_sent": 80,
        "bytes_received": 0,
        "bytes_shared": 0,
        "seconds_waiting": 0.0,
    }
