"""Checks of one block, with messages that say which block and which rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from dask_ma.data._blocks import (
    as_rows,
    csr_of,
    frame_to_array,
    holds_numbers,
    is_frame,
    is_sparse,
    take_rows,
    words_in_block,
)
from dask_ma.data._mapped import CachedRows

__all__: list[str] = []

_ROWS_SHOWN = 5


class RawBlock(NamedTuple):
    """Rows of X, y and weights that belong together, not yet converted."""

    X: Any
    y: Any
    sample_weight: Any


def open_block(source: Any, rows: int, index: int) -> RawBlock:
    """Check that the parts of one block fit together; `rows` is its expected length."""
    X, y, sample_weight = source
    if isinstance(X, CachedRows):
        X = X.open()
    refuse_masked(X, f"Block {index} of X")
    if scipy.sparse.issparse(X):
        check_pointers(X, f"Block {index} of X")
    X = as_rows(X)
    if X.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {X.ndim}D array instead: block {index} of X has "
            f"shape {X.shape}, expected (n_rows, n_features)."
        )
    if X.shape[0] != rows:
        raise ValueError(
            f"Block {index} of X has {X.shape[0]} rows where the metadata of X say "
            f"{rows}. Call X.compute_chunk_sizes(), or correct the chunks where X is "
            "built."
        )
    y = _open_column(y, "y", rows, index)
    return RawBlock(X, y, _open_column(sample_weight, "sample_weight", rows, index))


def _open_column(column: Any, name: str, rows: int, index: int) -> np.ndarray | None:
    """An array of y or weights, as long as its block of X; y may have columns."""
    if column is None:
        return None
    refuse_masked(column, f"Block {index} of {name}")
    array = frame_to_array(column) if is_frame(column) else np.asarray(column)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 and (name != "y" or array.ndim != 2):
        raise not_a_column(name, array, index)
    if array.shape[0] != rows:
        raise ValueError(
            f"Block {index} of X has {rows} rows and block {index} of {name} has "
            f"{array.shape[0]}; give {name} the same partitions as X."
        )
    return array


def not_a_column(name: str, array: np.ndarray, index: int) -> ValueError:
    """Error of a block of y or weights that has more than one value per row."""
    return ValueError(
        f"{name} should be a 1d array, got an array of shape {array.shape} instead in "
        f"block {index}."
    )


def refuse_masked(values: Any, name: str) -> None:
    """Refuse a masked array, whose mask would be lost."""
    if np.ma.isMaskedArray(values):
        raise TypeError(
            f"{name} is a masked array, expected plain numbers; fill it with its "
            "method filled, or with dask.array.ma.filled."
        )


def check_pointers(X: Any, name: str) -> None:
    """Refuse a SciPy matrix that cannot even be cut: reading it could crash."""
    if X.format != "csr":
        check_sparse(X, name)  # it is going to be converted
        return
    pointers = X.indptr
    n_stored = min(len(X.indices), len(X.data))
    if len(pointers) != X.shape[0] + 1 or pointers[0] != 0:
        raise _broken(name, "the row pointers do not begin with 0, or are too few")
    if (pointers[1:] < pointers[:-1]).any() or pointers[-1] > n_stored:
        raise _broken(name, "the row pointers fall, or go beyond the stored elements")


def check_sparse(X: Any, name: str) -> None:
    """Refuse a SciPy matrix whose indices lie outside of it.

    Two passes over the indices, a small part of a step; code that is compiled reads
    and writes beyond its arrays else.
    """
    if X.format == "csr":
        check_pointers(X, name)
        _check_columns_of_elements(X, name)
        return
    try:
        if X.format in ("csc", "bsr"):
            arrays = X.data, X.indices, X.indptr
            # A copy of the head alone: the check may change what it looks at.
            type(X)(arrays, shape=X.shape).check_format(full_check=True)
        elif X.format == "coo":
            type(X)((X.data, X.coords), shape=X.shape)
    except ValueError as error:
        raise _broken(name, str(error)) from error


def _check_columns_of_elements(X: Any, name: str) -> None:
    """Refuse a CSR with elements beside it; SciPy's own check would copy many."""
    used = X.indices[: X.indptr[-1]]
    # As numbers without a sign the negative ones are the largest: one pass tells both.
    # Columns may be more than an index has numbers.
    largest = _as_unsigned(used).max(initial=0)
    first_wrong = min(X.shape[1], 2 ** (8 * used.itemsize - 1))
    if used.size and largest >= first_wrong:
        what = ">= 0" if used.min() < 0 else f"< {X.shape[1]}"
        raise _broken(name, f"indices must be {what}")


