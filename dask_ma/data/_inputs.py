"""Description of an input by its metadata alone, and checks that need no data."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import dask
import numpy as np
import scipy.sparse

from dask_ma.data._blocks import common_dtype, no_numbers

__all__ = ["InputInfo", "describe", "is_dask_collection", "rows_like"]

Kind = Literal["array", "frame", "memory"]


class InputInfo(NamedTuple):
    """What the metadata of an input say.

    Attributes
    ----------
    kind : {"array", "frame", "memory"}
        A Dask array, a Dask DataFrame, or data in this process.
    n_rows : int or None
        None where only a computation could tell.
    n_features : int or None
        None where only a computation could tell.
    feature_names : ndarray of shape (n_features,), dtype object, or None
        Column names, if all of them are strings.
    dtype : numpy.dtype
        Common dtype of the columns.
    """

    kind: Kind
    n_rows: int | None
    n_features: int | None
    feature_names: np.ndarray | None
    dtype: np.dtype


def is_dask_collection(X: Any) -> bool:
    """Whether `X` is a lazy Dask object (array, DataFrame, Series, bag, delayed).

    Parameters
    ----------
    X : object

    Returns
    -------
    bool
    """
    return bool(dask.is_dask_collection(X))


def is_dask_array(X: Any) -> bool:
    """Whether `X` is a dask.array."""
    # Whoever holds one has loaded the module; loading it here would only cost time.
    module = sys.modules.get("dask.array")
    return module is not None and isinstance(X, module.Array)


def is_dask_frame(X: Any) -> bool:
    """Whether `X` is a dask.dataframe DataFrame, Series or Index."""
    modules = [cls.__module__ for cls in type(X).__mro__]
    return any(module.startswith("dask.dataframe") for module in modules)


def describe(X: Any) -> InputInfo:
    """Describe an input from its metadata; nothing is computed.

    Parameters
    ----------
    X : array-like, sparse, DataFrame, dask.array or dask.dataframe
        Of shape (n_rows, n_features).

    Returns
    -------
    InputInfo

    Raises
    ------
    TypeError
        If `X` is a Dask object without columns, such as a bag.
    """
    if is_dask_array(X):
        shape = [None if np.isnan(size) else int(size) for size in X.shape]
        columns = shape[1] if len(shape) > 1 else None
        return InputInfo("array", shape[0] if shape else None, columns, None, X.dtype)
    if is_dask_frame(X) and hasattr(X, "columns"):
        meta = X._meta
        dtype = common_dtype(_column_dtypes(X).values())
        return InputInfo("frame", None, len(meta.columns), feature_names(meta), dtype)
    if is_dask_collection(X):
        raise TypeError(
            f"X is a Dask object of type {type(X).__name__}, expected a dask.array or "
            "a dask.dataframe; count the words of texts with "
            "dask_ma.datasets.vectorize_text, make a dask.dataframe of records with "
            "to_dataframe()."
        )
    return _describe_memory(X)


def _describe_memory(X: Any) -> InputInfo:
    """Describe data that are in this process."""
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        dtype = common_dtype(X.dtypes)
        return InputInfo("memory", X.shape[0], X.shape[1], feature_names(X), dtype)
    X = X if hasattr(X, "shape") and hasattr(X, "dtype") else np.asarray(X)
    columns = X.shape[1] if len(X.shape) > 1 else None
    return InputInfo("memory", X.shape[0] if X.shape else None, columns, None, X.dtype)


def _column_dtypes(X: Any) -> dict[int, Any]:
    """Dtype of each column of a dask.dataframe, by its number."""
    if X.ndim != 2:
        return {0: np.dtype(object)}
    # Categories that only the files know show when blocks are read: numbers so far.
    return {
        place: dtype if has_known_categories(dtype) else np.dtype(np.float64)
        for place, dtype in enumerate(X.dtypes)
    }


def has_known_categories(dtype: Any) -> bool:
    """Whether a dtype of a dask.dataframe is no category, or names its categories."""
    categories = getattr(dtype, "categories", ())
    if not len(categories):
        return True
    from dask.dataframe.utils import UNKNOWN_CATEGORIES  # X has loaded it

    return UNKNOWN_CATEGORIES not in categories


def feature_names(frame: Any) -> np.ndarray | None:
    """Column names of a pandas DataFrame as scikit-learn keeps them."""
    names = np.asarray(frame.columns, dtype=object)
    strings = [isinstance(name, str) for name in names]
    if any(strings) and not all(strings):
        raise TypeError(
            "X has column names of several types; either all of them are strings or "
            "none is. Rename them with X.columns = X.columns.astype(str)."
        )
    return names if len(names) and all(strings) else None


# -- Checks of X ---------------------------------------------------------------------


def check_features(X: Any, info: InputInfo, allow_no_rows: bool = False) -> Any:
    """Check a Dask `X` by its metadata and join its column chunks."""
    if info.kind == "array":
        _check_array(X)
        if X.shape[0] == 0 and not allow_no_rows:
            raise no_rows(X.shape)
        return join_columns(X)
    _check_frame(X)
    return X


def _check_frame(X: Any) -> None:
    """Check the columns of a dask.dataframe."""
    refused = {
        name: dtype
        for name, dtype in zip(X.columns, _column_dtypes(X).values(), strict=True)
        if common_dtype([dtype]) == object
    }
    if refused:
        raise no_numbers(refused, is_lazy=True)
    if not len(X._meta.columns):
        raise ValueError("X has no columns, expected at least 1 feature.")


def _check_array(X: Any) -> None:
    """Check dimensions and dtype of a dask.array."""
    if X.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {X.ndim}D array instead: X is a dask.array of "
            f"shape {X.shape}. Reshape it to (n_rows, n_features)."
        )
    if X.dtype.kind not in "biuf":
        raise ValueError(
            f"X is a dask.array of dtype {X.dtype}, expected real numbers; convert it "
            "with X.astype(float)."
        )
    if np.isnan(X.shape[1]):
        raise ValueError(
            "X is a dask.array whose number of columns is not known. Call "
            "X.compute_chunk_sizes() once, or give the shape where X is built (chunks= "
            "of map_blocks, shape= of from_delayed)."
        )
    if X.shape[1] == 0:
        raise ValueError(f"X has shape {X.shape}, expected at least 1 feature.")


def no_rows(shape: tuple[Any, ...]) -> ValueError:
    """Error of an input without a row."""
    return ValueError(
        f"Found array with 0 sample(s) (shape={tuple(shape)}) while a minimum of 1 is "
        "required: X has no rows."
    )


def join_columns(X: Any) -> Any:
    """Give a dask.array one chunk per row block, with a warning if it had several."""
    n_chunks = len(X.chunks[1])
    if n_chunks == 1:
        return X
    warnings.warn(
        f"X has {n_chunks} chunks of columns, expected one; it is rechunked with "
        "X.rechunk({1: -1}), which moves data. Do this where X is built.",
        UserWarning,
        stacklevel=2,
    )
    return X.rechunk({1: -1})


# -- Checks of y and sample_weight ---------------------------------------------------


def check_column(column: Any, name: str, X: Any, *, multi_output: bool = False) -> Any:
    """Check y or sample_weight against a Dask `X` and align it with X's blocks."""
    if column is None:
        return None
    if not is_dask_collection(column):
        column = memory_column(column, name, multi_output=multi_output)
        check_length(name, len(column), _total(row_lengths(X)))
        return column
    shape = _column_shape(column, name, multi_output)
    if len(shape) == 2 and shape[1] == 1:
        warn_column_vector()
    elif len(shape) == 2 and is_dask_array(column):
        column = column.rechunk({1: -1})
    _check_weight_dtype(column, name)
    return align_blocks(column, name, X)


