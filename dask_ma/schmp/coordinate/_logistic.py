"""Coordinate descent for logistic regression as a program."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import Group
from dask_ma.schmp.coordinate._column_store import LocalColumns
from dask_ma.schmp.coordinate._coordinate import (
    NO_CURVATURE,
    CoordinateDescent,
    as_column,
)
from dask_ma.schmp.runtime._program import Schedule


class Logistic(CoordinateDescent):
    """Coordinate descent for the logistic and the multinomial loss.

    The model has the shape (n_features + 1,) for two classes, and otherwise
    (n_features + 1, n_classes), with the intercept in the last row. It is updated in
    every iteration in which it is not pending. With an intercept the means are taken
    from the columns, which are less correlated then: the last row is the intercept for
    centred columns, and :meth:`intercept` gives the one for columns as they are.

    An update minimises a quadratic upper bound: the second derivative of the loss is at
    most 1/4, and 1/2 for all classes together. Coefficients of the second class come
    out for two classes; y holds the codes 0 to ``n_classes - 1``.

    Parameters
    ----------
    schedule, l1, l2, positive, fit_intercept, start
        As in :class:`CoordinateDescent`.
    n_classes : int, default=2
        Number of classes, at least 2.
    """

    def __init__(
        self,
        schedule: Schedule,
        l1: np.ndarray,
        l2: np.ndarray,
        *,
        n_classes: int = 2,
        positive: bool = False,
        fit_intercept: bool = True,
        start: np.ndarray | None = None,
    ) -> None:
        super().__init__(
            schedule,
            l1,
            l2,
            positive=positive,
            fit_intercept=fit_intercept,
            start=start,
        )
        if n_classes < 2:
            raise ValueError(f"n_classes must be at least 2, got {n_classes}")
        self.n_classes = n_classes
        self.column_means = np.zeros(len(self.l1))

    def initial_model(self, local: LocalColumns, group: Group) -> np.ndarray:
        """Model to begin with.

        Parameters
        ----------
        local : LocalColumns
            Rows of this rank.
        group : Group
            This rank among the others.

        Returns
        -------
        model : ndarray of float64 of shape (n_features + 1, ...)
        """
        n = local.n_features + 1
        model = self._begin((n,) if self.n_classes == 2 else (n, self.n_classes))
        model[-1] += self.column_means @ model[:-1]
        return model

    def curvatures(self, local: LocalColumns, group: Group) -> np.ndarray:
        """Mean squares of the columns, and 1 for the intercept, times the bound.

        The columns are centred if there is an intercept.

        Parameters
        ----------
        local : LocalColumns
            Rows of this rank.
        group : Group
            This rank among the others.

        Returns
        -------
        curvatures : ndarray of float64 of shape (n_features + 1,)
        """
        bound = 0.25 if self.n_classes == 2 else 0.5
        squares = self.from_columns(group, local.squares())
        if self.fit_intercept:
            sums = self.from_columns(group, local.column_sums())
            self.column_means = sums / self.total_weight
            plain, centred = squares, local.squares(self.column_means)
            squares = np.array(self.from_columns(group, centred))
            squares[squares <= NO_CURVATURE * plain] = 0.0
        squares = squares / self.total_weight
        return bound * np.append(squares, 1.0)

    def gradient_sums(self, local: LocalColumns, index: np.ndarray) -> np.ndarray:
        """Products of some columns with the weighted slopes of the loss.

        Parameters
        ----------
        local : LocalColumns
            Rows of this rank.
        index : ndarray of int64 of shape (k,)
            Coordinates.

        Returns
        -------
        sums : ndarray of float64 of shape (k,) or (k, n_classes)
        """
        if not self.fit_intercept:
            return local.products_of(index, self._slopes)
        is_feature = index < local.n_features
        features = index[is_feature]
        slopes = local.weighted(self._slopes(local.values, local.codes))
        total = slopes.sum(axis=0)
        sums = np.empty((len(index), *slopes.shape[1:]))
        products = local.products(features, slopes)
        means = as_column(self.column_means[features], products.ndim)
        sums[is_feature] = products - means * total
        sums[~is_feature] = total
        return sums

    def values_at_zero(self, local: LocalColumns, model: np.ndarray) -> np.ndarray:
        """Margins of zero.

        Parameters
        ----------
        local : LocalColumns
            Rows of this rank.
        model : ndarray of float64 of shape (n_features + 1, ...)
            Gives the shape.

        Returns
        -------
        values : ndarray of float64 of shape (n_rows, ...)
        """
        if local.codes is None:
            local.codes = local.y.astype(np.intp)
        return np.zeros((len(local.y), *model.shape[1:]))

    def add_effect(
        self,
        out: np.ndarray,
        local: LocalColumns,
        index: np.ndarray,
        change: np.ndarray,
    ) -> float:
        """Add some columns, and the intercept, to the margins.

        Parameters
        ----------
        out : ndarray of float64 of shape (n_rows, ...)
            Margins.
        local : LocalColumns
            Rows of this rank.
        index : ndarray of int64 of shape (k,)
            Coordinates that have changed.
        change : ndarray of float64 of shape (k, ...)
            Their changes.

        Returns
        -------
        offset : float
            0; margins have no offset.
        """
        is_feature = index < local.n_features
        features, moved = index[is_feature], change[is_feature]
        added = change[~is_feature].sum(axis=0)
        out += added - self.column_means[features] @ moved
        if len(features):
            local.add(out, moved, features)
        return 0.0

    def loss_sum(self, local: LocalColumns) -> float:
        """Weighted sum of the losses.

        Parameters
        ----------
        local : LocalColumns
            Rows of this rank.

        Returns
        -------
        loss_sum : float
        """
        margins, codes = local.values, local.codes
        if self.n_classes == 2:
            losses = np.logaddexp(0.0, np.where(codes == 1, -margins, margins))
        elif len(margins):
            own = margins[np.arange(len(margins)), codes]
            losses = np.logaddexp.reduce(margins, axis=1) - own
        else:
            losses = np.zeros(0)
        return float(local.weighted(losses).sum())

    def intercept(self, model: np.ndarray) -> np.ndarray:
        """Intercept for columns as they are.

        Parameters
        ----------
        model : ndarray of float64 of shape (n_features + 1, ...)
            The model.

        Returns
        -------
        intercept : ndarray of float64 of shape () or (n_classes,)
        """
        return np.asarray(model[-1] - self.column_means @ model[:-1])

    def _slopes(self, margins: np.ndarray, codes: Any) -> np.ndarray:
        """Derivatives of the loss by the margins."""
        if self.n_classes == 2:
            return _sigmoid(margins) - codes
        slopes = np.exp(margins - margins.max(axis=1, keepdims=True, initial=-np.inf))
        slopes /= slopes.sum(axis=1, keepdims=True)
        slopes[np.arange(len(slopes)), codes] -= 1.0
        return np.asarray(slopes)


def _sigmoid(margins: np.ndarray) -> np.ndarray:
    """Logistic function, without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * margins)))
