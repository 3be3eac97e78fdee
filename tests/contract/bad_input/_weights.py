"""Weights of rows and of classes that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np

from bad_input._cases import Call, Case, refused, trained
from bad_input._world import CLASSIFIERS, LAZY, MEMORY, ROWS, SUPERVISED, Box, N

_LENGTHS = (
    r"inconsistent numbers of samples: \[24, {}\].*one sample_weight value per row"
)
_PLACE = {
    "memory": " in block 0, row 15 of the whole input",
    "lazy": " in block 2, row 15 of the whole input",
}


def given(make: Callable[[np.ndarray], Any]) -> Callable[[Box], Call]:
    """Weights as they are, from a vector of ones."""
    return lambda box: Call(arguments={"sample_weight": make(np.ones(N))})


def boxed(make: Callable[[np.ndarray, Any], Any]) -> Callable[[Box], Call]:
    """Weights in the container of the rows, from a vector of ones and y."""

    def call(box: Box) -> Call:
        weights = make(np.ones(N), box.good_y)
        return Call(arguments={"sample_weight": box.column(weights)})

    return call


def with_weight(value: float) -> Callable[[Box], Call]:
    """Another weight of one row."""
    return boxed(lambda weights, y: np.where(np.arange(N) == 15, value, weights))


def at_row(words: str) -> Callable[[Box], Any]:
    """An error that names the row."""
    return refused(**{key: words + place for key, place in _PLACE.items()})


ones = given(lambda weights: weights)

OF_ROWS = [
    Case("negative", with_weight(-1.0), at_row("Negative values in sample_weight,")),
    Case("NaN", with_weight(np.nan), at_row("Input sample_weight contains NaN")),
    Case("infinite", with_weight(np.inf), at_row("sample_weight contains infinity")),
    Case(
        "words",
        given(lambda weights: np.array(["a"] * N)),
        refused("sample_weight must hold real numbers, one per row: could not convert"),
    ),
    Case(
        "lazy words",
        boxed(lambda weights, y: np.array(["a"] * N)),
        refused("sample_weight has dtype .*, expected real numbers; convert it"),
        containers=LAZY,
    ),
    Case(
        "complex",
        given(lambda weights: weights + 1j),
        refused("Complex data not supported: sample_weight has dtype complex128"),
    ),
    Case(
        "times",
        given(lambda weights: weights.astype("M8[s]")),
        refused(r"sample_weight has dtype datetime64\[s\] \(times\), expected real"),
    ),
    Case(
        "masked",
        given(lambda weights: np.ma.masked_array(weights, np.arange(N) == 15)),
        refused("sample_weight is a masked array, expected plain numbers; fill it"),
    ),
    Case("too few", given(lambda weights: weights[1:]), refused(_LENGTHS.format(23))),
    Case(
        "too many",
        given(lambda weights: np.ones(N + 1)),
        refused(_LENGTHS.format(25)),
    ),
    Case(
        "two columns",
        given(lambda weights: np.ones((N, 2))),
        refused(r"sample_weight has shape \(24, 2\), expected one weight per row"),
    ),
    Case(
        "column vector",
        given(lambda weights: np.ones((N, 1))),
        refused(r"sample_weight has shape \(24, 1\), expected one weight per row"),
    ),
    Case("a number", given(lambda weights: 2.0), trained(ones)),
    Case("a number of NumPy", given(lambda weights: np.float32(0.5)), trained(ones)),
    Case("True", given(lambda weights: True), trained(ones)),
    Case(
        "a negative number",
        given(lambda weights: -2.0),
        refused("sample_weight is -2.0 for all rows, expected a finite number above 0"),
    ),
    Case(
        "NaN as a number",
        given(lambda weights: np.nan),
        refused("sample_weight is nan for all rows, expected a finite number above 0"),
    ),
    Case(
        "zero as a number",
        given(lambda weights: 0),
        refused("sample_weight is 0 for all rows, expected a finite number above 0"),
    ),
    Case(
        "a word",
        given(lambda weights: "balanced"),
        refused("sample_weight is the text 'balanced', expected a number"),
    ),
    Case(
        "all zero",
        boxed(lambda weights, y: 0 * weights),
        refused("no row to train on: .* sample_weight has the weight zero for all"),
    ),
    Case("a list", given(lambda weights: weights.tolist()), trained(ones)),
    Case("integers", given(lambda weights: weights.astype(int)), trained(ones)),
    Case(
        "a Delayed",
        lambda box: Call(arguments={"sample_weight": dask.delayed(np.ones(N))}),
        refused(
            r"sample_weight is a Delayed, expected data.*sample_weight.compute\(\)"
        ),
    ),
    Case(
        "huge",
        given(lambda weights: weights * 1e308),
        refused("the sum of sample_weight over all rows is beyond the range"),
    ),
    Case(
        "lazy beside rows in memory",
        lambda box: Call(arguments={"sample_weight": da.ones(N, chunks=ROWS)}),
        refused("sample_weight is a Dask object while X is in memory; pass"),
        containers=MEMORY,
    ),
]
OF_ROWS = [
    Case(f"weights: {c.name}", c.make, c.expect, SUPERVISED, c.containers)
    for c in OF_ROWS
]


def class_weight(value: Any) -> Callable[[Box], Call]:
    """Weights of the classes."""
    return lambda box: Call(params={"class_weight": value})


_NOT_A_WEIGHT = "class_weight must not be negative, .* that of the label 0 is {}; use 0"
_WRONG = "'class_weight' parameter of .* must be a str among {'balanced'}, an instance"

OF_CLASSES = [
    Case(
        "unknown label",
        class_weight({"yes": 2.0}),
        refused(r"class_weight names the labels \['yes'\], which are not among .*\[0,"),
    ),
    Case("negative", class_weight({0: -1, 1: 1}), refused(_NOT_A_WEIGHT.format(-1))),
    Case("NaN", class_weight({0: np.nan}), refused(_NOT_A_WEIGHT.format("nan"))),
    Case("infinite", class_weight({0: np.inf}), refused(_NOT_A_WEIGHT.format("inf"))),
    Case("words", class_weight({0: "much"}), refused(_NOT_A_WEIGHT.format("'much'"))),
    Case("None", class_weight({0: None}), refused(_NOT_A_WEIGHT.format("None"))),
    Case("unknown word", class_weight("balance"), refused(_WRONG)),
    Case("a list", class_weight([1, 2]), refused(_WRONG)),
    Case(
        "zero for all",
        class_weight({0: 0, 1: 0}),
        refused("class_weight gives every row the weight 0; it must leave at least"),
    ),
]
OF_CLASSES = [
    Case(f"class_weight: {c.name}", c.make, c.expect, CLASSIFIERS, c.containers)
    for c in OF_CLASSES
]

CASES = [
    *OF_ROWS,
    *OF_CLASSES,
    Case(
        "weights: zero for a class",
        boxed(lambda weights, y: y.astype(float)),
        refused(r"got 1 class: 1, for \d+ rows have the weight 0 in sample_weight"),
        CLASSIFIERS,
    ),
]
