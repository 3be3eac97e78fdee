"""Least squares row by row without all the equations, or without negative factors.

Conjugate gradients need products with the elements of a row only, not its matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dask_ma.kernels._factorization import (
    NormalEquations,
    RowBatch,
    products_of_rows,
)

_TINY = 1e-30
_ROWS = 2048  # whose matrices are worked on at a time
_SWEEPS = 100
_STILL = 1e-6  # part of the factors below which a sweep counts as the last


class RowDescent(NamedTuple):
    """Conjugate gradients of many rows at once.

    Attributes
    ----------
    factors, residuals, directions : ndarray of shape (n_rows, f)
        The residual of a row is ``b - (A + ridge) x``.
    pulls : ndarray of shape (n_rows, f)
        The vectors `b`.
    """

    factors: np.ndarray
    residuals: np.ndarray
    directions: np.ndarray
    pulls: np.ndarray


def add_pulls(
    pulls: np.ndarray,
    products: np.ndarray,
    constants: np.ndarray,
    batches: Sequence[RowBatch],
    near: np.ndarray,
    factors: np.ndarray,
    offsets: np.ndarray | None = None,
) -> None:
    """Add what the elements of rows say of their vectors `b`, `A x` and constants.

    Parameters
    ----------
    pulls, products : ndarray of shape (n_rows, f)
        Changed in place.
    constants : ndarray of float64 of shape (n_rows,)
        Changed in place.
    batches : sequence of RowBatch
        The elements.
    near : ndarray of shape (n_columns, f)
        Factors of the other side.
    factors : ndarray of shape (n_rows, f)
        Factors `x` of the rows.
    offsets : ndarray of shape (n_columns,), default=None
        Taken from the values of each column.
    """
    for rows, columns, values, curvatures, weights in batches:
        gathered = _gathered(near, columns)
        if offsets is not None:
            values = values - offsets[columns]
        pulled = weights * values
        pulls[rows] += products_of_rows(pulled[:, np.newaxis, :], gathered)[:, 0]
        constants[rows] += np.einsum("bl,bl->b", pulled, values, dtype=np.float64)
        products[rows] += _product(gathered, curvatures, factors[rows])


def add_products(
    products: np.ndarray,
    batches: Sequence[RowBatch],
    near: np.ndarray,
    directions: np.ndarray,
) -> None:
    """Add ``A p`` of the elements of rows, in place.

    Parameters
    ----------
    products : ndarray of shape (n_rows, f)
        Changed in place.
    batches : sequence of RowBatch
        The elements.
    near : ndarray of shape (n_columns, f)
        Factors of the other side.
    directions : ndarray of shape (n_rows, f)
        The vectors `p`.
    """
    for rows, columns, _, curvatures, _ in batches:
        gathered = _gathered(near, columns)
        products[rows] += _product(gathered, curvatures, directions[rows])


def begin_rows(
    factors: np.ndarray,
    pulls: np.ndarray,
    products: np.ndarray,
    ridges: np.ndarray,
    gram: np.ndarray | None = None,
) -> RowDescent:
    """Conjugate gradients before their first step.

    Parameters
    ----------
    factors : ndarray of shape (n_rows, f)
        Where they begin; not changed.
    pulls, products : ndarray of shape (n_rows, f)
        Of all elements; see :func:`add_pulls`.
    ridges : ndarray of shape (n_rows,)
        Penalty of each row.
    gram : ndarray of shape (f, f), default=None
        Added to the matrix of each row.

    Returns
    -------
    descent : RowDescent
    """
    residuals = pulls - _with_rest(products, factors, ridges, gram)
    return RowDescent(factors.copy(), residuals, residuals.copy(), pulls)


def descend_rows(
    descent: RowDescent,
    products: np.ndarray,
    ridges: np.ndarray,
    gram: np.ndarray | None = None,
) -> None:
    """One step of conjugate gradients of each row, in place.

    Parameters
    ----------
    descent : RowDescent
    products : ndarray of shape (n_rows, f)
        ``A p`` of all elements, for the directions of `descent`.
    ridges, gram
        As in :func:`begin_rows`.
    """
    x, r, p, _ = descent
    images = _with_rest(products, p, ridges, gram)
    before = np.einsum("nf,nf->n", r, r)
    step = before / np.maximum(np.einsum("nf,nf->n", p, images), _TINY)
    # A row that has arrived stays: its residuals are rounding errors.
    step[before <= _TINY] = 0
    x += step[:, np.newaxis] * p
    r -= step[:, np.newaxis] * images
    after = np.einsum("nf,nf->n", r, r)
    p *= (after / np.maximum(before, _TINY))[:, np.newaxis]
    p += r


def descend_batch(
    batch: RowBatch,
    near: np.ndarray,
    factors: np.ndarray,
    ridges: np.ndarray,
    n_steps: int,
    gram: np.ndarray | None = None,
    offsets: np.ndarray | None = None,
) -> tuple[RowDescent, np.ndarray]:
    """All steps for rows whose elements are all here, which are gathered once.

    Parameters
    ----------
    batch : RowBatch
    near : ndarray of shape (n_columns, f)
        Factors of the other side.
    factors : ndarray of shape (n_rows, f)
        Factors of all rows, those of the batch among them; not changed.
    ridges : ndarray of shape (n_rows,)
    n_steps : int
    gram : ndarray of shape (f, f), default=None
    offsets : ndarray of shape (n_columns,), default=None

    Returns
    -------
    descent : RowDescent
        Of the rows of the batch.
    constants : ndarray of float64 of shape (b,)
    """
    rows, columns, values, curvatures, weights = batch
    gathered = _gathered(near, columns)
    if offsets is not None:
        values = values - offsets[columns]
    pulled, own = weights * values, ridges[rows]
    constants = np.einsum("bl,bl->b", pulled, values, dtype=np.float64)
    pulls = products_of_rows(pulled[:, np.newaxis, :], gathered)[:, 0]
    begun = factors[rows]
    products = _product(gathered, curvatures, begun)
    descent = begin_rows(begun, pulls, products, own, gram)
    for _ in range(n_steps):
        products = _product(gathered, curvatures, descent.directions)
        descend_rows(descent, products, own, gram)
    return descent, constants


def losses_of_descent(
    descent: RowDescent, constants: np.ndarray, ridges: np.ndarray
) -> np.ndarray:
    """Loss of each row where its descent has come to.

    Parameters
    ----------
    descent : RowDescent
    constants : ndarray of float64 of shape (n_rows,)
    ridges : ndarray of shape (n_rows,)

    Returns
    -------
    losses : ndarray of float64 of shape (n_rows,)
        Without penalties; not negative.
    """
    x = descent.factors.astype(np.float64)
    # x' A x = x' (b - r) - ridge x' x
    inner = np.einsum("nf,nf->n", x, descent.pulls + descent.residuals)
    return np.maximum(constants - inner - ridges * np.einsum("nf,nf->n", x, x), 0)


def _gathered(near: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Factors of the elements of rows."""
    found = near.take(columns.ravel(), axis=0)
    return found.reshape(*columns.shape, near.shape[1])


