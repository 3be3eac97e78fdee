"""Which tests a mutant is tried with."""

import math
from types import SimpleNamespace

import pytest

from mutation.selection import Chosen, a_few, quickest

DURATIONS = {"a::1": 1.0, "a::2": 2.0, "a::3": 3.0, "b::1": 4.0, "c::1": 0.5}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (math.inf, ["c::1", "a::1", "b::1", "a::2", "a::3"]),
        (10.5, ["c::1", "a::1", "b::1", "a::2", "a::3"]),
        (10.0, ["c::1", "a::1", "b::1", "a::2"]),
        # What does not fit makes room for what does.
        (5.0, ["c::1", "a::1", "a::2"]),
        (0.1, ["c::1"]),
    ],
)
def test_the_quickest_of_each_file_come_first(seconds, expected):
    tests = set(DURATIONS)
    assert quickest(tests, DURATIONS, seconds) == expected


def test_no_function_goes_without_a_test():
    assert quickest(["b::1"], DURATIONS, 1.0) == ["b::1"]
    assert quickest([], DURATIONS, 1.0) == []


@pytest.mark.parametrize(
    ("n_cases", "most", "expected"),
    [
        (0, 3, []),
        (3, 3, [0, 1, 2]),
        (4, 3, [0, 1, 3]),
        (9, 3, [0, 4, 8]),
        (9, 2, [0, 8]),
    ],
)
def test_a_few_are_spread_over_all(n_cases, most, expected):
    assert a_few(range(n_cases), most) == expected


def test_chosen_tests_run_in_their_order():
    items = [SimpleNamespace(nodeid=name) for name in ("a::1[x::y]", "a::2", "b::1")]
    Chosen(["b::1", "a::1[x::y]", "of no file"]).pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == ["b::1", "a::1[x::y]"]
