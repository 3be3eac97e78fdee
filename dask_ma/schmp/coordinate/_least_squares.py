"""Coordinate descent for least squares as a program."""

from __future__ import annotations

import numpy as np

from dask_ma.comm import Group
from dask_ma.schmp.coordinate._column_store import LocalColumns
from dask_ma.schmp.coordinate._coordinate import NO_CURVATURE, CoordinateDescent


class LeastSquares(CoordinateDescent):
    """Coordinate descent for the squared loss ``(y_i - x_i b - b_0)^2 / 2``.

    The model has the shape (n_features,). The intercept is what makes the mean residual
    zero: columns and targets are centred, without making sparse columns dense. Updates
    are exact: each coordinate takes its best value.

    Parameters
    ----------
    schedule, l1, l2, positive, fit_intercept, start
        As in :class:`CoordinateDescent`.

    Attributes
    ----------
    total_weight : float
        Sum of the weights of all rows.
    column_means : ndarray of float64 of shape (n_features,)
        Weighted means of the columns; zeros without an intercept.
    target_mean : float
        Weighted mean of the targets; 0 without an intercept.
    """

    column_means: np.ndarray
    target_mean: float = 0.0

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
        model : ndarray of float64 of shape (n_features,)
        """
        return self._begin((local.n_features,))

    def curvatures(self, local: LocalColumns, group: Group) -> np.ndarray:
        """Mean squares of the columns, centred if there is an intercept.

        Parameters
        ----------
        local : LocalColumns
            Rows of this rank.
        group : Group
            This rank among the others.

        Returns
        -------
        curvatures : ndarray of float64 of shape (n_features,)
        """
        self.column_means = np.zeros(local.n_features)
        squares = self.from_columns(group, local.squares())
        if not self.fit_intercept:
            return squares / self.total_weight
        local.sums = local.column_sums()
        sums = self.from_columns(group, local.sums)
        self.column_means = sums / self.total_weight
        self.target_mean = self.from_rows(group, local.target_sum()) / self.total_weight
        centred = np.array(self.from_columns(group, local.squares(self.column_means)))
        centred[centred <= NO_CURVATURE * squares] = 0.0
        return centred / self.total_weight

    def gradient_sums(self, local: LocalColumns, index: np.ndarray) -> np.ndarray:
        """Minus the products of some columns with the weighted residuals.

        Parameters
        ----------
        local : LocalColumns
            Rows of this rank.
        index : ndarray of int64 of shape (k,)
            Coordinates.

        Returns
        -------
        sums : ndarray of float64 of shape (k,)
        """
        sums = local.products(index, local.values)
        if self.fit_intercept:
            sums += local.offset * local.sums_of(index)
        return -sums

    def values_at_zero(self, local: LocalColumns, model: np.ndarray) -> np.ndarray:
        """Centred targets times the weights.

        Parameters
        ----------
        local : LocalColumns
            Rows of this rank.
        model : ndarray
            Not looked at.

        Returns
        -------
        values : ndarray of float64 of shape (n_rows,)
        """
        return local.weighted(local.y - self.target_mean)

    def add_effect(
        self,
        out: np.ndarray,
        local: LocalColumns,
        index: np.ndarray,
        change: np.ndarray,
    ) -> float:
        """Take some columns, times the weights, from the residuals.

        Parameters
        ----------
        out : ndarray of float64 of shape (n_rows,)
            Weighted residuals, less the offset.
        local : LocalColumns
            Rows of this rank.
        index : ndarray of int64 of shape (k,)
            Coordinates that have changed.
        change : ndarray of float64 of shape (k,)
            Their changes.

        Returns
        -------
        offset : float
            What the means of the columns add to the residuals.
        """
        local.add(out, -change, index, weighted=True)
        return float(self.column_means[index] @ change)

    def residuals(self, local: LocalColumns) -> np.ndarray:
        """Residuals ``y_i - x_i b - b_0`` of this rank's rows.

        Parameters
        ----------
        local : LocalColumns
            Rows of this rank.

        Returns
        -------
        residuals : ndarray of float64 of shape (n_rows,)
        """
        values = local.values
        if local.weight is not None:
            values = values / local.weight
        return values + local.offset

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
        residuals = self.residuals(local)
        return float(local.weighted(residuals) @ residuals) / 2

    def intercept(self, model: np.ndarray) -> float:
        """Intercept that belongs to the coefficients.

        Parameters
        ----------
        model : ndarray of float64 of shape (n_features,)
            The model.

        Returns
        -------
        intercept : float
            0 without an intercept.
        """
        return self.target_mean - float(self.column_means @ model)
