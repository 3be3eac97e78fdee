"""The start of a run: the matrix of a model, or one that a fit before has kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.engine import State
from dask_ma.kernels import subtract_product
from dask_ma.sfb.exchange._outputs import share_of
from dask_ma.sfb.model._factors import checked
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import FactorModel, view_of
from dask_ma.sfb.model._source import Source

_CHUNK = 2**18  # elements at a time


class Start(NamedTuple):
    """Where a run begins.

    Attributes
    ----------
    values : ndarray of shape (n_features, n_outputs)
        The matrix, transposed; or this rank's outputs, where they are shared out.
    intercept : ndarray of shape (n_outputs,) or None
    iteration : int
        Iterations made.
    n_passes : int
        Passes made.
    n_outputs : int or None
        Outputs of all ranks; None where `values` has them all.
    is_plain : bool
        Whether the values are those of the matrix, and no dual sums, whatever the model
        is.
    """

    values: np.ndarray
    intercept: np.ndarray | None
    iteration: int
    n_passes: int
    n_outputs: int | None = None
    is_plain: bool = False


def arrays_of(state: State, group: Group) -> dict[str, Any]:
    """What a snapshot of an engine holds with a place for each output; collective.

    Parameters
    ----------
    state : State
    group : Group
        This rank.

    Returns
    -------
    arrays : dict
        Of all outputs, or of those of this rank; then `n_outputs` counts all.
    """
    if "values" in state.shared:
        return dict(state.shared)
    if state.own is not None:
        return state.own
    # There were other ranks, with other shares.
    parts: list[dict[str, Any]] = []
    start = 0
    for piece in state.pieces(group):
        own = share_of(group.rank, group.size, piece["n_outputs"])
        stop = start + piece["values"].shape[-1]
        inside = slice(max(own.start - start, 0), max(min(own.stop, stop) - start, 0))
        parts.append(
            {
                name: array[..., inside]
                for name, array in piece.items()
                if isinstance(array, np.ndarray)
            }
        )
        start = stop
    found = {
        name: np.concatenate([part[name] for part in parts], axis=-1)
        for name in parts[0]
    }
    return {**dict.fromkeys(piece), **found, "n_outputs": start}


def first_matrix(
    model: FactorModel,
    n_features: int,
    start: Start | None,
    shown: ParameterMatrix | None,
    outputs_of: Callable[[int], slice],
    dtype: str | None = None,
) -> tuple[ParameterMatrix, int]:
    """The matrix that a rank starts from, checked, and the outputs of all ranks.

    Parameters
    ----------
    model : FactorModel
        Asked even where another rank shows the matrix of the process: it may keep what
        it finds out on the way.
    n_features : int
        Columns of X.
    start : Start or None
        What to go on from; None asks the model.
    shown : ParameterMatrix or None
        That of the process, if another rank has made it.
    outputs_of : callable
        Which of so many outputs the rank has.
    dtype : str or None, default=None
        Type of a matrix that the model is asked for; None leaves it as it is, unless
        there are no kernels for that.

    Returns
    -------
    matrix : ParameterMatrix
    n_outputs : int
    """
    if start is not None:
        n_outputs = start.n_outputs or start.values.shape[1]
        if shown is not None:
            return shown.share(start.intercept), n_outputs
        view = None if start.is_plain else view_of(model)
        values, intercept = start.values.T, start.intercept
        return ParameterMatrix(values, intercept, model.prox, view), n_outputs
    whole = checked_matrix(model, n_features)
    matrix, intercept = whole[outputs_of(len(whole))], None
    matrix = as_type(matrix, dtype or usable_type(matrix), type(model).__name__)
    if model.fit_intercept:
        intercept = np.zeros(len(matrix), dtype=matrix.dtype)
    if shown is not None:
        return shown.share(intercept), len(whole)
    found = ParameterMatrix(matrix, intercept, model.prox, view_of(model))
    return found, len(whole)


def checked_matrix(model: FactorModel, n_features: int) -> np.ndarray:
    """The matrix that a model starts from.

    Parameters
    ----------
    model : FactorModel
    n_features : int
        Columns of X.

    Returns
    -------
    matrix : ndarray of float of shape (n_outputs, n_columns)

    Raises
    ------
    ValueError
        If it is none, or has elements that are not finite.
    """
    matrix, name = np.asarray(model.initial_matrix(n_features)), type(model).__name__
    if matrix.ndim != 2 or not matrix.size:
        raise ValueError(
            f"{name}.initial_matrix returned shape {matrix.shape}, expected two "
            "dimensions, of which none is 0"
        )
    if not np.issubdtype(matrix.dtype, np.floating):
        matrix = matrix.astype(np.float64)
    if not is_finite(matrix):
        raise ValueError(f"{name}.initial_matrix returned elements not finite")
    return matrix


def matrix_type(dtype: Any, model: FactorModel) -> str | None:
    """Name of the type of a matrix, checked; None for that of the initial matrix."""
    if dtype is None:
        return None
    if isinstance(dtype, str) and dtype == "auto":
        # Where gaps are bounds, what has been rounded away would be claimed as reached.
        return "float32" if view_of(model) is None else "float64"
    with suppress(TypeError, ValueError, SyntaxError):
        if np.dtype(dtype) in (np.float32, np.float64):
            return np.dtype(dtype).name
    raise ValueError(
        f"dtype must be 'auto', 'float32', 'float64' or None, got {dtype!r}"
    )


def usable_type(matrix: np.ndarray) -> str:
    """The type that kernels have for a matrix: float32 or float64, in native order."""
    return "float32" if matrix.itemsize <= np.float32().itemsize else "float64"


def as_type(matrix: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """A finite matrix in another type, whose range it must be within."""
    if matrix.dtype == dtype:
        return matrix
    with np.errstate(over="ignore"):  # what overflows is refused
        found = matrix.astype(dtype)
    if not is_finite(found):
        cure = '; pass dtype="float64"' if dtype == "float32" else ""
        raise ValueError(
            f"{name}.initial_matrix returned elements beyond the range of {dtype}{cure}"
        )
    return found


def is_finite(matrix: np.ndarray) -> bool:
    """Whether all elements are."""
    as_it_lies = matrix.T if matrix.flags.f_contiguous else matrix
    return all(np.isfinite(part).all() for part in row_parts(as_it_lies))


def rebuilt_sums(
    model: FactorModel,
    matrix: ParameterMatrix,
    source: Source,
    group: Group,
    *,
    n_features: int,
    is_lost: bool,
) -> np.ndarray:
    """Dual sums of the dual variables that there are; a collective call.

    Parameters
    ----------
    model : FactorModel
        One with a dual operator.
    matrix : ParameterMatrix
        As it was; not changed.
    source : Source
        What the rank goes over.
    group : Group
        This rank.
    n_features : int
        Columns of X.
    is_lost : bool
        Whether the dual variables of this rank are to be set anew.

    Returns
    -------
    values : ndarray of shape (n_columns, n_outputs)
        The same on all ranks.
    """
    where = f"{type(model).__name__}.rebuild, on rank {group.rank}"
    n_rows = int(allreduce(group, np.array(source.n_units)))
    total = np.zeros(matrix.shape[::-1], dtype=matrix.dtype)
    for batch in source.read(matrix.shape[0]):
        found = model.rebuild(matrix if is_lost else None, batch)
        u, v = checked(found, batch.n_rows, matrix.shape, where)
        subtract_product(total, u, v, -1 / n_rows)
    total = allreduce(group, total)
    return total + checked_matrix(model, n_features).T.astype(total.dtype)


def row_parts(matrix: np.ndarray) -> Iterator[np.ndarray]:
    """Some rows of a matrix at a time."""
    size = max(1, _CHUNK // max(1, matrix.shape[1]))
    for start in range(0, len(matrix), size):
        yield matrix[start : start + size]
