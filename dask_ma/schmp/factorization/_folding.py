"""New users and items, and reasons of scores, with all others fixed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.kernels import (
    NormalEquations,
    add_elements,
    row_batches,
    solve_rows,
    solve_rows_nonnegative,
)
from dask_ma.schmp.factorization._model import FactorModel

_MATRICES = 2**27  # bytes of normal equations at a time


class Explanation(NamedTuple):
    """Why a user has the score of an item.

    Attributes
    ----------
    score : float
        What the vector that follows from the user's ratings predicts, not clipped.
    baseline : float
        The part of the mean and the item's bias; 0 with implicit feedback.
    items : ndarray of shape (m,)
        Ids of items that the user has rated, those first that matter most.
    contributions : ndarray of float64 of shape (m,)
        What each adds to the baseline; those of all rated items make up the score.
    """

    score: float
    baseline: float
    items: np.ndarray
    contributions: np.ndarray


def fold_in(
    model: FactorModel, ratings: sparse.csr_array, weights: np.ndarray, side: int
) -> np.ndarray:
    """Factors of new users or items from their ratings, the others being fixed.

    Parameters
    ----------
    model : FactorModel
    ratings : csr_array of shape (n, n_others)
        Values as the fit gets them.
    weights : ndarray of shape (n_stored,)
    side : int
        0 for users, 1 for items.

    Returns
    -------
    factors : ndarray of shape (n, n_columns)
        Some rows at a time, so that there are never the equations of all.
    """
    n_columns, itemsize = model.params.n_columns, model.users.itemsize
    step = max(1, _MATRICES // (n_columns**2 * itemsize))
    units, model = model.params.units(model.scale)[side], model.standardized()
    starts = range(0, max(1, ratings.shape[0]), step)
    found = [
        _fold_some(
            model,
            ratings[start : start + step],
            weights[slice(*ratings.indptr[[start, _stop(start + step, ratings)]])],
            side,
        )
        for start in starts
    ]
    return np.concatenate(found) * units.astype(model.users.dtype)


def _stop(row: int, ratings: sparse.csr_array) -> int:
    """A row, or the end."""
    return min(row, ratings.shape[0])


def _fold_some(
    model: FactorModel, ratings: sparse.csr_array, weights: np.ndarray, side: int
) -> np.ndarray:
    """Factors of some rows."""
    p, others = model.params, (model.users, model.items)[1 - side]
    dtype, ones = others.dtype, p.fixed_columns[side]
    columns = np.array([c for c in range(p.n_columns) if c != ones])
    values, curvatures, pulls = _elements(
        model, ratings.data.astype(dtype), weights.astype(dtype)
    )
    matrix = sparse.csr_array(
        (values, ratings.indices, ratings.indptr), shape=ratings.shape
    )
    equations = NormalEquations.zeros(ratings.shape[0], len(columns), dtype)
    batches = row_batches(matrix, curvatures, pulls)
    offsets = None if ones is None else others[:, ones]
    kept = np.ascontiguousarray(others[:, columns])
    add_elements(equations, batches, kept, offsets)
    rows = np.repeat(np.arange(ratings.shape[0]), np.diff(ratings.indptr))
    totals = np.bincount(rows, weights, ratings.shape[0])
    ridges = p.alpha * (totals if p.weighted_alpha else np.ones(len(totals)))
    factors = np.repeat(model.strangers()[side], ratings.shape[0], axis=0)
    gram = _gram(model, side)
    if p.positive:
        is_free = columns < p.first_factor
        start = factors[:, columns]
        found = solve_rows_nonnegative(equations, ridges, start, is_free, gram)
    else:
        found = solve_rows(equations, ridges, gram)
    factors[:, columns] = found
    return factors


def contributions(
    model: FactorModel, rated: np.ndarray, values: np.ndarray, item: int
) -> tuple[float, np.ndarray]:
    """Baseline of an item's score, and what each rating of a user adds to it.

    Parameters
    ----------
    model : FactorModel
    rated : ndarray of int of shape (m,)
        Items that the user has rated.
    values : ndarray of shape (m,)
        Ratings.
    item : int
        The item whose score it is.

    Returns
    -------
    baseline : float
    contributions : ndarray of float64 of shape (m,)
    """
    p, ones = model.params, model.params.fixed_columns[0]
    model = model.standardized()
    items = model.items.astype(np.float64)
    columns = np.array([c for c in range(p.n_columns) if c != ones])
    near, target = items[np.ix_(rated, columns)], items[item, columns]
    numbers, curvatures, pulls = _elements(
        model, values.astype(np.float64), np.ones(len(values))
    )
    baseline = model.mean
    if ones is not None:
        numbers = numbers - items[rated, ones]
        baseline += model.scale * float(items[item, ones])
    gram = _gram(model, 0)
    matrix = near.T @ (curvatures[:, np.newaxis] * near)
    matrix += p.alpha * (len(rated) if p.weighted_alpha else 1) * np.eye(len(columns))
    matrix = matrix if gram is None else matrix + gram
    kept = np.ones(len(columns), dtype=bool)
    if p.positive:  # factors that are held at 0 pass nothing on
        vector = near.T @ (pulls * numbers)
        equations = NormalEquations(matrix[np.newaxis], vector[np.newaxis], np.zeros(1))
        is_free, start = columns < p.first_factor, np.zeros((1, len(columns)))
        found = solve_rows_nonnegative(equations, np.zeros(1), start, is_free)[0]
        kept = is_free | (found > 0)
    part = np.linalg.lstsq(matrix[np.ix_(kept, kept)], target[kept], rcond=None)[0]
    return baseline, model.scale * pulls * numbers * (near[:, kept] @ part)


def _elements(
    model: FactorModel, values: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, curvatures and pulls of ratings; see :class:`RowBatch`."""
    p, dtype = model.params, values.dtype
    if p.feedback == "explicit":
        centered = values - dtype.type(model.mean)
        return centered / dtype.type(model.scale), weights, weights
    more = dtype.type(p.confidence) * np.abs(values) * weights
    return (values > 0).astype(dtype), more, 1 + more


def _gram(model: FactorModel, side: int) -> np.ndarray | None:
    """What pairs that are not stored add to the equations of a side."""
    if model.params.feedback == "explicit":
        return None
    double = (model.users, model.items)[1 - side].astype(np.float64)
    gram: np.ndarray = double.T @ double
    return gram
