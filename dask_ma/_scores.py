"""Sums and scores of predictions, worked out block by block."""

from __future__ import annotations

from typing import Any, NamedTuple

import dask
import numpy as np

from dask_ma.data import as_arrays, is_dask_collection, target_numbers


class ColumnSums(NamedTuple):
    """Sums of the columns of an array, and the number of its rows."""

    sum: np.ndarray
    n_rows: int


def blockwise_sum(columns: Any) -> ColumnSums:
    """Sums of columns, worked out block by block for a Dask array.

    Its chunks may have unknown sizes.
    """
    if not is_dask_collection(columns):
        return ColumnSums(columns.sum(axis=0), len(columns))
    parts = [_column_sums(block) for block in columns.to_delayed().ravel()]
    sums = dask.compute(*parts)
    return ColumnSums(sum(s.sum for s in sums), sum(s.n_rows for s in sums))


@dask.delayed(pure=False)
def _column_sums(block: np.ndarray) -> ColumnSums:
    """Sums of one block."""
    return ColumnSums(block.sum(axis=0), len(block))


def blockwise_accuracy(predicted: Any, y: Any, sample_weight: Any) -> float:
    """Weighted fraction of equal labels, worked out block by block."""
    predicted, y, weight = _columns(predicted, y, sample_weight)
    # Several columns are indicators or codes, of which a fit makes numbers.
    right = predicted == (_numbers(y) if y.ndim == 2 else y)
    if right.ndim == 2:
        right = right.all(axis=1)
    right, total = dask.compute((right * weight).sum(), weight.sum())
    _check_total(total)
    return float(right / total)


def accuracy_of_places(
    predicted: Any, y: Any, sample_weight: Any, *, no_code: int | None = None
) -> float:
    """Weighted fraction of right values, of all rows or of rows that are all right.

    Parameters
    ----------
    predicted, y : ndarray or dask.array of shape (n_rows, n_places)
    sample_weight : array-like, dask.array or None
    no_code : int or None, default=None
        Value of y in places that do not count; None counts rows of which all is right.

    Returns
    -------
    accuracy : float
    """
    if no_code is None:
        return blockwise_accuracy(predicted, y, sample_weight)
    predicted, y, weight = _columns(predicted, y, sample_weight)
    y = _numbers(y)
    counts = y != no_code
    right = ((predicted == y) & counts).sum(axis=1)
    right, total = dask.compute(
        (right * weight).sum(), (counts.sum(axis=1) * weight).sum()
    )
    _check_total(total)
    return float(right / total)


def blockwise_r2(predicted: Any, y: Any, sample_weight: Any) -> float:
    """Weighted coefficient of determination, worked out block by block.

    Of several targets it is the mean.
    """
    predicted, y, weight = _columns(predicted, y, sample_weight)
    y = _numbers(y)
    if y.ndim == 2:
        weight = weight[:, None]
    total, first = dask.compute(weight.sum(), (weight * y).sum(axis=0))
    _check_total(total)
    deviations = (weight * (y - first / total) ** 2).sum(axis=0)
    residuals = (weight * (y - predicted) ** 2).sum(axis=0)
    residuals, deviations = map(np.atleast_1d, dask.compute(residuals, deviations))
    varies = deviations != 0
    parts = residuals / np.where(varies, deviations, 1.0)
    # As scikit-learn's r2_score.
    return float(np.where(varies, 1 - parts, residuals == 0).mean())


def _check_total(total: float) -> None:
    """Refuse weights that no mean can be made with."""
    if not 0 < total < np.inf:
        raise ValueError(
            f"sample_weight adds up to {total} over all rows, expected a finite sum "
            "above 0"
        )


def _numbers(y: Any) -> Any:
    """Targets of a dask.array as numbers, as a fit makes them."""
    if y.dtype.kind in "biuf":
        return y
    like = np.empty((0,) * y.ndim)
    return y.map_blocks(target_numbers, "a block", dtype=like.dtype, meta=like)


def _columns(predicted: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Predictions, labels and weights as dask.arrays with the same chunks."""
    import dask.array as da  # loads numba, which not every session needs

    # Nothing can be laid beside chunks of unknown lengths; all are few values per row.
    predicted, y, sample_weight = _with_known_lengths(predicted, y, sample_weight)
    if not is_dask_collection(predicted):
        predicted = da.from_array(predicted, chunks=-1)
    if sample_weight is None:
        weight = da.ones(len(predicted), chunks=(predicted.chunks[0],))
    else:
        rows = predicted if predicted.ndim == 1 else predicted[:, 0]
        weight = _as_column(sample_weight, rows, "sample_weight")
    return predicted, _as_column(y, predicted, "y"), weight


def _with_known_lengths(*columns: Any) -> list[Any]:
    """The same columns; those of unknown length computed, all at once."""
    known = list(columns)
    lazy = [place for place, c in enumerate(columns) if is_dask_collection(c)]
    # Together, so that the rows of several Series belong together.
    arrays = as_arrays([columns[place] for place in lazy])
    for place, array in zip(lazy, arrays, strict=True):
        known[place] = array
    unknown = [place for place in lazy if np.isnan(sum(known[place].chunks[0]))]
    computed = dask.compute(*(known[place] for place in unknown))
    for place, values in zip(unknown, computed, strict=True):
        known[place] = values
    return known


def _as_column(values: Any, like: Any, name: str) -> Any:
    """An array in the chunks of another, which are known."""
    import dask.array as da

    if not is_dask_collection(values):
        values = da.from_array(np.asarray(values), chunks=-1)
    if values.ndim == 2 and values.shape[1] == 1 and like.ndim == 1:
        values = values[:, 0]
    if values.shape != like.shape:
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: X has "
            f"{like.shape[0]} rows, {name} has the shape {values.shape}"
        )
    return values.rechunk(like.chunks)