def _as_unsigned(whole: np.ndarray) -> np.ndarray:
    """The same bytes read as numbers without a sign."""
    return whole.view(np.dtype(f"{whole.dtype.byteorder}u{whole.dtype.itemsize}"))


def _broken(name: str, what: str) -> ValueError:
    """Error of a sparse matrix that is none."""
    return ValueError(
        f"{name} is not a valid sparse matrix: {what}. Correct it where it is built; "
        "its method check_format(full_check=True) tells whether it is valid."
    )


def without_duplicates(X: Any) -> Any:
    """A CSR that stores each element once and in order: `X`, or a copy.

    Its flags are not believed: whoever sets the arrays of a matrix can forget them.
    """
    head = csr_of((X.data, X.indices, X.indptr), X.shape, type(X))
    if head.has_canonical_format:
        return X
    # Sums of whole numbers may be beyond those of few bytes.
    head = head.astype(np.float64) if head.dtype.kind in "iu" else head.copy()
    head.sum_duplicates()
    return head


def cut_rows(source: Any, start: int, stop: int, rows: int, index: int) -> RawBlock:
    """Rows of a block that move to another worker (runs where the block is)."""
    X, y, sample_weight = open_block(source, rows, index)
    return RawBlock(
        take_rows(X, start, stop),
        None if y is None else y[start:stop],
        None if sample_weight is None else sample_weight[start:stop],
    )


def target_numbers(y: Any, whose: str) -> np.ndarray:
    """Targets of a regression as float64.

    Parameters
    ----------
    y : array-like
        Numbers, also as objects such as Decimals, or texts of numbers.
    whose : str
        What has them, for the message.

    Returns
    -------
    ndarray of float64

    Raises
    ------
    ValueError
        For what holds no numbers.
    """
    y = np.asarray(y)
    try:
        if y.dtype.kind in "cmMV":
            raise TypeError("NumPy would make numbers of these without a word")
        return np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"y must hold numbers, but that of {whose} has dtype {y.dtype}"
        ) from None


def check_columns(X: Any, index: int, n_features: int) -> None:
    """Refuse a block of another width."""
    if X.shape[1] != n_features:
        raise ValueError(
            f"Block {index} of X has {X.shape[1]} columns, expected {n_features}; all "
            "blocks need the same columns."
        )


def check_numbers(X: Any, index: int) -> None:
    """Refuse a block that does not hold real numbers."""
    if is_frame(X):
        if not all(map(holds_numbers, X.dtypes)):
            raise words_in_block(X, index)
    elif not holds_numbers(X.dtype):
        raise ValueError(
            f"Block {index} of X has dtype {X.dtype}, expected real numbers; convert X "
            "with astype(float)."
        )


def check_kind(kinds: dict[bool, int], X: Any, index: int, accept_sparse: bool) -> None:
    """Refuse a mixture of dense and sparse blocks, and sparse ones if not accepted."""
    sparse = is_sparse(X)
    if sparse and not accept_sparse:
        raise TypeError(
            "Sparse data was passed, but dense data is required: block "
            f"{index} of X is sparse. Convert it with X.map_blocks(lambda b: "
            "b.toarray())."
        )
    kinds.setdefault(sparse, index)
    if len(kinds) == 2:
        raise TypeError(
            f"X mixes kinds of blocks: block {kinds[False]} is dense and block "
            f"{kinds[True]} is sparse. Give all blocks one kind with X.map_blocks."
        )


