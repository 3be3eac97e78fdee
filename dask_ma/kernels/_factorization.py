"""Factors of a sparse matrix: least squares row by row, and steps of SGD.

Rows of one side of the matrix, say users, are fitted to the factors of the other side.
Rows of about the same length are worked on together, so that sums over their elements
are products of small matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import linalg, sparse

_CAPACITY = 4000  # elements of a batch of rows: their factors fit into the cache
_LONGER = 1.25  # how much longer the longest row of a batch is than the shortest
_SHORT = 8  # rows up to this length go together in any case
_ROWS_TOGETHER = 4096  # whose steps follow each other: their factors fit into the cache
_TINY = 1e-30
_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_MIX_MORE = np.uint64(0x94D049BB133111EB)


def hashed_uniform(seed: int, ids: np.ndarray, n_columns: int) -> np.ndarray:
    """Random numbers that belong to ids, whoever asks for them and in what order.

    Parameters
    ----------
    seed : int
        Not negative.
    ids : ndarray of int64 of shape (n,)
    n_columns : int

    Returns
    -------
    numbers : ndarray of float64 of shape (n, n_columns)
        From -1 on, below 1.
    """
    with np.errstate(over="ignore"):
        state = (np.asarray(ids).astype(np.uint64) + np.uint64(1)) * _MIX[1]
        state ^= np.uint64(seed) * _MIX_MORE
        columns = np.arange(1, n_columns + 1, dtype=np.uint64) * _MIX[0]
        mixed = _mixed(_mixed(state)[:, np.newaxis] + columns)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


def _mixed(state: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64."""
    state = (state ^ (state >> np.uint64(30))) * _MIX[1]
    state = (state ^ (state >> np.uint64(27))) * _MIX_MORE
    return state ^ (state >> np.uint64(31))


# Least squares ----------------------------------------------------------------------


class RowBatch(NamedTuple):
    """Rows of about the same length.

    Attributes
    ----------
    rows : ndarray of intp of shape (b,)
        Different rows.
    columns : ndarray of int of shape (b, length)
        Columns of their elements; 0 behind the end of a row.
    values, curvatures, pulls : ndarray of shape (b, length)
        An element stands for ``pull * (value - prediction) ** 2``, of which the square
        of the prediction has the weight `curvature`; both weights are 0 behind the end
        of a row. They differ where all elements that are not stored count, too, and are
        one array where they do not.
    """

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    curvatures: np.ndarray
    pulls: np.ndarray


def row_batches(
    matrix: sparse.csr_array,
    curvatures: np.ndarray,
    pulls: np.ndarray,
    capacity: int = _CAPACITY,
) -> list[RowBatch]:
    """Sort rows by length and cut them into batches.

    Parameters
    ----------
    matrix : csr_array of shape (n_rows, n_columns)
        Values; explicit zeros are elements. Places may be named twice.
    curvatures, pulls : ndarray of shape (n_stored,)
        Weights of the elements; see :class:`RowBatch`.
    capacity : int, default=4000
        Elements of a batch, unless one row has more.

    Returns
    -------
    batches : list of RowBatch
        All rows that have elements.
    """
    lengths = np.diff(matrix.indptr)
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    batches, start = [], 0
    while start < len(order):
        stop = start + _n_together(lengths[order[start : start + capacity]], capacity)
        rows = order[start:stop]
        places = np.arange(lengths[rows[-1]])
        inside = places < lengths[rows][:, np.newaxis]
        elements = np.where(inside, matrix.indptr[rows][:, np.newaxis] + places, 0)
        columns, values = matrix.indices[elements], matrix.data[elements]
        columns[~inside] = 0
        bent = np.where(inside, curvatures[elements], 0).astype(values.dtype)
        pulled = bent
        if pulls is not curvatures:
            pulled = np.where(inside, pulls[elements], 0).astype(values.dtype)
        batches.append(RowBatch(rows.astype(np.intp), columns, values, bent, pulled))
        start = stop
    return batches


