"""Apply a fitted model to a Dask collection, block by block, when it is computed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
from dask.sizeof import sizeof

from dask_ma import _config
from dask_ma.data._blocks import (
    align,
    frame_to_array,
    is_frame,
    is_sparse,
    to_csr,
)
from dask_ma.data._collections import as_array, current_client, scatter_one
from dask_ma.data._inputs import check_features

__all__ = ["apply_blockwise"]


def apply_blockwise(
    X: Any,
    function: Callable[[Any, Any], np.ndarray],
    *,
    model: Any,
    n_outputs: int | None,
    dtype: Any,
) -> Any:
    """Apply ``function(model, block)`` lazily to every block of rows.

    Parameters
    ----------
    X : dask.array or dask.dataframe of shape (n_rows, n_features)
        Several chunks of columns are joined, with a warning.
    function : callable
        Gets the model and a block, an ndarray or a CSR, and returns an array with one
        row per row of the block. It is not called for a block without rows.
    model : object
        Travels once: in the graph, or to a worker of the current client if it is larger
        than the configuration ``dask-ma.data.embed-limit``.
    n_outputs : int or None
        Columns of the result; None for a result of one dimension.
    dtype : dtype
        Dtype of the result.

    Returns
    -------
    dask.array of shape (n_rows,) or (n_rows, n_outputs)
        With the row chunks of `X`; unknown ones stay unknown.

    Raises
    ------
    ValueError
        If the metadata show that `X` does not hold rows of numbers.
    """
    X = as_array(check_features(X, allow_no_rows=True))
    tail = () if n_outputs is None else (n_outputs,)
    shape = {"drop_axis": 1} if n_outputs is None else {}
    return X.map_blocks(
        _apply,
        function,
        _ship(model),
        tail,
        np.dtype(dtype),
        name=f"dask_ma-{_name_of(function)}-{uuid.uuid4().hex}",
        chunks=(X.chunks[0], *((n,) for n in tail)),
        meta=np.empty((0, *tail), dtype=dtype),
        **shape,
    )


def _apply(
    block: Any,
    function: Callable[[Any, Any], np.ndarray],
    model: Any,
    tail: tuple[int, ...],
    dtype: np.dtype,
) -> np.ndarray:
    """Result of one block, in the promised dtype (runs on a worker)."""
    if block.shape[0] == 0:
        return np.empty((0, *tail), dtype=dtype)
    if is_sparse(block):
        block = to_csr(block)
    elif is_frame(block):
        block = frame_to_array(block)
    return np.asarray(function(model, align(block))).astype(dtype, copy=False)


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
