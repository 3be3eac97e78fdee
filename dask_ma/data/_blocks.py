"""One block at a time: what kind it is, its rows, its conversion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse

__all__: list[str] = []

_LARGEST_INT32 = np.iinfo(np.int32).max
# How numbers are made of a column of another kind.
_WAYS = {
    "O": "of words or categories with pandas.get_dummies(X), a column for each",
    "M": "of times with {0}.dt.year or {0}.dt.day_of_week, or with "
    "{0}.astype('int64'), which should then be scaled",
    "m": "of time spans with {0}.dt.total_seconds()",
}
# Texts of numbers in memory are read as such.
_WAYS_LAZY = {
    **_WAYS,
    "O": "of words or categories with dask.dataframe.get_dummies(X.categorize()), a "
    "column for each; of texts of numbers, such as '1.5', with {0}.astype(float)",
}


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
    """NumPy array of a pandas DataFrame, Series or Index.

    Columns of numbers, booleans and categories that are numbers get the dtype that
    holds them all; a missing value becomes NaN, which the check for finite values then
    names.
    """
    if frame.ndim == 1:
        return _series_to_array(frame)
    dtype = common_dtype(frame.dtypes)
    if dtype == object:
        return frame.to_numpy()
    if all(isinstance(kind, np.dtype) for kind in frame.dtypes):
        return frame.to_numpy(dtype=dtype)
    if not any(hasattr(kind, "categories") for kind in frame.dtypes):
        return frame.to_numpy(dtype=dtype, na_value=np.nan)
    array = np.empty(frame.shape, dtype=dtype)
    for place, (_, column) in enumerate(frame.items()):
        array[:, place] = _numbers_of(column, dtype)
    return array


def features_to_array(frame: Any, index: int) -> np.ndarray:
    """NumPy array of a pandas DataFrame of numbers, which is block `index` of X.

    Its dtype is object where there are no rows, and so nothing that has to be a number.
    """
    array = frame_to_array(frame)
    if array.dtype == object and len(array):
        raise words_in_block(frame, index)
    return array


def words_in_block(frame: Any, index: int) -> ValueError:
    """Error of a block of X with columns that hold no numbers."""
    refused = {name: d for name, d in frame.dtypes.items() if not holds_numbers(d)}
    return no_numbers(refused, f"Block {index} of X", is_lazy=True)


def no_numbers(
    refused: Mapping[Any, Any], where: str = "X", *, is_lazy: bool
) -> ValueError:
    """Error of a frame with columns that hold no numbers, and how to make some.

    Parameters
    ----------
    refused : mapping of str to dtype
        Columns that hold none.
    where : str
        What has them.
    is_lazy : bool
        Whether X is a dask.dataframe.

    Returns
    -------
    error : ValueError
    """
    named = ", ".join(f"{str(name)!r} ({dtype})" for name, dtype in refused.items())
    of_kind: dict[str, str] = {}  # one column of each kind
    for name, dtype in refused.items():
        of_kind.setdefault(_kind(dtype), f"X[{name!r}]")
    ways = [
        way.format(of_kind[kind])
        for kind, way in (_WAYS_LAZY if is_lazy else _WAYS).items()
        if kind in of_kind
    ]
    cure = f", or make numbers of them: {'; '.join(ways)}" if ways else ""
    return ValueError(
        f"{where} has columns that hold no numbers: {named}. Drop them{cure}."
    )


def _kind(dtype: Any) -> str:
    """Kind of a dtype that holds no numbers: a key of the ways, or another letter."""
    if type(dtype).__name__ == "PeriodDtype":
        return "M"
    kind = getattr(dtype, "kind", "O")
    return kind if kind in "cmMV" else "O"


def _numbers_of(column: Any, dtype: np.dtype) -> np.ndarray:
    """A column of numbers in some dtype."""
    if hasattr(column.dtype, "categories"):
        return column.astype(dtype).to_numpy()
    if isinstance(column.dtype, np.dtype):
        return column.to_numpy(dtype=dtype)
    return column.to_numpy(dtype=dtype, na_value=np.nan)


def _series_to_array(series: Any) -> np.ndarray:
    """NumPy array of a pandas Series or Index; missing numbers become NaN."""
    if isinstance(series.dtype, np.dtype) or hasattr(series.dtype, "categories"):
        return series.to_numpy()
    if not holds_numbers(series.dtype):
        return series.to_numpy()
    if series.isna().any():
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    return series.to_numpy(dtype=getattr(series.dtype, "numpy_dtype", None))


def holds_numbers(dtype: Any) -> bool:
    """Whether a pandas or NumPy dtype holds numbers or booleans."""
    if isinstance(dtype, np.dtype):
        return dtype.kind in "biuf"
    if hasattr(dtype, "categories"):
        return dtype.categories is not None and holds_numbers(dtype.categories.dtype)
    from pandas.api import types  # who has such a dtype has loaded it

    is_number = types.is_numeric_dtype(dtype) or types.is_bool_dtype(dtype)
    return bool(is_number) and dtype.kind != "c"


def common_dtype(dtypes: Iterable[Any]) -> np.dtype:
    """NumPy dtype that holds columns of some dtypes; object where there is none."""
    dtypes = set(dtypes)
    if not dtypes or not all(map(holds_numbers, dtypes)):
        return np.dtype(object)
    return np.result_type(*map(_numpy_dtype, dtypes))


def _numpy_dtype(dtype: Any) -> np.dtype:
    """NumPy dtype of a column of numbers; floating where a value may be missing."""
    if isinstance(dtype, np.dtype):
        return dtype
    plain = np.dtype(getattr(dtype, "numpy_dtype", np.float64))
    return plain if plain.kind == "f" else np.dtype(np.float64)


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
    """SciPy form of a block of the package ``sparse``, which shares its data."""
    # Read from the public attributes: most methods of that package compile with numba
    # when they are first called, which takes seconds.
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
    if scipy.sparse.issparse(block) and block.format == "csr":
        return _csr_rows(block, start, stop)
    return block.iloc[start:stop] if is_frame(block) else block[start:stop]


def _csr_rows(block: Any, start: int, stop: int) -> Any:
    """Rows of a CSR that share its elements; SciPy would copy them."""
    first, last = block.indptr[start], block.indptr[stop]
    parts = block.data[first:last], block.indices[first:last]
    pointers = block.indptr[start : stop + 1] - first
    return csr_of((*parts, pointers), (stop - start, block.shape[1]), type(block))


class _Whole(np.ndarray):
    """Stands between an array and the larger one that it is a part of."""


def as_whole(array: np.ndarray) -> np.ndarray:
    """The same array, which SciPy takes for a whole one.

    Whenever it makes a CSR, SciPy copies what is a small part of a large array.
    """
    # NumPy goes back from view to view to the array that owns the memory, but not past
    # two of another class.
    return array.view(_Whole).view(_Whole).view(np.ndarray)


def csr_of(arrays: Sequence[np.ndarray], shape: tuple[int, int], kind: type) -> Any:
    """A CSR of these arrays themselves.

    SciPy's constructor copies what is a small part of a large array.
    """
    made = kind(shape, dtype=arrays[0].dtype)
    made.data, made.indices, made.indptr = arrays
    return made


def join_rows(blocks: Sequence[Any], ranges: Sequence[tuple[int, int]]) -> np.ndarray:
    """Rows of y or weights from several blocks; each range is of one of them."""
    parts = [
        (frame_to_array(block) if is_frame(block) else np.asarray(block))[start:stop]
        for block, (start, stop) in zip(blocks, ranges, strict=True)
    ]
    return np.concatenate(parts) if parts else np.empty(0)


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
    aligned = [np.require(part, requirements="A") for part in parts]
    return csr_of(aligned, block.shape, type(block))


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
