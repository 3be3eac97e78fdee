"""Sums over the rows of all ranks: the centre, and class sums."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce
from dask_ma.sfb.logistic._class_sums import (
    ClassSums,
    FleetingClassSums,
    find_class_sums,
)
from dask_ma.sfb.model._model import Batch
from dask_ma.sfb.model._rows import row_batches
from dask_ma.sfb.model._source import OwnRows
from dask_ma.supervised import Problem

_ROUNDED = 4.0  # times the error of a mean that is to be expected, and its rounding


class Totals(NamedTuple):
    """Sums over the rows of all ranks.

    Attributes
    ----------
    centre : ndarray of shape (n_features,) or None
        What is taken off dense rows before they are looked at: their weighted mean, so
        that features and intercept have nothing in common. None leaves rows as they
        are: sparse ones, which would not stay sparse, and those without an intercept,
        in which a shift would not show.
    class_weights : ndarray of shape (n_classes,)
        Sums of the weights of the rows of the classes.
    class_sums : ClassSums, FleetingClassSums or None
        Their weighted sums of centred rows, of this rank's share of the features; None
        where nobody needs them.
    mean_square : float
        Mean of the squared lengths of the centred rows.
    feature_scales : ndarray of shape (n_features,)
        Roots of the weighted mean squares of the centred features, above 0.
    is_sparse : bool
        Whether rows are.
    """

    centre: np.ndarray | None
    class_weights: np.ndarray
    class_sums: ClassSums | FleetingClassSums | None
    mean_square: float
    feature_scales: np.ndarray
    is_sparse: bool

    def centred(self, X: Any) -> Any:
        """Rows less the centre.

        Parameters
        ----------
        X : ndarray or CSR of shape (n_rows, n_features)

        Returns
        -------
        X : ndarray or CSR of shape (n_rows, n_features)
            Those given, where there is no centre.
        """
        return X if self.centre is None else X - self.centre

    def centred_batch(self, batch: Batch) -> Any:
        """Rows of a batch less the centre; in place where they are there for it alone.

        Parameters
        ----------
        batch : Batch
            Not to be looked at afterwards.

        Returns
        -------
        X : ndarray or CSR of shape (n_rows, n_features)
        """
        X, centre = batch.X, self.centre
        is_own = centre is not None and isinstance(batch, OwnRows)
        if not is_own or X.dtype != np.result_type(X, centre):
            return self.centred(X)
        X -= centre
        return X

    def to_centred(self, values: np.ndarray, intercept: Any) -> Any:
        """Intercepts for centred rows, from those for rows as they are.

        Parameters
        ----------
        values : ndarray of shape (n_features, n_outputs)
            The coefficients, transposed.
        intercept : ndarray of shape (n_outputs,) or None

        Returns
        -------
        intercept : ndarray of shape (n_outputs,) or None
        """
        return intercept if self.centre is None else intercept + self.centre @ values

    def from_centred(self, values: np.ndarray, intercept: Any) -> Any:
        """The other way round.

        Parameters
        ----------
        values : ndarray of shape (n_features, n_outputs)
        intercept : ndarray of shape (n_outputs,) or None

        Returns
        -------
        intercept : ndarray of shape (n_outputs,) or None
        """
        return intercept if self.centre is None else intercept - self.centre @ values


def add_up(
    problem: Problem,
    group: Group,
    *,
    is_centred: bool,
    centre: Any = None,
    with_class_sums: bool = True,
) -> Totals:
    """Add up the rows of all ranks; a collective call.

    Parameters
    ----------
    problem : Problem
        Rows and classes.
    group : Group
        This rank.
    is_centred : bool
        Whether dense rows are centred.
    centre : ndarray of shape (n_features,), default=None
        Centre of the fit that is gone on with; None finds it.
    with_class_sums : bool, default=True
        Whether sums of classes are needed: they are as large as the model.

    Returns
    -------
    totals : Totals
    """
    shard = problem.shard
    # A rank without rows does not know what the others have.
    is_sparse = bool(allreduce(group, np.array(float(shard.is_sparse))))
    if not is_centred or is_sparse:
        centre = None
    elif centre is None:
        centre = _mean(problem, group)
    n_classes = max(2, problem.n_problems)
    counts, square = np.zeros(n_classes), 0.0
    squares = np.zeros(shard.n_features)
    for _, batch in row_batches(shard, problem.n_problems):
        X = batch.X if centre is None else batch.X - centre
        counts += np.bincount(batch.y, batch.sample_weight, minlength=n_classes)
        elements = X.data if sparse.issparse(X) else X
        square += float(np.vdot(elements, elements))
        squares += _column_squares(X, batch.sample_weight)
    found = allreduce(group, [counts, squares, np.array(square)])
    scales = np.sqrt(found[1] / problem.total_rows)
    if centre is not None:
        scales[scales <= _rounding(centre, problem.total_rows)] = 0.0
    scales[scales == 0] = 1.0
    sums = None
    if with_class_sums:
        sums = find_class_sums(problem, group, centre, is_sparse=is_sparse)
    mean_square = float(found[2]) / problem.total_rows
    return Totals(centre, found[0], sums, mean_square, scales, is_sparse)


def _mean(problem: Problem, group: Group) -> np.ndarray:
    """Weighted mean of the rows of all ranks; a collective call."""
    total = np.zeros(problem.shard.n_features)
    for _, batch in row_batches(problem.shard, problem.n_problems):
        # Beside one of the rows, nothing is added up, and so nothing rounded, of a
        # column that is the same in all of them.
        row, weight = batch.X[0].astype(np.float64), batch.sample_weight
        rest = batch.X - row
        if weight is None:
            total += len(rest) * row + rest.sum(axis=0)
        else:
            weight = weight.astype(np.float64)
            total += weight.sum() * row + weight @ rest
    mean = allreduce(group, total) / problem.total_rows
    return np.asarray(mean, dtype=problem.dtype)


def _rounding(centre: np.ndarray, n_rows: float) -> np.ndarray:
    """What rounding leaves of the columns that are the same in all rows, at most."""
    # Such a column is no feature, and in units of what is left it would outweigh all.
    summed = np.sqrt(n_rows) * np.finfo(np.float64).eps
    share = _ROUNDED * max(float(np.finfo(centre.dtype).eps), summed)
    return np.asarray(share * np.abs(centre))


def _column_squares(X: Any, weight: np.ndarray | None) -> np.ndarray:
    """Weighted sums of the squares of the columns."""
    if sparse.issparse(X):
        squared = X.multiply(X)
        weight = np.ones(X.shape[0]) if weight is None else weight
        return np.asarray(squared.T @ weight.astype(np.float64)).ravel()
    if weight is None:
        return np.einsum("ij,ij->j", X, X, dtype=np.float64)
    return np.einsum("i,ij,ij->j", weight, X, X, dtype=np.float64)