def memory_column(column: Any, name: str, *, multi_output: bool = False) -> np.ndarray:
    """Turn y or sample_weight of this process into an array, 1-D in most cases."""
    if name == "y":
        if multi_output:
            column = np.asarray(column)
            if column.ndim == 2 and column.shape[1] > 1:
                return column
        from sklearn.utils.validation import column_or_1d  # no rank needs it

        return column_or_1d(column, warn=True)
    column = np.asarray(column, dtype=None if _is_float(column) else np.float64)
    if column.ndim != 1:
        raise ValueError(
            f"Sample weights must be 1D array or scalar: {name} has shape "
            f"{column.shape}, expected one weight per row."
        )
    return column


def _is_float(column: Any) -> bool:
    """Whether a weight column is float32 or float64 already."""
    return getattr(column, "dtype", None) in (np.float32, np.float64)


def _column_shape(column: Any, name: str, multi_output: bool) -> tuple[Any, ...]:
    """Shape of a Dask column, refused unless it is (n,), (n, 1) or, for y, allowed."""
    if not (is_dask_array(column) or is_dask_frame(column)):
        raise TypeError(
            f"{name} is a Dask object of type {type(column).__name__}, expected a 1-D "
            "dask.array or a dask.dataframe Series."
        )
    if is_dask_array(column):
        shape = column.shape
    else:
        meta = column._meta
        shape = (np.nan,) if meta.ndim == 1 else (np.nan, meta.shape[1])
    if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1 and name == "y"):
        return shape
    if len(shape) == 2 and multi_output and shape[1] > 1:
        return shape
    raise ValueError(
        f"{name} should be a 1d array, got an array of shape {shape} instead."
    )