def _product(gathered: np.ndarray, curvatures: np.ndarray, x: np.ndarray) -> np.ndarray:
    """``A x`` of rows, by their elements."""
    values = products_of_rows(gathered, x[:, :, np.newaxis])[:, :, 0]
    values *= curvatures
    return products_of_rows(values[:, np.newaxis, :], gathered)[:, 0]


def _with_rest(
    products: np.ndarray, x: np.ndarray, ridges: np.ndarray, gram: np.ndarray | None
) -> np.ndarray:
    """``A x`` with the penalty, and with what all columns add."""
    found = products + ridges.astype(x.dtype)[:, np.newaxis] * x
    if gram is not None:
        found += x @ gram.astype(x.dtype)
    return found


def solve_rows_nonnegative(
    equations: NormalEquations,
    ridges: np.ndarray,
    start: np.ndarray,
    is_free: np.ndarray,
    gram: np.ndarray | None = None,
) -> np.ndarray:
    """Factors from 0 on that minimise the loss of each row and ``ridge * x' x``.

    By descent along one factor after the other, which never raises the loss.

    Parameters
    ----------
    equations : NormalEquations
    ridges : ndarray of shape (n_rows,)
        Penalty of each row, not negative.
    start : ndarray of shape (n_rows, f)
        Where to begin; from 0 on but for free factors. Not changed.
    is_free : ndarray of bool of shape (f,)
        Factors that may be negative.
    gram : ndarray of shape (f, f), default=None
        Added to each matrix.

    Returns
    -------
    factors : ndarray of shape (n_rows, f)
        Zeros for rows without elements.
    """
    factors = start.astype(equations.vectors.dtype)
    has_elements = equations.vectors.any(axis=1)
    factors[~has_elements] = 0
    rows = np.flatnonzero(has_elements)
    for first in range(0, len(rows), _ROWS):
        own = rows[first : first + _ROWS]
        matrices = equations.matrices[own]
        if gram is not None:
            matrices += gram.astype(matrices.dtype)
        diagonal = np.arange(len(is_free))
        matrices[:, diagonal, diagonal] += ridges[own, np.newaxis].astype(
            matrices.dtype
        )
        _descend_nonnegative(matrices, equations.vectors[own], own, factors, is_free)
    return factors


def _descend_nonnegative(
    matrices: np.ndarray,
    vectors: np.ndarray,
    rows: np.ndarray,
    factors: np.ndarray,
    is_free: np.ndarray,
) -> None:
    """Sweeps over the factors of some rows until they stand still, in place."""
    for _ in range(_SWEEPS):
        x = factors[rows]
        before = x.copy()
        rests = vectors - products_of_rows(matrices, x[:, :, np.newaxis])[:, :, 0]
        for place in range(len(is_free)):
            scale = matrices[:, place, place]
            moved = x[:, place] + np.divide(
                rests[:, place], scale, out=np.zeros_like(scale), where=scale > _TINY
            )
            if not is_free[place]:
                np.maximum(moved, 0, out=moved)
            rests -= (moved - x[:, place])[:, np.newaxis] * matrices[:, place]
            x[:, place] = moved
        factors[rows] = x
        moving = np.abs(x - before).max(axis=1) > _STILL * np.abs(x).max(axis=1)
        if not moving.any():
            return
        matrices, vectors, rows = matrices[moving], vectors[moving], rows[moving]
