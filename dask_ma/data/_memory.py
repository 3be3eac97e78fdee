"""Data of this process: what scikit-learn's own checks let through, or hide."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Number, Real
from typing import Any

import numpy as np
from dask.delayed import Delayed
from distributed import Future

from dask_ma.data._blocks import (
    holds_numbers,
    is_foreign_sparse,
    is_frame,
    is_sparse,
    no_numbers,
    to_csr,
)
from dask_ma.data._checks import check_sparse, refuse_masked
from dask_ma.data._inputs import is_dask_collection

__all__ = [
    "CAST_LATER",
    "checked_rows",
    "checked_vector",
    "refuse_unfinished",
    "weight_per_row",
]

#: Types of rows in memory that ranks make floating numbers of, block by block: as such
#: they would take up to eight times the room here, and on the way.
CAST_LATER = (
    np.bool_,
    *(np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)),
    np.float16,
)
_NOT_REAL = {
    "c": "complex numbers",
    "m": "time spans",
    "M": "times",
    "V": "records of several fields",
}


def refuse_unfinished(value: Any, name: str) -> None:
    """Refuse what stands for a value that is not there yet.

    Parameters
    ----------
    value : object
        A parameter, or a list of such.
    name : str
        Of the parameter, for the message.

    Raises
    ------
    TypeError
        For a Delayed or a Future, also as the first element of a list.
    """
    if isinstance(value, (list, tuple)) and len(value):
        value = value[0]
    for kind, method in ((Delayed, "compute"), (Future, "result")):
        if isinstance(value, kind):
            raise TypeError(
                f"{name} is a {kind.__name__}, expected data or a dask.array or "
                f"dask.dataframe; pass {name}.{method}(), or make a dask.array with "
                f"dask.array.from_delayed({name}, shape=..., dtype=...)."
            )


def checked_rows(X: Any) -> Any:
    """Refuse rows that would be misread, or whose message would not say what is wrong.

    Parameters
    ----------
    X : array-like or sparse of shape (n_rows, n_features)

    Returns
    -------
    X : array-like or sparse
        The same, as CSR if it comes from the package ``sparse``.

    Raises
    ------
    ValueError
        For text, a mapping, other values that are not real numbers, and indices of a
        sparse matrix that lie outside of it.
    TypeError
        For a masked array, a Delayed, a Future or objects that are neither numbers nor
        text.
    """
    refuse_unfinished(X, "X")
    if is_foreign_sparse(X):
        return to_csr(X)
    if is_sparse(X):
        check_sparse(X, "X")
        _check_real(X.dtype, "X")
        return X
    if isinstance(X, Mapping):
        raise ValueError(
            f"X is a {type(X).__name__}, expected rows of numbers; make a "
            "pandas.DataFrame of it."
        )
    refuse_masked(X, "X")
    _refuse_text(X)
    if is_frame(X) and X.ndim == 2:
        _check_frame(X)
    else:
        _check_array(X)
    return X


def checked_vector(values: Any, name: str) -> None:
    """Refuse a vector of y or weights that would be misread.

    Parameters
    ----------
    values : array-like of shape (n_rows,)
    name : str
        Of the parameter, for the message.

    Raises
    ------
    ValueError
        For values that are neither real numbers nor text.
    TypeError
        For a masked array, a Delayed or a Future.
    """
    refuse_unfinished(values, name)
    refuse_masked(values, name)
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype):
        _check_real(dtype, name)


def weight_per_row(sample_weight: Any) -> Any:
    """Weights of rows, where one number stands for equal weights.

    Parameters
    ----------
    sample_weight : array-like, Dask column, number or None

    Returns
    -------
    sample_weight : array-like, Dask column or None
        None for equal weights: only ratios of weights count.

    Raises
    ------
    ValueError
        For a number that is not finite and above 0, and for other values than numbers.
    TypeError
        For a masked array, a Delayed or a Future.
    """
    if isinstance(sample_weight, str):
        raise ValueError(
            f"sample_weight is the text {sample_weight!r}, expected a number, or one "
            "number per row."
        )
    if sample_weight is None:
        return None
    checked_vector(sample_weight, "sample_weight")
    if not isinstance(sample_weight, (Number, np.bool_)):
        _check_numbers(sample_weight)
        return sample_weight
    if isinstance(sample_weight, (Real, np.bool_)):
        if 0 < float(sample_weight) < np.inf:
            return None
    raise ValueError(
        f"sample_weight is {sample_weight!r} for all rows, expected a finite number "
        "above 0, or one number per row."
    )


def _check_numbers(sample_weight: Any) -> None:
    """Refuse weights of this process that are words."""
    if is_dask_collection(sample_weight):
        return
    if np.asarray(sample_weight).dtype.kind not in "OUS":
        return
    try:
        np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"sample_weight must hold real numbers, one per row: {error}"
        ) from error


def _check_real(dtype: np.dtype, name: str) -> None:
    """Refuse a type that NumPy would turn into numbers without a word."""
    if dtype.kind == "c":
        # The words that scikit-learn's users know.
        raise ValueError(
            f"Complex data not supported: {name} has dtype {dtype}, expected real "
            "numbers."
        )
    if dtype.kind in _NOT_REAL:
        raise ValueError(
            f"{name} has dtype {dtype} ({_NOT_REAL[dtype.kind]}), expected real "
            f"numbers; make numbers of it, for example with {name}.astype(float)."
        )


def _refuse_text(X: Any) -> None:
    """Refuse documents in place of rows."""
    found = X
    if is_frame(X):
        found = X.iloc[0] if X.ndim == 1 and len(X) else None
    else:
        while isinstance(found, (list, tuple)) or getattr(found, "ndim", 0) == 1:
            if not len(found):
                return
            found = found.iloc[0] if is_frame(found) else found[0]
        if getattr(X, "ndim", None) == 2:
            return
    is_number = isinstance(found, str) and _is_number(found)
    if isinstance(found, (str, bytes)) and not is_number:
        raise ValueError(
            f"X holds text ({found!r:.40}), expected rows of numbers; count the words "
            "with dask_ma.datasets.vectorize_text, or with a vectorizer of "
            "scikit-learn."
        )


def _is_number(text: str) -> bool:
    """Whether a text can be read as a number, which scikit-learn does."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_frame(frame: Any) -> None:
    """Refuse columns of a pandas frame that hold no numbers, by name."""
    refused = {}
    for place, (name, dtype) in enumerate(frame.dtypes.items()):
        if holds_numbers(dtype):
            continue
        column = frame.iloc[:, place]
        try:
            if getattr(dtype, "kind", "O") in _NOT_REAL:
                raise TypeError(dtype)
            column.to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError):
            refused[name] = dtype
    if refused:
        raise no_numbers(refused, is_lazy=False)


def _check_array(X: Any) -> None:
    """Refuse an array, or nested lists, whose elements are not numbers."""
    try:
        array = X if isinstance(X, np.ndarray) else np.asarray(X)
    except ValueError as error:
        raise ValueError(
            f"X cannot be made an array of shape (n_samples, n_features): {error}"
        ) from error
    _check_real(array.dtype, "X")
    if array.dtype.kind in "OUS" and array.ndim == 2:
        try:
            array.astype(np.float64)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(
                f"X has dtype {array.dtype} and elements that are no numbers: {error}; "
                "encode them, for example with OneHotEncoder."
            ) from error