def _n_together(lengths: np.ndarray, capacity: int) -> int:
    """How many of some rows, the shortest first, make up a batch."""
    longest = max(_SHORT, int(_LONGER * lengths[0]))
    fits = (np.arange(1, len(lengths) + 1) * lengths <= capacity) & (lengths <= longest)
    return max(1, int(np.count_nonzero(fits)))


class NormalEquations(NamedTuple):
    """Sums over the elements of rows, from which their factors follow.

    Attributes
    ----------
    matrices : ndarray of shape (n_rows, f, f)
    vectors : ndarray of shape (n_rows, f)
    constants : ndarray of float64 of shape (n_rows,)
        A row with the factors `x` has the loss ``x' A x - 2 b' x + c``.
    """

    matrices: np.ndarray
    vectors: np.ndarray
    constants: np.ndarray

    @classmethod
    def zeros(cls, n_rows: int, n_factors: int, dtype: np.dtype) -> NormalEquations:
        """Of rows without elements."""
        return cls(
            np.zeros((n_rows, n_factors, n_factors), dtype=dtype),
            np.zeros((n_rows, n_factors), dtype=dtype),
            np.zeros(n_rows),
        )


def add_elements(
    equations: NormalEquations,
    batches: Sequence[RowBatch],
    factors: np.ndarray,
    offsets: np.ndarray | None = None,
) -> None:
    """Add the elements of rows to their equations, in place.

    Parameters
    ----------
    equations : NormalEquations
        Of all rows.
    batches : sequence of RowBatch
        The elements.
    factors : ndarray of shape (n_columns, f)
        Factors of the other side.
    offsets : ndarray of shape (n_columns,), default=None
        Taken from the values of each column; None takes nothing.
    """
    matrices, vectors, constants = equations
    n_factors = factors.shape[1]
    for rows, columns, values, curvatures, pulls in batches:
        near = factors.take(columns.ravel(), axis=0).reshape(*columns.shape, n_factors)
        if offsets is not None:
            values = values - offsets[columns]
        pulled = pulls * values
        weighted = near * curvatures[:, :, np.newaxis]
        matrices[rows] += products_of_rows(weighted.transpose(0, 2, 1), near)
        vectors[rows] += products_of_rows(pulled[:, np.newaxis, :], near)[:, 0]
        constants[rows] += np.einsum("bl,bl->b", pulled, values, dtype=np.float64)


