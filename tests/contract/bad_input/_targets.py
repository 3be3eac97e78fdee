"""Labels and targets that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd

from bad_input._cases import Call, Case, refused, trained, y_with
from bad_input._world import (
    CLASSIFIERS,
    LAZY,
    MEMORY,
    NETWORKS,
    REGRESSORS,
    ROWS,
    SUPERVISED,
    Box,
    N,
    good_rows,
)

# A frame has types of its own for what an array holds as objects.
ARRAYS = ("numpy", "csr", "array")
_MISSING = refused(
    memory="Input y contains NaN: a label is missing in row 15",
    lazy="Input y contains NaN: a label is missing in block 2, row 3 of the block",
)
_NAN = refused(
    memory="Input y contains NaN",
    lazy="Input y contains NaN in block 2, row 15 of the whole input",
)
_INFINITE = refused(
    memory="Input y contains infinity",
    lazy="Input y contains infinity in block 2, row 15 of the whole input",
)
_ONE_CLASS = "number of classes has to be greater than one; got 1 class: "
_LENGTHS = r"inconsistent numbers of samples: \[24, "


def words(y: np.ndarray) -> np.ndarray:
    """Labels as words."""
    return np.where(y == 1, "yes", "no").astype(object)


def with_label(value: Any, row: int = 15) -> Callable[[np.ndarray], np.ndarray]:
    """Words, with another label in one row."""

    def change(y: np.ndarray) -> np.ndarray:
        y = words(y)
        y[row] = value
        return y

    return change


def with_number(value: float, row: int = 15) -> Callable[[np.ndarray], np.ndarray]:
    """A float y with another value in one row."""
    return lambda y: np.where(np.arange(N) == row, value, y)


def as_series(make: Callable[[np.ndarray], pd.Series]) -> Callable[[Box], Call]:
    """Y as a Series, lazy beside lazy rows."""

    def call(box: Box) -> Call:
        y = make(box.good_y)
        return Call(y=dd.from_pandas(y, npartitions=4) if box.is_lazy else y)

    return call


def words_as(dtype: Any, value: Any) -> Callable[[Box], Call]:
    """Words in a Series of a type, one of them missing."""

    def make(y: np.ndarray) -> pd.Series:
        series = pd.Series(words(y)).astype(dtype)
        series.iloc[15] = value
        return series

    return as_series(make)


def numbers_as(dtype: str) -> Callable[[Box], Call]:
    """Numbers in a nullable Series, one of them missing."""
    return as_series(lambda y: pd.Series(y).astype(dtype).mask(np.arange(N) == 15))


def two_columns(box: Box, y: np.ndarray | None = None) -> Call:
    """Two values per row."""
    y = np.stack([box.good_y if y is None else y] * 2, axis=1)
    return Call(y=da.from_array(y, chunks=(ROWS, 2)) if box.is_lazy else y)


LABELS = [
    Case("one class", y_with(lambda y: 0 * y), refused(_ONE_CLASS + "0$")),
    Case(
        "one class of words",
        y_with(lambda y: np.array(["yes"] * N)),
        refused(_ONE_CLASS + "'yes'$"),
    ),
    Case(
        "continuous",
        y_with(lambda y: y + 0.5 * good_rows()[:, 0]),
        refused("Unknown label type: continuous.*expects discrete classes"),
    ),
    Case("NaN", y_with(with_number(np.nan)), _NAN),
    Case("infinite", y_with(with_number(np.inf)), _INFINITE),
    Case("None", y_with(with_label(None)), _MISSING, containers=ARRAYS),
    Case("NaN among words", y_with(with_label(np.nan)), _MISSING, containers=ARRAYS),
    Case("pd.NA", y_with(with_label(pd.NA)), _MISSING, containers=ARRAYS),
    Case("NaT", y_with(with_label(pd.NaT)), _MISSING, containers=ARRAYS),
    Case(
        "None in a list",
        lambda box: Call(y=with_label(None)(box.good_y).tolist()),
        _MISSING,
        containers=MEMORY,
    ),
    Case(
        "NaN in a list of words",
        lambda box: Call(y=with_label(np.nan)(box.good_y).tolist()),
        _MISSING,
        containers=MEMORY,
    ),
    Case("strings with NA", words_as("string", pd.NA), _MISSING),
    Case("str with NaN", words_as("str", np.nan), _MISSING),
    Case("Arrow strings with NA", words_as("string[pyarrow]", pd.NA), _MISSING),
    Case("categories with NaN", words_as("category", np.nan), _MISSING),
    Case("objects with None", words_as(object, None), _MISSING),
    Case("nullable integers with NA", numbers_as("Int64"), _NAN),
    Case(
        "nullable bool with NA",
        numbers_as("boolean"),
        refused("Input y contains NaN.*row 15"),
    ),
    Case(
        "mixed types",
        y_with(with_label(3)),
        refused(
            memory="y mixes labels of several types: int, str; give all",
            lazy="y mixes labels of several types in block 2: int, str; give all",
        ),
        containers=ARRAYS,
    ),
    Case(
        "words in some blocks only",
        y_with(lambda y: np.where(np.arange(N) < 12, y.astype(object), words(y))),
        refused(
            memory="y mixes labels of several types: int, str",
            lazy="y in block 0 holds objects of type int; convert y",
        ),
        containers=ARRAYS,
    ),
    Case(
        "integers as objects",
        y_with(lambda y: y.astype(object)),
        refused(
            memory="Unknown label type.*y holds objects of type int; convert y",
            lazy="Unknown label type.*y in block 0 holds objects of type int; convert",
        ),
        containers=ARRAYS,
    ),
    Case(
        "tuples",
        lambda box: Call(y=[(0, int(code)) for code in box.good_y]),
        refused(
            r"y should be a 1d array, got an array of shape \(24, 2\)",
            MPCAClassifier=r"y should be a 1d array, got tuples such as \(0, .*pass",
        ),
    ),
    Case(
        "complex",
        y_with(lambda y: y + 1j),
        refused("Complex data not supported: y has dtype complex128, expected real"),
    ),
    Case(
        "times",
        y_with(lambda y: y.astype("M8[s]")),
        refused(r"y has dtype datetime64\[s\] \(times\), expected real numbers"),
    ),
    Case(
        "bytes",
        y_with(lambda y: words(y).astype("S")),
        refused("Support for labels represented as bytes is not supported"),
        containers=MEMORY,
    ),
]
LABELS = [
    Case(f"labels: {c.name}", c.make, c.expect, CLASSIFIERS, c.containers)
    for c in LABELS
]

ANY_Y = [
    Case(
        "y: two columns",
        two_columns,
        refused(r"y should be a 1d array, got an array of shape \(24, 2\)"),
        tuple(set(SUPERVISED) - set(NETWORKS)),
        ARRAYS,
    ),
    Case(
        "y: two columns of a network",
        two_columns,
        trained(lambda box: Call(y=[[value] * 2 for value in box.good_y.tolist()])),
        NETWORKS,
        ARRAYS,
    ),
    Case(
        "y: two columns of several classes",
        lambda box: two_columns(box, np.arange(N) % 3),
        refused(r"Unknown label type: y has several columns, .* one of block 0 holds"),
        ("MPCAClassifier",),
        ARRAYS,
    ),
    Case(
        "y: three dimensions",
        lambda box: Call(y=np.zeros((N, 2, 2))),
        refused("y should be a 1d array, got|dim 3|3 dim"),
        SUPERVISED,
    ),
    Case(
        "y: a scalar",
        lambda box: Call(y=1),
        refused(r"y should be a 1d array, got an array of shape \(\)"),
        SUPERVISED,
    ),
    Case(
        "y: None",
        lambda box: Call(y=None),
        refused("requires y to be passed, but the target y is None"),
        SUPERVISED,
    ),
    Case(
        "y: too few",
        lambda box: Call(y=box.good_y[:-1]),
        refused(_LENGTHS + r"23\]", lazy=_LENGTHS + r"23\]\. X has 24 rows and y has"),
        SUPERVISED,
    ),
    Case(
        "y: too many",
        lambda box: Call(y=np.append(box.good_y, box.good_y[:1])),
        refused(_LENGTHS + r"25\]", lazy=_LENGTHS + r"25\]\. X has 24 rows and y has"),
        SUPERVISED,
    ),
    Case(
        "y: a Delayed",
        lambda box: Call(y=dask.delayed(box.good_y)),
        refused(r"y is a Delayed, expected data or a dask.array.*pass y.compute\(\)"),
        SUPERVISED,
    ),
    Case(
        "y: masked",
        lambda box: Call(y=np.ma.masked_array(box.good_y, np.arange(N) == 15)),
        refused("y is a masked array, expected plain numbers; fill it"),
        SUPERVISED,
    ),
    Case(
        "y: in other blocks",
        lambda box: Call(y=box.column(box.good_y, 8)),
        trained(),
        SUPERVISED,
        ("array",),
    ),
    Case(
        "y: in other partitions",
        lambda box: Call(y=box.column(box.good_y, 8)),
        trained(),
        SUPERVISED,
        ("frame",),
    ),
    Case(
        "y: in memory beside lazy rows",
        lambda box: Call(y=box.good_y),
        trained(),
        SUPERVISED,
        LAZY,
    ),
    Case(
        "y: lazy beside rows in memory",
        lambda box: Call(y=da.from_array(box.good_y, chunks=ROWS)),
        trained(),
        SUPERVISED,
        MEMORY,
    ),
    Case(
        "y: a column vector in a list",
        lambda box: Call(y=box.good_y.tolist()),
        trained(),
        SUPERVISED,
    ),
]

TARGETS = [
    Case("NaN", y_with(with_number(np.nan)), _NAN),
    Case("infinite", y_with(with_number(-np.inf)), _INFINITE),
    Case(
        "words",
        y_with(lambda y: np.array(["a", "b"] * 12)),
        refused("y must hold numbers, but that of block 0 has dtype"),
    ),
    Case(
        "None",
        y_with(lambda y: np.where(np.arange(N) == 15, None, y)),
        refused(
            memory="Input y contains NaN in block 0, row 15",
            lazy="y of block 2 contains NaN or infinity, first in its row 3",
        ),
        containers=ARRAYS,
    ),
    Case(
        "numbers as objects",
        y_with(lambda y: y.astype(object)),
        trained(),
        containers=ARRAYS,
    ),
    Case("missing in a nullable Series", numbers_as("Float64"), _NAN),
    Case(
        "complex",
        y_with(lambda y: y + 1j),
        refused("Complex data not supported: y has dtype complex128, expected real"),
    ),
    Case(
        "times",
        y_with(lambda y: y.astype("M8[s]")),
        refused(r"y has dtype datetime64\[s\] \(times\), expected real numbers"),
    ),
    Case(
        "time spans",
        y_with(lambda y: y.astype("m8[s]")),
        refused(r"y has dtype timedelta64\[s\] \(time spans\), expected real numbers"),
    ),
    Case(
        "huge",
        y_with(lambda y: y * 1e200),
        refused(r"Input y holds values up to 4\.\d+e\+200 in block 0.*scale y"),
    ),
]
TARGETS = [
    Case(f"targets: {c.name}", c.make, c.expect, REGRESSORS, c.containers)
    for c in TARGETS
]

CASES = [*LABELS, *ANY_Y, *TARGETS]
