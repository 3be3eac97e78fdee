"""Descriptions of inputs by their metadata."""

from __future__ import annotations

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from dask_ma.data import describe, is_dask_collection


def broken(block):
    """Stand for data that must not be computed."""
    raise RuntimeError("computed")


def test_dask_array():
    X = da.ones((6, 3), chunks=2, dtype="f4")
    X = X.map_blocks(broken, dtype="f4", meta=np.empty((0, 0), "f4"))
    assert describe(X) == ("array", 6, 3, None, np.dtype("f4"))


def test_unknown_rows_and_columns():
    X = da.ones((6, 3), chunks=2)
    assert describe(X[X[:, 0] > 0])[1:3] == (None, 3)
    assert describe(X[:, X[0] > 0])[1:3] == (6, None)


def test_dask_dataframe():
    table = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
    info = describe(dd.from_pandas(table, npartitions=1))
    assert (info.kind, info.n_rows, info.n_features) == ("frame", None, 2)
    assert info.feature_names.tolist() == ["a", "b"]
    assert info.dtype == np.float64


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        ({"a": [1]}, np.int64),
        ({"a": [True]}, bool),
        ({"a": pd.array([1], dtype="Int32")}, np.float64),
        ({"a": [1.0], "b": np.float32([1])}, np.float64),
        ({"a": ["x"]}, object),
        ({"a": pd.Categorical(["x"])}, object),
        ({"a": pd.to_datetime(["2020-01-01"])}, object),
    ],
)
def test_dtype_of_frames(columns, dtype):
    assert describe(pd.DataFrame(columns)).dtype == dtype


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array, sp.coo_matrix])
def test_memory(convert):
    assert describe(convert(np.ones((6, 3)))) == ("memory", 6, 3, None, np.float64)


def test_lists_and_frames():
    assert describe([[1, 2], [3, 4], [5, 6]])[:3] == ("memory", 3, 2)
    assert describe(pd.DataFrame([[1, 2]])).feature_names is None
    names = describe(pd.DataFrame({"a": [1], "b": [2]})).feature_names
    assert names.tolist() == ["a", "b"]


def test_mixed_column_names_are_refused():
    with pytest.raises(TypeError, match="several types"):
        describe(pd.DataFrame({"a": [1], 0: [2]}))


def test_is_dask_collection():
    assert is_dask_collection(da.ones(3))
    assert is_dask_collection(dask.delayed(1))
    assert not is_dask_collection(np.ones(3))
    assert not is_dask_collection([1])


def test_other_collections_are_refused():
    with pytest.raises(TypeError, match="of type Delayed.*expected a dask.array"):
        describe(dask.delayed(1))