def check_finite(values: Any, name: str, index: int, first: int | None) -> bool:
    """Refuse NaN and infinity; return whether the sum of squares is finite, too.

    `first` is the global number of the first row.
    """
    data = values.data if is_sparse(values) else values
    if data.dtype.kind != "f" or data.size == 0:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        # One pass without a temporary; only a suspicious sum costs a second look.
        if np.isfinite(_sum_of_all(data)):
            return bool(data.flags.forc)
        if np.isfinite(data).all():
            return False
    rows = _rows_not_finite(values)
    kind = "NaN" if np.isnan(data).any() else "infinity"
    raise ValueError(
        f"Input {name} contains {kind} in block {index}, {_row_text(rows, first)}. "
        "Remove or impute these rows first."
    )


def _sum_of_all(data: np.ndarray) -> Any:
    """A sum that is not finite if an element is not."""
    if not data.flags.forc:
        return data.sum()
    flat = data.ravel(order="K")
    return flat @ flat  # by BLAS, in half the time of a plain sum


def check_size(values: Any, name: str, index: int, what: str) -> None:
    """Refuse finite numbers whose squares are not finite in their type.

    Parameters
    ----------
    values : ndarray or CSR
    name : str
        What they are, "X" or "y".
    index : int
        Block of the input.
    what : str
        What is to be scaled.

    Raises
    ------
    ValueError
        It names the block and the largest value.
    """
    # Every solver multiplies features with features, or residuals with residuals.
    flat = values.data if hasattr(values, "indptr") else values.ravel()
    with np.errstate(over="ignore"):
        # One pass by BLAS; only a suspicious sum costs a second look.
        if not len(flat) or np.isfinite(flat @ flat):
            return
        largest = max(float(flat.max()), -float(flat.min()))
        if np.isfinite(flat.dtype.type(largest) ** 2):
            return
    raise ValueError(
        f"Input {name} holds values up to {largest:.3g} in block {index}, whose "
        f"squares are beyond the range of {flat.dtype}; scale {what}, for example with "
        "StandardScaler."
    )


def _rows_not_finite(values: Any) -> np.ndarray:
    """Numbers of the rows that hold NaN or infinity."""
    if is_sparse(values):
        positions = np.flatnonzero(~np.isfinite(values.data))
        return np.unique(np.searchsorted(values.indptr, positions, side="right") - 1)
    bad = ~np.isfinite(values)
    return np.flatnonzero(bad.any(axis=1) if bad.ndim == 2 else bad)


def _row_text(rows: np.ndarray, first: int | None) -> str:
    """Which rows, by their global number where it is known."""
    where = "of the block" if first is None else "of the whole input"
    shown = ", ".join(str(row + (first or 0)) for row in rows[:_ROWS_SHOWN])
    more = f" and {len(rows) - _ROWS_SHOWN} more" if len(rows) > _ROWS_SHOWN else ""
    return f"row{'s' if len(rows) > 1 else ''} {shown}{more} {where}"


def check_weights(weights: np.ndarray, index: int, first: int | None) -> None:
    """Refuse weights that are not finite or are negative."""
    if weights.dtype.kind not in "biuf":
        raise ValueError(
            f"Block {index} of sample_weight has dtype {weights.dtype}, expected real "
            "numbers."
        )
    check_finite(weights, "sample_weight", index, first)
    negative = np.flatnonzero(weights < 0)
    if len(negative):
        raise ValueError(
            f"Negative values in sample_weight, in block {index}, "
            f"{_row_text(negative, first)}; weights must be 0 or more."
        )
