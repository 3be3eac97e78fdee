"""Values that rows must not have, and types of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd

from bad_input._cases import Call, Case, put, refused, rows_with, trained
from bad_input._world import (
    ATOMS,
    NAMES,
    SUPERVISED,
    TOPICS,
    Box,
    N,
    good_rows,
)

_NAN = "Input X contains NaN"
_INFINITE = "Input X contains infinity"
_PLACE = " in block 2, row 15 of the whole input"
_NUMBERS = "expected real numbers; convert it with X.astype"
_HUGE = r"Input X holds values up to {} in block \d, .* {}; scale the features"
DENSE = ("numpy", "array", "frame")
ARRAYS = ("numpy", "array")


def not_numbers(memory: str, array: str | None = None) -> Callable[[Box], Any]:
    """An error for a type; an array and a frame have messages of their own."""
    return refused(
        numpy=memory,
        array=f"X is a dask.array of dtype {array}.*{_NUMBERS}",
        frame="X has columns that hold no numbers: 'a' .*Drop them, or make numbers",
    )


def masked(X: np.ndarray) -> np.ma.MaskedArray:
    """An array with a masked element."""
    mask = np.zeros(X.shape, dtype=bool)
    mask[15, 1] = True
    return np.ma.masked_array(X, mask)


def records(X: np.ndarray) -> np.ndarray:
    """One record per row."""
    return X.copy().view([(name, float) for name in NAMES])[:, 0]


def read_only(X: np.ndarray) -> np.ndarray:
    """An array that must not be written to."""
    X.setflags(write=False)
    return X


def frame(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Box], Call]:
    """A frame after a change, of pandas or of Dask."""

    def call(box: Box) -> Call:
        X = change(pd.DataFrame(good_rows(), columns=NAMES))
        return Call(X=dd.from_pandas(X, npartitions=4) if box.is_lazy else X)

    return call


def missing(X: pd.DataFrame) -> pd.DataFrame:
    """A nullable frame with a value missing."""
    X = X.astype("Float64")
    X.iloc[15, 1] = pd.NA
    return X


def given(X: Any) -> Callable[[Box], Call]:
    """X as it is."""
    return lambda box: Call(X=X)


FRAMES = ("numpy", "frame")
_COLUMN = "X has columns that hold no numbers: 'b' \\({}.*Drop them"
_TEXT = "X holds text .*expected rows of numbers; count the words with .*vectorize_text"

NOT_FINITE = [
    Case("NaN", rows_with(put(np.nan)), refused(_NAN, lazy=_NAN + _PLACE)),
    Case(
        "infinity", rows_with(put(np.inf)), refused(_INFINITE, lazy=_INFINITE + _PLACE)
    ),
    Case(
        "minus infinity",
        rows_with(put(-np.inf)),
        refused(_INFINITE, lazy=_INFINITE + _PLACE),
    ),
    Case(
        "NaN in all rows",
        rows_with(lambda X: X * np.nan),
        refused(_NAN, lazy=f"{_NAN} in block 0, rows 0, 1, 2, 3, 4 and 1 more"),
    ),
    Case(
        "NaN in float32",
        rows_with(lambda X: put(np.nan)(X.astype(np.float32))),
        refused(_NAN, lazy=_NAN + _PLACE),
    ),
    Case(
        "None",
        rows_with(lambda X: put(None)(X.astype(object))),
        refused(_NAN, array="X is a dask.array of dtype object, expected real numbers"),
        containers=ARRAYS,
    ),
    Case(
        "missing value of a nullable frame",
        frame(missing),
        refused(_NAN, lazy=_NAN + _PLACE),
        containers=FRAMES,
    ),
]

HUGE = [
    Case(
        "huge",
        rows_with(lambda X: X * 1e200),
        refused(_HUGE.format(r"\de\+200", "float64")),
        (*SUPERVISED, *ATOMS),
    ),
    Case(
        "huge value",
        rows_with(put(-1e200)),
        refused(_HUGE.format(r"1e\+200", "float64")),
        (*SUPERVISED, *ATOMS),
    ),
    Case(
        "huge column",
        rows_with(lambda X: X * [1, 1e160, 1]),
        refused(_HUGE.format(r"\de\+160", "float64")),
        (*SUPERVISED, *ATOMS),
    ),
    Case(
        "huge float32",
        rows_with(lambda X: (X * 1e30).astype(np.float32)),
        refused(_HUGE.format(r"\de\+30", "float32")),
        (*SUPERVISED, *ATOMS),
    ),
]

TYPES = [
    Case(
        "numbers as objects",
        rows_with(lambda X: X.astype(object)),
        trained(),
        containers=("numpy",),
    ),
    Case(
        "numbers as text",
        rows_with(lambda X: X.astype(str)),
        trained(),
        containers=("numpy",),
    ),
    Case(
        "lazy objects",
        rows_with(lambda X: X.astype(object)),
        refused("X is a dask.array of dtype object, " + _NUMBERS),
        containers=("array",),
    ),
    Case(
        "lazy text",
        rows_with(lambda X: X.astype(str)),
        refused("X is a dask.array of dtype <U32, " + _NUMBERS),
        containers=("array",),
    ),
    Case(
        "words",
        rows_with(lambda X: put("many")(X.astype(object))),
        not_numbers(
            "X has dtype object and elements that are no numbers: .*'many'; encode",
            "object",
        ),
        containers=DENSE,
    ),
    Case(
        "complex",
        rows_with(lambda X: X + 1j),
        refused(
            "Complex data not supported: X has dtype complex128, expected real numbers",
            array="X is a dask.array of dtype complex128, " + _NUMBERS,
            frame=r"X has columns that hold no numbers: 'a' \(complex128\)",
        ),
    ),
    Case(
        "times",
        rows_with(lambda X: X.astype("M8[s]")),
        not_numbers(
            r"X has dtype datetime64\[s\] \(times\), expected real", r"datetime64\[s\]"
        ),
        containers=DENSE,
    ),
    Case(
        "time spans",
        rows_with(lambda X: X.astype("m8[s]")),
        not_numbers(
            r"X has dtype timedelta64\[s\] \(time spans\), expected real",
            r"timedelta64\[s\]",
        ),
        containers=DENSE,
    ),
    Case(
        "masked",
        rows_with(masked),
        refused(
            numpy="X is a masked array, expected plain numbers; fill it",
            array="Block 0 of X is a masked array, expected plain numbers; fill it",
        ),
        containers=ARRAYS,
    ),
    Case(
        "records",
        rows_with(records),
        refused(
            numpy=r"X has dtype .* \(records of several fields\), expected real",
            array="Expected 2D array, got 1D array instead: X must have the shape",
        ),
        containers=ARRAYS,
    ),
    Case("bool", rows_with(lambda X: X > 1), trained(rows_with(lambda X: X > 1.0))),
    Case("int8", rows_with(lambda X: X.astype(np.int8)), trained()),
    Case("uint64", rows_with(lambda X: X.astype(np.uint64)), trained()),
    Case(
        "float16",
        rows_with(lambda X: X.astype(np.float16)),
        trained(),
        containers=DENSE,
    ),
    Case(
        "long double",
        rows_with(lambda X: X.astype(np.longdouble)),
        trained(),
        containers=ARRAYS,
    ),
    Case("Fortran order", rows_with(np.asfortranarray), trained(), containers=DENSE),
    Case("read-only", rows_with(read_only), trained(), containers=ARRAYS),
    Case(
        "big-endian",
        rows_with(lambda X: X.astype(">f8")),
        trained(),
        containers=ARRAYS,
    ),
    Case(
        "list of lists",
        given(good_rows().tolist()),
        trained(),
        containers=("numpy",),
    ),
]

COLUMNS = [
    Case(
        "column of text",
        frame(lambda X: X.assign(b="word")),
        refused(_COLUMN.format("str")),
        containers=FRAMES,
    ),
    Case(
        "column of categories of text",
        frame(lambda X: X.assign(b=pd.Categorical(["x", "y"] * 12))),
        refused(_COLUMN.format("category")),
        containers=FRAMES,
    ),
    Case(
        "column of times",
        frame(lambda X: X.assign(b=pd.Timestamp("2020-01-01"))),
        refused(_COLUMN.format("datetime64")),
        containers=FRAMES,
    ),
    Case(
        "column of bool",
        frame(lambda X: X.assign(b=X["b"] > 1)),
        trained(frame(lambda X: X.assign(b=(X["b"] > 1).astype(float)))),
        containers=FRAMES,
    ),
    Case(
        "column of nullable bool",
        frame(lambda X: X.assign(b=(X["b"] > 1).astype("boolean"))),
        trained(frame(lambda X: X.assign(b=(X["b"] > 1).astype(float)))),
        containers=FRAMES,
    ),
    Case(
        "column of categories of numbers",
        frame(lambda X: X.assign(b=X["b"].round().astype(int).astype("category"))),
        trained(frame(lambda X: X.assign(b=X["b"].round()))),
        containers=FRAMES,
    ),
    Case(
        "column of Arrow",
        frame(lambda X: X.assign(b=X["b"].astype("double[pyarrow]"))),
        trained(),
        containers=FRAMES,
    ),
    Case(
        "missing nullable integer",
        frame(
            lambda X: X.assign(b=[pd.NA, *X["b"].round().astype(int)[1:]]).astype(
                {"b": "Int64"}
            )
        ),
        refused(_NAN, lazy=_NAN + " in block 0, row 0 of the whole input"),
        containers=FRAMES,
    ),
    Case(
        "column of nullable integers",
        frame(lambda X: X.assign(b=X["b"].astype("Int64"))),
        trained(),
        containers=FRAMES,
    ),
    Case(
        "column names of several types",
        frame(lambda X: X.rename(columns={"b": 1})),
        refused("string names|column names of several types; .*Rename them"),
        containers=FRAMES,
    ),
]

COUNTS = [
    Case(
        "negative counts",
        rows_with(put(-2.0)),
        refused(
            memory="Negative values in data passed to X in (MALDA|SchMPLDA)",
            lazy="counts must be 0 or more, but row 3 of block 2 has -2 in column 1",
        ),
        TOPICS,
    ),
    Case(
        "no counts",
        rows_with(lambda X: 0 * X),
        refused("X has no words: all counts are 0; one document needs a word"),
        TOPICS,
    ),
]

NO_ROWS = [
    Case("X: a list of texts", given(["a red rose", "sky"] * 12), refused(_TEXT)),
    Case("X: a text", given("a red rose"), refused(_TEXT)),
    Case(
        "X: an array of texts",
        given(np.array(["a rose", "sky"] * 12, dtype=object)),
        refused(_TEXT),
    ),
    Case(
        "X: a Series of texts", given(pd.Series(["a rose", "sky"] * 12)), refused(_TEXT)
    ),
    Case(
        "X: a list of Series",
        given([row for _, row in pd.DataFrame(good_rows(), columns=NAMES).iterrows()]),
        trained(),
    ),
    Case("X: lists of words", given([["a", "rose"], ["sky"]] * 12), refused(_TEXT)),
    Case(
        "X: rows of several lengths",
        given([[1.0, 2.0], [3.0]] * 12),
        refused(r"X cannot be made an array of shape \(n_samples, n_features\)"),
    ),
    Case("X: None", given(None), refused("Expected 2D array, got scalar array")),
    Case("X: a number", given(3.0), refused("Expected 2D array, got scalar array")),
    Case(
        "X: a dict",
        given({"a": [1.0] * N}),
        refused("X is a dict, expected rows of numbers; make a pandas.DataFrame of it"),
    ),
    Case(
        "X: a pandas Series",
        given(pd.Series(good_rows()[:, 0])),
        refused("Expected a 2-dimensional container but got .*Series"),
    ),
]
NO_ROWS = [Case(c.name, c.make, c.expect, c.estimators, ("numpy",)) for c in NO_ROWS]

CASES = [*NOT_FINITE, *HUGE, *TYPES, *COLUMNS, *COUNTS, *NO_ROWS]
