"""Blocks of rows written to the local disk, each array as a plain ``.npy`` file."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from distributed import get_worker

from dask_ma.data._blocks import (
    as_rows,
    frame_to_array,
    holds_numbers,
    is_frame,
    is_sparse,
)
from dask_ma.data._checks import check_pointers, check_sparse, without_duplicates
from dask_ma.data._mapped import SPARSE, CachedRows, checksum, residency

__all__: list[str] = []

# Fits whose files were removed here of late. Where a fit has failed, some of its blocks
# may still be on their way to the disk.
_removed: deque[str] = deque(maxlen=1000)


def store_rows(X: Any, run: str, base: str | None, dtypes: Sequence[Any]) -> Any:
    """Write a block of X to the disk (runs on a worker).

    Parameters
    ----------
    X : ndarray, sparse or DataFrame of shape (n_rows, n_features)
        A block.
    run : str
        Name of the fit's files.
    base : str or None
        Folder for the files; None for that of the worker, or of temporary files.
    dtypes : sequence of dtypes
        Types that rows may have; any other becomes the first.

    Returns
    -------
    rows : CachedRows
        Or `X` itself where it cannot be used as it is: its rank says what is wrong. Or
        where the files of the fit have been removed.
    """
    given, X = X, _readable(X)
    if X is None:
        return given
    allowed = [np.dtype(dtype) for dtype in dtypes]
    dtype = X.dtype if X.dtype in allowed else allowed[0]
    if is_sparse(X):
        X = without_duplicates(X.astype(dtype, copy=False))
        arrays = {name: getattr(X, name) for name in SPARSE}
    else:
        arrays = {"rows": np.ascontiguousarray(X, dtype=dtype)}
    folder = files_of(run, base) / uuid.uuid4().hex
    nbytes = sum(array.nbytes for array in arrays.values())
    try:
        folder.mkdir(parents=True)
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        if run in _removed:
            return given
        raise OSError(
            f"{nbytes} bytes of rows cannot be written to {folder}: {error}; make room "
            "there, or choose another disk by dask-ma.data.cache"
        ) from error
    if run in _removed:
        remove_rows(run, base)
        return given
    checksums = {name: checksum(array) for name, array in arrays.items()}
    like = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    return CachedRows(
        str(folder), X.shape, dtype, is_sparse(X), nbytes, checksums, like
    )


def store_source(
    source: Any, run: str, base: str | None, dtypes: Sequence[Any]
) -> tuple[Any, Any, Any]:
    """Write the rows of a block to the disk of this worker; y and weights stay."""
    X, y, sample_weight = source
    return store_rows(X, run, base, dtypes), y, sample_weight


def remove_rows(run: str, base: str | None) -> None:
    """Remove all files of a fit on this host (runs on a worker)."""
    _removed.append(run)
    folder = files_of(run, base)
    residency.forget(folder)
    shutil.rmtree(folder, ignore_errors=True)


def files_of(run: str, base: str | None) -> Path:
    """Folder of the files of a fit."""
    if base is None:
        try:
            base = get_worker().local_directory
        except ValueError:  # no worker
            base = tempfile.gettempdir()
    return Path(base, f"dask_ma-rows-{run}")


def _readable(X: Any) -> Any:
    """The block as an array or a CSR of numbers; None where it is neither."""
    if is_frame(X):
        is_right = X.ndim == 2 and all(map(holds_numbers, X.dtypes))
        return frame_to_array(X) if is_right else None
    if np.ma.isMaskedArray(X):
        return None
    try:
        if scipy.sparse.issparse(X):
            check_pointers(X, "X")
        X = as_rows(X)
        if is_sparse(X):
            check_sparse(X, "X")
    except (TypeError, ValueError):
        return None
    return X if X.ndim == 2 and holds_numbers(X.dtype) else None