def products_of_rows(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Products of the matrices of many rows.

    Parameters
    ----------
    left : ndarray of shape (n_rows, k, m)
    right : ndarray of shape (n_rows, m, n)

    Returns
    -------
    products : ndarray of shape (n_rows, k, n)
        NaN where they are not defined, without a warning.
    """
    # OpenBLAS now and then leaves the flag of an invalid operation behind though all
    # numbers are finite. What is not finite is noticed by the objective.
    with np.errstate(invalid="ignore"):
        products: np.ndarray = np.matmul(left, right)
    return products


def solve_rows(
    equations: NormalEquations, ridges: np.ndarray, gram: np.ndarray | None = None
) -> np.ndarray:
    """Factors that minimise the loss of each row and ``ridge * x' x``.

    Parameters
    ----------
    equations : NormalEquations
    ridges : ndarray of shape (n_rows,)
        Penalty of each row, not negative.
    gram : ndarray of shape (f, f), default=None
        Added to each matrix.

    Returns
    -------
    factors : ndarray of shape (n_rows, f)
        Zeros for rows without elements; the smallest ones where the matrix is singular.
    """
    matrices, vectors = equations.matrices, equations.vectors
    n_factors = vectors.shape[1]
    factors = np.zeros_like(vectors)
    (solve,) = linalg.get_lapack_funcs(("posv",), (matrices, vectors))
    for row in np.flatnonzero(vectors.any(axis=1)):
        matrix = matrices[row] if gram is None else matrices[row] + gram
        matrix = matrix.astype(vectors.dtype)
        matrix.reshape(-1)[:: n_factors + 1] += ridges[row]
        _, found, failed = solve(matrix, vectors[row])
        if failed:
            found = linalg.lstsq(matrix, vectors[row])[0]
        factors[row] = found
    return factors


def losses_of_rows(
    equations: NormalEquations, factors: np.ndarray, gram: np.ndarray | None = None
) -> np.ndarray:
    """Loss of each row with some factors.

    Parameters
    ----------
    equations : NormalEquations
    factors : ndarray of shape (n_rows, f)
    gram : ndarray of shape (f, f), default=None
        Added to each matrix.

    Returns
    -------
    losses : ndarray of float64 of shape (n_rows,)
        Without penalties; not negative.
    """
    images = products_of_rows(equations.matrices, factors[:, :, np.newaxis])[:, :, 0]
    x = factors.astype(np.float64)
    if gram is not None:
        images = images + x @ gram
    quadratic = np.einsum("nf,nf->n", x, images - 2 * equations.vectors)
    return np.maximum(quadratic + equations.constants, 0)


# Stochastic gradients ---------------------------------------------------------------


class StepBatch(NamedTuple):
    """Elements that make one step together, sorted by their rows.

    Attributes
    ----------
    rows, columns : ndarray of intp of shape (b,)
        Of each element.
    values, weights : ndarray of shape (b,)
    own_rows, own_columns : ndarray of intp
        The different ones among them.
    to_rows : csr_array of shape (own_rows, n_columns)
        Elements of each row; its data are overwritten.
    to_columns : csr_array of shape (own_columns, n_rows)
        Elements of each column; its data are overwritten.
    by_column : ndarray of intp of shape (b,)
        Order of the elements in `to_columns`.
    row_weights, column_weights : ndarray
        Sums of the weights.
    """

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    own_rows: np.ndarray
    own_columns: np.ndarray
    to_rows: sparse.csr_array
    to_columns: sparse.csr_array
    by_column: np.ndarray
    row_weights: np.ndarray
    column_weights: np.ndarray


def step_batches(
    rows: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    weights: np.ndarray,
    shape: tuple[int, int],
    size: int,
    rng: np.random.Generator,
) -> list[StepBatch]:
    """Deal elements out over batches at random, those of some thousand rows together.

    Parameters
    ----------
    rows, columns : ndarray of intp of shape (n,)
    values, weights : ndarray of shape (n,)
    shape : tuple of int
        Numbers of rows and columns.
    size : int
        Elements of a batch, at least 1.
    rng : numpy.random.Generator
        For the order.

    Returns
    -------
    batches : list of StepBatch
    """
    order = rng.permutation(len(values))
    if shape[0] > _ROWS_TOGETHER:
        order = order[np.argsort(rows[order] // _ROWS_TOGETHER, kind="stable")]
    batches = []
    for start in range(0, len(order), size):
        picked = order[start : start + size]
        picked = picked[np.argsort(rows[picked], kind="stable")]
        batches.append(
            _step_batch(
                rows[picked], columns[picked], values[picked], weights[picked], shape
            )
        )
    return batches


def _step_batch(
    rows: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    weights: np.ndarray,
    shape: tuple[int, int],
) -> StepBatch:
    """One batch, whose elements are sorted by row."""
    by_column = np.argsort(columns, kind="stable")
    own_rows, first_of_row = np.unique(rows, return_index=True)
    own_columns, first_of_column = np.unique(columns[by_column], return_index=True)
    n = len(values)
    to_rows = sparse.csr_array(
        (
            np.zeros(n, values.dtype),
            columns.astype(np.int32),
            np.append(first_of_row, n),
        ),
        shape=(len(own_rows), shape[1]),
    )
    to_columns = sparse.csr_array(
        (
            np.zeros(n, values.dtype),
            rows[by_column].astype(np.int32),
            np.append(first_of_column, n),
        ),
        shape=(len(own_columns), shape[0]),
    )
    return StepBatch(
        rows,
        columns,
        values,
        weights,
        own_rows,
        own_columns,
        to_rows,
        to_columns,
        by_column,
        np.add.reduceat(weights, first_of_row),
        np.add.reduceat(weights[by_column], first_of_column),
    )


class Side(NamedTuple):
    """Factors of the rows, or of the columns, and what their steps need.

    Attributes
    ----------
    factors : ndarray of shape (n, f)
        Changed in place.
    squares : ndarray of shape (n,)
        Sums of the mean squares of past gradients, changed in place; from above 0.
    alphas : ndarray of shape (n,)
        Penalty of a row for each unit of weight.
    fixed : int or None
        Column of `factors` that stays as it is.
    n_signed : int or None
        Columns from this one on are kept from falling below 0; None keeps none.
    """

    factors: np.ndarray
    squares: np.ndarray
    alphas: np.ndarray
    fixed: int | None
    n_signed: int | None = None


def sgd_step(batch: StepBatch, left: Side, right: Side, eta: float) -> float:
    """One step of AdaGrad, with a rate for each row and each column.

    Parameters
    ----------
    batch : StepBatch
    left, right : Side
        Rows and columns.
    eta : float
        Length of a first step.

    Returns
    -------
    loss : float
        Weighted sum of squared errors before the step.
    """
    errors = batch.values - np.einsum(
        "nf,nf->n",
        left.factors.take(batch.rows, axis=0),
        right.factors.take(batch.columns, axis=0),
    )
    pulls = errors * batch.weights
    batch.to_rows.data = pulls
    batch.to_columns.data = pulls[batch.by_column]
    # Both gradients at the same point, before either side moves.
    up_left = batch.to_rows @ right.factors
    up_right = batch.to_columns @ left.factors
    _step(left, batch.own_rows, up_left, batch.row_weights, eta)
    _step(right, batch.own_columns, up_right, batch.column_weights, eta)
    return float(pulls @ errors)


def _step(
    side: Side, own: np.ndarray, up: np.ndarray, weights: np.ndarray, eta: float
) -> None:
    """Move some rows of a side uphill."""
    factors = side.factors[own]
    up -= (side.alphas[own] * weights)[:, np.newaxis] * factors
    if side.fixed is not None:
        up[:, side.fixed] = 0
    side.squares[own] += np.einsum("nf,nf->n", up, up) / up.shape[1]
    rates = eta / np.sqrt(np.maximum(side.squares[own], _TINY))
    factors += rates[:, np.newaxis].astype(up.dtype) * up
    if side.n_signed is not None:
        np.maximum(factors[:, side.n_signed :], 0, out=factors[:, side.n_signed :])
    side.factors[own] = factors


# The best of many -------------------------------------------------------------------


def best_columns(scores: np.ndarray, n: int, n_together: int = 64) -> np.ndarray:
    """Columns of the largest scores of each row, the best first.

    Parameters
    ----------
    scores : ndarray of shape (n_rows, n_columns)
        Without NaN.
    n : int
        How many, at least 1; if there are fewer columns, all.
    n_together : int, default=64
        Columns of which only the largest is looked at first.

    Returns
    -------
    columns : ndarray of intp of shape (n_rows, min(n, n_columns))
        Of equal scores, the first column is the better one.
    """
    n_rows, n_columns = scores.shape
    n = min(n, n_columns)
    if not n:
        return np.zeros((n_rows, 0), dtype=np.intp)
    least = _nth_of_some(scores, n, n_together)
    rows, columns = np.divmod(np.flatnonzero(scores >= least), n_columns)
    order = np.lexsort((-scores[rows, columns], rows))
    first = np.searchsorted(rows, np.arange(n_rows))
    best: np.ndarray = columns[order][first[:, np.newaxis] + np.arange(n)]
    return best


def _nth_of_some(scores: np.ndarray, n: int, n_together: int) -> np.ndarray:
    """What at least `n` scores of a row reach, and not many more, as a column."""
    n_rows, n_columns = scores.shape
    n_groups = n_columns // n_together
    if n_groups >= 4 * n:
        # Groups of columns far from each other: maxima of whole vectors are quick.
        inside = scores[:, : n_groups * n_together]
        scores = inside.reshape(n_rows, n_together, n_groups).max(axis=1)
    place = scores.shape[1] - n
    return np.partition(scores, place, axis=1)[:, place, np.newaxis]
