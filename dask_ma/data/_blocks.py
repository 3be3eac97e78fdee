"""One block at a time: what kind it is, its rows, its conversion."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

__all__: list[str] = []

_LARGEST_INT32 = np.iinfo(np.int32).max


def is_foreign_sparse(block: Any) -> bool:
    """Whether a block belongs to the package ``sparse`` (which is not imported)."""
    return type(block).__module__.partition(".")[0] == "sparse"


def is_sparse(block: Any) -> bool:
    """Whether a block is sparse, of SciPy or of the package ``sparse``."""
    return scipy.sparse.issparse(block) or is_foreign_sparse(block)


def is_frame(block: Any) -> bool:
    """Whether a block is a pandas DataFrame, Series or Index."""
    return hasattr(block, "to_numpy") and hasattr(block, "memory_usage")


def frame_to_array(frame: Any) -> np.ndarray:
    """NumPy array of a pandas DataFrame, Series or Index."""
    if frame.ndim == 1:
        return _series_to_array(frame)
    plain = all(isinstance(dtype, np.dtype) for dtype in frame.dtypes)
    if plain or not len(frame.columns):
        return frame.to_numpy()
    numeric = all(holds_numbers(dtype) for dtype in frame.dtypes)
    if not numeric:
        return frame.to_numpy()
    # Extension columns would become objects; a missing value becomes NaN, which the
    # check for finite values then names.
    return frame.to_numpy(dtype=np.float64, na_value=np.nan)


def _series_to_array(series: Any) -> np.ndarray:
    """NumPy array of a pandas Series; missing numbers become NaN."""
    if isinstance(series.dtype, np.dtype) or not holds_numbers(series.dtype):
        return series.to_numpy()
    if series.isna().any():
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    return series.to_numpy(dtype=getattr(series.dtype, "numpy_dtype", None))


def holds_numbers(dtype: Any) -> bool:
    """Whether a pandas or NumPy dtype holds numbers or booleans."""
    if isinstance(dtype, np.dtype):
        return dtype.kind in "biuf"
    return bool(
        getattr(dtype, "_is_numeric", False) or getattr(dtype, "_is_boolean", False)
    )


def to_csr(block: Any) -> Any:
    """CSR form of a sparse block, with int32 indices where they fit."""
    if is_foreign_sparse(block):
        block = _from_foreign(block)
    block = block if block.format == "csr" else block.tocsr()
    if block.indices.dtype == np.int32 and block.indptr.dtype == np.int32:
        return block
    if max(block.nnz, *block.shape) > _LARGEST_INT32:
        return block
    indices = block.indices.astype(np.int32), block.indptr.astype(np.int32)
    return type(block)((block.data, *indices), shape=block.shape)


def _from_foreign(block: Any) -> Any:
    """SciPy form of a block of the package ``sparse``, which shares its data.

    Read from the public attributes: most methods of that package compile with numba
    when they are first called, which takes seconds.
    """
    if block.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {block.ndim}D array instead: a sparse block of X "
            f"has shape {block.shape}."
        )
    if block.fill_value != 0:
        raise ValueError(
            f"A sparse block of X has fill_value {block.fill_value}, expected 0."
        )
    if hasattr(block, "coords"):
        coords = tuple(block.coords)
        return scipy.sparse.coo_array((block.data, coords), shape=block.shape)
    if not hasattr(block, "compressed_axes"):
        raise TypeError(
            f"X has a block of type sparse.{type(block).__name__}, expected "
            "sparse.COO or sparse.GCXS."
        )
    kinds = {0: scipy.sparse.csr_array, 1: scipy.sparse.csc_array}
    parts = (block.data, block.indices, block.indptr)
    return kinds[int(block.compressed_axes[0])](parts, shape=block.shape)


def as_rows(block: Any) -> Any:
    """A block whose rows can be sliced: an ndarray, a CSR or a pandas object."""
    if is_sparse(block):
        return to_csr(block)
    return block if is_frame(block) else np.asanyarray(block)


def take_rows(block: Any, start: int, stop: int) -> Any:
    """Rows `start` to `stop` of a block, as a view where the block allows it."""
    if start == 0 and stop == block.shape[0]:
        return block
    return block.iloc[start:stop] if is_frame(block) else block[start:stop]


def align(block: Any) -> Any:
    """An ndarray or a CSR whose elements lie where the processor expects them.

    Arrays that came in a message may begin at any byte. NumPy and SciPy would copy them
    for every operation, or go without BLAS and so round in another way.
    """
    if not is_sparse(block):
        return np.require(block, requirements="A")
    parts = block.data, block.indices, block.indptr
    if all(part.flags.aligned for part in parts):
        return block
    aligned = tuple(np.require(part, requirements="A") for part in parts)
    return type(block)(aligned, shape=block.shape)


def n_bytes(block: Any) -> int:
    """Bytes that the data of a block take."""
    if block is None:
        return 0
    if isinstance(block, (tuple, list)):
        return sum(map(n_bytes, block))
    if scipy.sparse.issparse(block):
        block = block if block.format == "csr" else block.tocsr()
        return block.data.nbytes + block.indices.nbytes + block.indptr.nbytes
    if is_frame(block):
        return int(np.sum(block.memory_usage(index=False)))
    return int(getattr(block, "nbytes", 0))
