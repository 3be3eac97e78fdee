"""What a checkpoint knows of a user's program."""

import functools
import threading
from decimal import Decimal

import numpy as np
import pytest
from scipy import sparse

from dask_ma.engine import describe_program
from dask_ma.engine.recovery._described import IndescribableError, describe_value


class Holder:
    def __init__(self, *values):
        self.values = values


class Slots:
    __slots__ = ("one", "two")

    def __init__(self, one, two):
        self.one, self.two = one, two


class Numbers(list):
    """A list with a name of its own."""


def cycle(value):
    holder = Holder(value)
    holder.again = [holder]
    return holder


def closure(value):
    return lambda x: (x, value)


def generator(seed):
    rng = np.random.default_rng(seed)
    rng.random()
    return rng


def objects(value):
    array = np.empty(1, dtype=object)
    array[0] = Holder(value)
    return array


MAKE = {
    "list": lambda v: [v],
    "tuple": lambda v: (v,),
    "dict": lambda v: {"a": v},
    "key": lambda v: {v: "a"},
    "set": lambda v: {v, "x"},
    "frozenset": lambda v: frozenset({v, 17}),
    "bytes": lambda v: bytes([v]),
    "complex": lambda v: complex(v, 1),
    "array": lambda v: np.arange(20_000) == v,
    "array of objects": objects,
    "masked array": lambda v: np.ma.array([1, 2, 3], mask=[v == 1, v == 2, False]),
    "sparse": lambda v: sparse.csr_matrix([[0, v]]),
    "object": Holder,
    "nested": lambda v: Holder({"a": [Holder(v)]}),
    "slots": lambda v: Slots(1, v),
    "subclass": lambda v: Numbers([v]),
    "cycle": cycle,
    "closure": closure,
    "closure over an object": lambda v: closure(Holder(v)),
    "method": lambda v: Holder(v).__init__,
    "partial": lambda v: functools.partial(max, v),
    "generator": generator,
    "random state": np.random.RandomState,
    "decimal": Decimal,
    "range": range,
}


@pytest.mark.parametrize("kind", MAKE)
def test_equal_values_have_equal_texts_and_others_not(kind):
    make = MAKE[kind]
    one, same, other = (describe_program(Holder(make(v))) for v in (1, 1, 2))
    assert one == same
    assert one != other
    assert " at 0x" not in str(one)


def test_types_count():
    values = [1, 1.0, True, "1", [1], (1,), Numbers([1]), {1}, frozenset({1}), b"1"]
    assert len({describe_value(value) for value in values}) == len(values)


def test_long_texts_are_shortened():
    one, other = (describe_value([*range(10_000), last]) for last in (1, 2))
    assert one != other
    assert len(one) < 200


def test_what_cannot_be_described():
    deep = []
    for _ in range(100):
        deep = [deep]
    for value, words in (
        ([threading.Lock()], "an object of _thread.lock in it cannot be pickled"),
        (deep, "more than 50 levels"),
    ):
        with pytest.raises(IndescribableError, match=words):
            describe_value(value)