def warn_column_vector() -> None:
    """Warn as scikit-learn does about a target of shape (n, 1)."""
    from sklearn.exceptions import DataConversionWarning  # no rank needs it

    warnings.warn(
        "A column-vector y was passed when a 1d array was expected. Please change the "
        "shape of y to (n_samples,), for example using y[:, 0].",
        DataConversionWarning,
        stacklevel=2,
    )


def _check_weight_dtype(column: Any, name: str) -> None:
    """Refuse weights that are not numbers, by metadata."""
    if name == "y":
        return
    dtype = common_dtype([column.dtype])
    if dtype == object:
        raise ValueError(
            f"{name} has dtype {column.dtype}, expected real numbers; convert it with "
            "astype(float)."
        )


def row_lengths(collection: Any) -> list[int | None]:
    """Rows of each block of a Dask collection; None where not known."""
    if is_dask_array(collection):
        return [None if np.isnan(n) else int(n) for n in collection.chunks[0]]
    return [None] * collection.npartitions


def _total(lengths: Sequence[int | None]) -> int | None:
    """Sum of the lengths, None if one is not known."""
    return None if None in lengths else sum(lengths)  # type: ignore[arg-type]


def check_length(name: str, found: int | None, expected: int | None) -> None:
    """Refuse a column of another length than X."""
    if found is not None and expected is not None and found != expected:
        raise ValueError(
            "Found input variables with inconsistent numbers of samples: "
            f"{[expected, found]}. X has {expected} rows and {name} has {found}; give "
            f"one {name} value per row of X."
        )


def align_blocks(column: Any, name: str, X: Any) -> Any:
    """Give a Dask column the blocks of X, as far as their lengths are known."""
    ours, theirs = row_lengths(X), row_lengths(column)
    check_length(name, _total(theirs), _total(ours))
    if ours == theirs:
        return column
    if None not in ours and None not in theirs:
        chunks = (tuple(ours),) + tuple(column.chunks[1:])
        return column.rechunk(chunks)
    return column  # matched once the blocks are computed and their rows counted


def to_memory(X: Any) -> Any:
    """Data of this process in a form whose rows can be sliced."""
    if scipy.sparse.issparse(X):
        return X if X.format == "csr" else X.tocsr()
    if hasattr(X, "iloc") or isinstance(X, np.ndarray):
        return X
    if type(X).__module__.partition(".")[0] == "sparse":
        return X.to_scipy_sparse().tocsr()
    return np.asarray(X)


def rows_like(info: InputInfo) -> Any:
    """Something without rows that has the columns of a Dask collection.

    Parameters
    ----------
    info : InputInfo

    Returns
    -------
    rows : ndarray of shape (0, n_features) or DataFrame

    Raises
    ------
    ValueError
        If nobody knows how many columns it has.
    """
    if info.feature_names is not None:
        import pandas as pd  # a Dask DataFrame cannot be without it

        return pd.DataFrame(columns=info.feature_names)
    if info.n_features is None:
        raise ValueError(
            "X has an unknown number of columns, expected a known one; give its shape, "
            "e.g. with dask.array.from_delayed(..., shape=(np.nan, n_features))"
        )
    return np.empty((0, info.n_features))
