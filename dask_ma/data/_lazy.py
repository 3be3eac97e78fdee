"""Apply a fitted model to a Dask collection, block by block, when it is computed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
from dask.sizeof import sizeof
from scipy import sparse

from dask_ma import _config
from dask_ma.data._blocks import (
    align,
    features_to_array,
    is_foreign_sparse,
    is_sparse,
    to_csr,
)
from dask_ma.data._checks import (
    check_finite,
    check_numbers,
    check_sparse,
    refuse_masked,
)
from dask_ma.data._collections import current_client, scatter_one
from dask_ma.data._frames import as_array
from dask_ma.data._inputs import check_features, describe, is_dask_frame

__all__ = ["apply_blockwise"]


def apply_blockwise(
    X: Any,
    function: Callable[[Any, Any], np.ndarray],
    *,
    model: Any,
    n_outputs: int | None,
    dtype: Any,
    keeps_sparse: bool = False,
    columns: Any = None,
) -> Any:
    """Apply ``function(model, block)`` lazily to every block of rows.

    Parameters
    ----------
    X : dask.array or dask.dataframe of shape (n_rows, n_features)
        Several chunks of columns are joined, with a warning.
    function : callable
        Gets the model and a block, an ndarray or a CSR, and returns an array, or a CSR,
        with one row per row of the block. It is not called for a block without rows.
    model : object
        Travels once: in the graph, or to a worker of the current client if it is larger
        than the configuration ``dask-ma.data.embed-limit``.
    n_outputs : int or None
        Columns of the result; None for a result of one dimension.
    dtype : dtype
        Dtype of the result.
    keeps_sparse : bool, default=False
        Whether the function makes a CSR of a CSR.
    columns : array-like of str, default=None
        Names of the outputs, if the result for a dask.dataframe is to be one.

    Returns
    -------
    dask.array of shape (n_rows,) or (n_rows, n_outputs)
        With the row chunks of `X`; unknown ones stay unknown. With `columns` a
        dask.dataframe with the index of `X`. A result of one
        dimension for a dask.dataframe is a Series with its index, so that it can be
        assigned to the DataFrame: Dask does not let an array be assigned to one whose
        partitions it may still join or move.

    Raises
    ------
    ValueError
        If the metadata show that `X` does not hold rows of numbers.
    """
    X = check_features(X, describe(X), allow_no_rows=True)
    if is_dask_frame(X) and (n_outputs is None or columns is not None):
        return _apply_to_frame(X, function, model, np.dtype(dtype), columns)
    X = as_array(X)
    tail = () if n_outputs is None else (n_outputs,)
    shape = {"drop_axis": 1} if n_outputs is None else {}
    empty = np.empty((0, *tail), dtype=dtype)
    keeps_sparse = keeps_sparse and is_sparse(X._meta)
    return X.map_blocks(
        _apply,
        function,
        _ship(model),
        tail,
        np.dtype(dtype),
        name=f"dask_ma-{_name_of(function)}-{uuid.uuid4().hex}",
        chunks=(X.chunks[0], *((n,) for n in tail)),
        meta=sparse.csr_array(empty) if keeps_sparse else empty,
        keeps_sparse=keeps_sparse,
        **shape,
    )


def _apply_to_frame(
    X: Any,
    function: Callable[[Any, Any], np.ndarray],
    model: Any,
    dtype: np.dtype,
    columns: Any = None,
) -> Any:
    """Series or frame of the rows, which Dask lowers with what it is assigned to."""
    import pandas as pd  # a Dask DataFrame cannot be without it

    # Text has a dtype of its own in some versions of pandas.
    is_text = dtype.kind in "UO"
    kept = pd.Series(["text"]).dtype if is_text else dtype
    return X.map_partitions(
        _apply_to_partition,
        function,
        _ship(model),
        dtype,
        kept,
        columns,
        meta=_framed(np.empty((0,)), X._meta.index[:0], kept, columns),
        enforce_metadata=False,
        transform_divisions=False,
        token=f"dask_ma-{_name_of(function)}",
    )


def _apply_to_partition(
    frame: Any,
    function: Callable[[Any, Any], np.ndarray],
    model: Any,
    dtype: np.dtype,
    kept: Any,
    columns: Any,
    partition_info: dict[str, Any],
) -> Any:
    """Result of one partition, with its index (runs on a worker)."""
    index = partition_info["number"]
    block = features_to_array(frame, index)
    tail = () if columns is None else (len(columns),)
    values = _apply(block, function, model, tail, dtype, (index,))
    return _framed(values, frame.index, kept, columns)


def _framed(values: Any, index: Any, dtype: Any, columns: Any) -> Any:
    """Values of rows as a Series, or as a DataFrame with columns."""
    import pandas as pd

    if columns is None:
        return pd.Series(values, index=index, dtype=dtype)
    values = values.toarray() if is_sparse(values) else values
    values = values.reshape(len(index), len(columns))
    return pd.DataFrame(values, index=index, columns=columns, dtype=dtype)


def _apply(
    block: Any,
    function: Callable[[Any, Any], np.ndarray],
    model: Any,
    tail: tuple[int, ...],
    dtype: np.dtype,
    block_id: tuple[int, ...] | None = None,
    keeps_sparse: bool = False,
) -> Any:
    """Result of one block, in the promised dtype (runs on a worker)."""
    if block.shape[0] == 0:
        empty = np.empty((0, *tail), dtype=dtype)
        return sparse.csr_array(empty) if keeps_sparse else empty
    index = 0 if block_id is None else block_id[0]
    name = f"Block {index} of X"
    refuse_masked(block, name)
    if is_sparse(block):
        if not is_foreign_sparse(block):
            check_sparse(block, name)
        block = to_csr(block)
    check_numbers(block, index)
    check_finite(block, "X", index, None)
    from sklearn import config_context  # no rank needs it

    with config_context(assume_finite=True):
        result = function(model, align(block))
    if is_sparse(result):
        return result.astype(dtype, copy=False)
    return np.asarray(result).astype(dtype, copy=False)


def _name_of(function: Callable[..., Any]) -> str:
    """Name of a function for the dashboard."""
    return str(getattr(function, "__name__", "apply")).strip("<>_")


def _ship(model: Any) -> Any:
    """A reference to the model: one key of the graph, or a future."""
    client = current_client()
    if client is not None and _size_of(model) > _config.get_bytes("data.embed-limit"):
        return dask.delayed(scatter_one(client, model))
    name = f"dask_ma-model-{uuid.uuid4().hex}"
    return dask.delayed(model, name=name, traverse=False)


def _size_of(model: Any) -> int:
    """Bytes of a model; of its attributes where it is an object with some."""
    attributes = getattr(model, "__dict__", None)
    # Of a container with many items sizeof measures a random sample only.
    return sum(map(sizeof, attributes.values())) if attributes else sizeof(model)
