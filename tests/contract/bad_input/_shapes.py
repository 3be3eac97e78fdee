"""Rows of wrong shapes, chunks and metadata, and Dask objects of other kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
from scipy import sparse

from bad_input._cases import Call, Case, refused, rows_with, trained
from bad_input._world import LAZY, NAMES, ROWS, Box, N, P, good_rows

ARRAYS = ("numpy", "array")


def block(index: int) -> np.ndarray:
    """The good rows of a block."""
    return good_rows()[index * ROWS : (index + 1) * ROWS]


def from_blocks(change: Callable[[np.ndarray], Any]) -> Callable[[Box], Call]:
    """A dask.array whose third block is not what the metadata say."""

    def make(index: int) -> Any:
        return change(block(index)) if index == 2 else block(index)

    def call(box: Box) -> Call:
        like = np.empty((0, P))
        parts = [
            da.from_delayed(dask.delayed(make)(i), (ROWS, P), meta=like)
            for i in range(N // ROWS)
        ]
        return Call(X=da.concatenate(parts))

    return call


def from_partitions(change: Callable[[pd.DataFrame], Any]) -> Callable[[Box], Call]:
    """A dask.dataframe whose third partition is not what the metadata say."""

    def alter(part: pd.DataFrame, partition_info: Any = None) -> Any:
        is_third = partition_info is not None and partition_info["number"] == 2
        return change(part) if is_third else part

    def call(box: Box) -> Call:
        X = box.rows(good_rows())
        return Call(X=X.map_partitions(alter, meta=X._meta))

    return call


def fail(rows: Any) -> Any:
    """What a block does that cannot be computed."""
    raise OSError("the disk is full")


def unknown(X: np.ndarray) -> Any:
    """A dask.array that does not know its rows."""
    keys = da.from_array(X, chunks=(ROWS, P)).to_delayed().ravel()
    parts = [da.from_delayed(key, (np.nan, P), X.dtype) for key in keys]
    return da.concatenate(parts, allow_unknown_chunksizes=True)


def unknown_columns(box: Box) -> Call:
    """A dask.array that does not know its columns."""
    X = da.from_array(good_rows(), chunks=(ROWS, P))
    return Call(X=X.map_blocks(lambda b: b, chunks=((ROWS,) * 4, (np.nan,))))


def empty_chunk(box: Box) -> Call:
    """A dask.array with a chunk without rows among its chunks."""
    X = good_rows()
    parts = [X[:6], X[6:12], X[:0], X[12:18], X[18:]]
    X = da.concatenate([da.from_array(part, chunks=-1) for part in parts])
    return Call(X=X, y=box.good_y)


def empty_partition(box: Box) -> Any:
    """A dask.dataframe with a partition as pandas makes it of nothing."""
    parts = np.array_split(good_rows(), N // ROWS)
    meta = pd.DataFrame(good_rows()[:0], columns=NAMES)
    frames = [pd.DataFrame(part, columns=NAMES) for part in parts]
    frames.insert(2, pd.DataFrame(columns=NAMES))
    return dd.from_map(lambda number: frames[number], range(len(frames)), meta=meta)


def in_memory_y(box: Box) -> Call:
    """Good rows, and y in memory."""
    return Call(y=box.good_y)


def first_rows(n_rows: int, n_columns: int = P) -> Callable[[Box], Call]:
    """Some of the good rows and columns."""

    def call(box: Box) -> Call:
        X = good_rows()[:n_rows, :n_columns]
        y = None if box.good_y is None else box.good_y[:n_rows]
        if box.kind != "frame":
            return Call(X=box.rows(X), y=box.column(y))
        frame = pd.DataFrame(X, columns=NAMES[:n_columns])
        column = None if y is None else dd.from_pandas(pd.Series(y), npartitions=1)
        return Call(X=dd.from_pandas(frame, npartitions=1), y=column)

    return call


def nothing_left(box: Box) -> Call:
    """Rows of which a filter leaves none, which only a computation can tell."""
    X, y = box.rows(good_rows()), box.column(box.good_y)
    chosen = X["a"] > 99 if box.kind == "frame" else X[:, 0] > 99
    return Call(X=X[chosen], y=None if y is None else y[chosen])


def given(make: Callable[[Box], Any]) -> Callable[[Box], Call]:
    """X as it is."""
    return lambda box: Call(X=make(box))


_COLUMNS = "columns in the computed data do not match the columns in the provided"
_NO_ROWS = r"Found array with 0 sample\(s\)|number of rows, n_samples=0"

SHAPES = [
    Case(
        "3-D",
        rows_with(lambda X: X[:, :, np.newaxis]),
        refused(
            numpy="Found array with dim 3, while dim <= 2 is required",
            array="Expected 2D array, got 3D array instead: X must have the shape",
        ),
        containers=ARRAYS,
    ),
    Case(
        "1-D",
        rows_with(lambda X: X[:, 0]),
        refused("Expected 2D array, got 1D array instead"),
        containers=ARRAYS,
    ),
    Case(
        "0-D",
        given(lambda box: np.array(3.0)),
        refused("Expected 2D array, got scalar array instead"),
        containers=("numpy",),
    ),
    Case(
        "lazy 0-D",
        given(lambda box: da.from_array(np.array(3.0))),
        refused("Expected 2D array, got 0D array instead: X must have the shape"),
        containers=("array",),
    ),
    Case("no rows", first_rows(0), refused(_NO_ROWS)),
    Case("no rows after a filter", nothing_left, refused(_NO_ROWS), containers=LAZY),
    Case(
        "no columns",
        first_rows(N, 0),
        refused(r"0 feature\(s\)|expected at least 1 feature"),
    ),
    Case(
        "unknown rows",
        given(lambda box: unknown(good_rows())),
        trained(),
        containers=("array",),
    ),
    Case(
        "unknown columns",
        unknown_columns,
        refused("X has an unknown number of columns, expected a known one; give its"),
        containers=("array",),
    ),
    Case("empty chunk", empty_chunk, trained(in_memory_y), containers=("array",)),
    Case(
        "empty partition of objects",
        lambda box: Call(X=empty_partition(box), y=box.good_y),
        trained(in_memory_y),
        containers=("frame",),
    ),
    Case(
        "unequal blocks of X and y",
        lambda box: Call(X=box.rows(good_rows(), 8)),
        trained(lambda box: Call(X=box.rows(good_rows(), 8), y=box.good_y)),
        containers=("array",),
    ),
]

BLOCKS = [
    Case(
        "with fewer columns",
        from_blocks(lambda rows: rows[:, :2]),
        refused("Block 2 of X has 2 columns, expected 3; all blocks need the same"),
    ),
    Case(
        "of 1-D",
        from_blocks(lambda rows: rows[:, 0]),
        refused(r"got 1D array instead: block 2 of X has shape \(6,\), expected"),
    ),
    Case(
        "of objects",
        from_blocks(lambda rows: rows.astype(object)),
        refused("Block 2 of X has dtype object, expected real numbers; convert X"),
    ),
    Case(
        "of words",
        from_blocks(lambda rows: rows.astype(str)),
        refused("Block 2 of X has dtype <U32, expected real numbers; convert X"),
    ),
    Case(
        "of complex numbers",
        from_blocks(lambda rows: rows + 1j),
        refused("Block 2 of X has dtype complex128, expected real numbers; convert X"),
    ),
    Case(
        "of times",
        from_blocks(lambda rows: rows.astype("M8[s]")),
        refused(r"Block 2 of X has dtype datetime64\[s\], expected real numbers"),
    ),
    Case("of integers", from_blocks(lambda rows: rows.astype(int)), trained()),
    Case(
        "that is sparse",
        from_blocks(sparse.csr_matrix),
        refused(
            "X mixes kinds of blocks: block 3 is dense and block 2 is sparse. Give"
        ),
    ),
    Case(
        "that is masked",
        from_blocks(np.ma.masked_array),
        refused("Block 2 of X is a masked array, expected plain numbers; fill it"),
    ),
    Case("of pandas", from_blocks(lambda rows: pd.DataFrame(rows)), trained()),
    Case("that raises", from_blocks(fail), refused("the disk is full")),
]
BLOCKS = [
    Case(f"block {c.name}", c.make, c.expect, c.estimators, ("array",)) for c in BLOCKS
]

PARTITIONS = [
    Case(
        "with fewer columns",
        from_partitions(lambda part: part[["a", "b"]]),
        refused(_COLUMNS),
    ),
    Case(
        "with columns in another order",
        from_partitions(lambda part: part[["b", "a", "c"]]),
        refused(_COLUMNS),
    ),
    Case(
        "of text",
        from_partitions(lambda part: part.astype(str)),
        refused("Block 2 of X has .*(hold no numbers|expected real numbers)"),
    ),
    Case(
        "of integers",
        from_partitions(lambda part: part.astype(int)),
        trained(),
    ),
    Case("that raises", from_partitions(fail), refused("the disk is full")),
]
PARTITIONS = [
    Case(f"partition {c.name}", c.make, c.expect, c.estimators, ("frame",))
    for c in PARTITIONS
]

_DELAYED = r"X is a Delayed, expected data or a dask.array.*pass X.compute\(\), or make"
_BAG = "X is a Dask object of type {}, expected a dask.array .*vectorize_text.*to_data"
_ONE_COLUMN = "Expected 2D array, got {}D array instead: X must have the shape"

OTHER_KINDS = [
    Case(
        "X: a bag of records",
        given(lambda box: dask.bag.from_sequence(good_rows().tolist())),
        refused(_BAG.format("Bag")),
    ),
    Case(
        "X: a bag of texts",
        given(lambda box: dask.bag.from_sequence(["a red rose"] * 12)),
        refused(_BAG.format("Bag")),
    ),
    Case(
        "X: an Item",
        given(lambda box: dask.bag.from_sequence([1, 2]).sum()),
        refused(_BAG.format("Item")),
    ),
    Case(
        "X: a Delayed",
        given(lambda box: dask.delayed(good_rows)()),
        refused(_DELAYED),
    ),
    Case(
        "X: a list of Delayed",
        given(lambda box: [dask.delayed(good_rows)()]),
        refused(_DELAYED),
    ),
]
OTHER_KINDS = [
    Case(c.name, c.make, c.expect, c.estimators, ("array",)) for c in OTHER_KINDS
]
OTHER_FRAMES = [
    Case(
        "X: a dask Series", given(lambda box: box.rows(good_rows())["a"]), refused("?")
    ),
    Case(
        "X: a dask Index", given(lambda box: box.rows(good_rows()).index), refused("?")
    ),
]
OTHER_FRAMES = [
    Case(c.name, c.make, refused(_ONE_COLUMN.format(1)), c.estimators, ("frame",))
    for c in OTHER_FRAMES
]

CASES = [*SHAPES, *BLOCKS, *PARTITIONS, *OTHER_KINDS, *OTHER_FRAMES]
