"""Values that coordinate descent keeps for each row, and their ties to columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from dask_ma.kernels import Loss, segment_sums
from dask_ma.layouts._column_store import ColumnStore
from dask_ma.layouts._design import Design

NO_CURVATURE = 1e-12  # of the mean square of a column: rounding, not a variance


@dataclass
class LocalRows:
    """Rows of a rank, or all rows, with a value or some values for each.

    Attributes
    ----------
    design : Design
        Their features.
    targets : ndarray of shape (n_rows,)
        Targets as the loss takes them.
    weight : ndarray of float64 of shape (n_rows,) or None
        Weights of the rows; None stands for 1.
    values : ndarray of float64 of shape (n_rows,) or (n_rows, K)
        What is kept for each row.
    offset : float
        What is to be added to all values.
    sums : ndarray of float64 of shape (n_columns,)
        Weighted sums of this rank's columns, where they are needed.
    """

    design: Design
    targets: np.ndarray
    weight: np.ndarray | None
    values: np.ndarray = field(default_factory=lambda: np.zeros(0))
    offset: float = 0.0
    sums: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, design: Design, loss: Loss) -> LocalRows:
        """The rows of a design, of which X is not copied."""
        targets = design.targets()
        if targets is None:
            raise ValueError("coordinate descent needs targets y, but there are none")
        return cls(design, loss.targets(targets), design.weights())

    @property
    def store(self) -> ColumnStore:
        """Columns of this rank."""
        return self.design.store

    @property
    def weight_sum(self) -> float:
        """Sum of the weights of the rows."""
        return float(len(self.targets) if self.weight is None else self.weight.sum())

    def total(self, value: float) -> float:
        """Sum over all rows, from that over the rows here; a collective call."""
        return float(self.design.sum(np.array(value)))

    def weighted(self, values: np.ndarray) -> np.ndarray:
        """Values of the rows times their weights."""
        if self.weight is None:
            return values
        weight = self.weight if values.ndim == 1 else self.weight[:, np.newaxis]
        return weight * values


class RowValues(ABC):
    """How values of the rows stand for the model.

    Parameters
    ----------
    loss : Loss
        Loss of a row.
    fit_intercept : bool
        Whether there is an intercept.

    Attributes
    ----------
    total_weight : float
        Sum of the weights of the rows of all ranks.
    column_means : ndarray of float64 of shape (n_features,)
        Weighted means of the columns; zeros without an intercept.
    """

    def __init__(self, loss: Loss, fit_intercept: bool) -> None:
        self.loss = loss
        self.fit_intercept = fit_intercept
        self.total_weight = 0.0
        self.column_means = np.zeros(0)

    def prepare(self, local: LocalRows) -> np.ndarray:
        """Take sums of the data; the curvatures by coordinate; a collective call."""
        self.total_weight = local.total(local.weight_sum)
        return self._curvatures(self._mean_squares(local))

    def _mean_squares(self, local: LocalRows) -> np.ndarray:
        """Mean squares of the columns, centred if there is an intercept."""
        design, weight = local.design, local.weight
        squares = design.whole_columns(local.store.squares(weight))
        self.column_means = np.zeros(design.n_features)
        if not self.fit_intercept:
            return squares / self.total_weight
        local.sums = local.store.sums(weight)
        self.column_means = design.whole_columns(local.sums) / self.total_weight
        own = local.store.squares(weight, self.column_means)
        centred = np.array(design.whole_columns(own))
        centred[centred <= NO_CURVATURE * squares] = 0.0
        return centred / self.total_weight

    @abstractmethod
    def _curvatures(self, squares: np.ndarray) -> np.ndarray:
        """Upper bounds of the second derivatives, from mean squares of the columns."""

    @abstractmethod
    def model_shape(self, n_features: int) -> tuple[int, ...]:
        """Shape of the model."""

    @abstractmethod
    def centred(self, model: np.ndarray) -> np.ndarray:
        """The model for centred columns of one for columns as they are."""

    @abstractmethod
    def intercept(self, model: np.ndarray) -> np.ndarray:
        """Intercept of a model for columns as they are, of shape () or (K,)."""

    @abstractmethod
    def gradient_sums(self, local: LocalRows, index: np.ndarray) -> np.ndarray:
        """This rank's part of the gradient of the summed loss, for some coordinates."""

    @abstractmethod
    def at_zero(self, local: LocalRows, model: np.ndarray) -> np.ndarray:
        """Values of the rows if all coordinates are zero; a new array."""

    @abstractmethod
    def add_effect(
        self, out: np.ndarray, local: LocalRows, index: np.ndarray, change: np.ndarray
    ) -> float:
        """Add to values what a change of some coordinates does; that to the offset."""

    @abstractmethod
    def predictions(self, local: LocalRows, origin: float) -> np.ndarray:
        """Predictions of this rank's rows, less a number; a new array."""

    @abstractmethod
    def loss_sum(self, local: LocalRows) -> float:
        """Weighted sum of the losses."""


class Residuals(RowValues):
    """Weighted residuals of a quadratic loss, less the offset.

    The model has the shape (n_features,). The intercept is what makes the mean residual
    zero: columns and targets are centred, without making sparse columns dense.

    Attributes
    ----------
    target_mean : float
        Weighted mean of the targets; 0 without an intercept.
    """

    target_mean: float = 0.0

    def prepare(self, local: LocalRows) -> np.ndarray:
        curvatures = super().prepare(local)
        if self.fit_intercept:
            total = local.total(float(local.weighted(local.targets).sum()))
            self.target_mean = total / self.total_weight
        return curvatures

    def _curvatures(self, squares: np.ndarray) -> np.ndarray:
        return squares

    def model_shape(self, n_features: int) -> tuple[int, ...]:
        return (n_features,)

    def centred(self, model: np.ndarray) -> np.ndarray:
        return model

    def intercept(self, model: np.ndarray) -> np.ndarray:
        return np.asarray(self.target_mean - float(self.column_means @ model))

    def gradient_sums(self, local: LocalRows, index: np.ndarray) -> np.ndarray:
        sums = local.store.products(index, local.values)
        if self.fit_intercept:
            sums += local.offset * local.sums[local.store.places(index)]
        return -sums

    def at_zero(self, local: LocalRows, model: np.ndarray) -> np.ndarray:
        return local.weighted(local.targets - self.target_mean)

    def add_effect(
        self, out: np.ndarray, local: LocalRows, index: np.ndarray, change: np.ndarray
    ) -> float:
        local.store.add(out, -change, index, local.weight)
        return float(self.column_means[index] @ change)

    def predictions(self, local: LocalRows, origin: float) -> np.ndarray:
        return np.asarray((local.targets - origin) - self._residuals(local))

    def _residuals(self, local: LocalRows) -> np.ndarray:
        """Residuals ``y_i - x_i b - b_0`` of this rank's rows."""
        values = local.values
        if local.weight is not None:
            values = values / local.weight
        return values + local.offset

    def loss_sum(self, local: LocalRows) -> float:
        residuals = self._residuals(local)
        return float(local.weighted(residuals) @ residuals) / 2


class Margins(RowValues):
    """Values of the linear functions, for losses whose curvature is bounded.

    The model has the shape (n_features + 1,), or (n_features + 1, K) for K outputs,
    with the intercept in the last row. It is updated in every iteration in which it is
    not pending. With an intercept the means are taken from the columns, which are less
    correlated then: the last row is the intercept for centred columns.
    """

    def _curvatures(self, squares: np.ndarray) -> np.ndarray:
        return self.loss.smoothness * np.append(squares, 1.0)

    def model_shape(self, n_features: int) -> tuple[int, ...]:
        K = self.loss.n_outputs
        return (n_features + 1,) if K == 1 else (n_features + 1, K)

    def centred(self, model: np.ndarray) -> np.ndarray:
        model = model.copy()
        model[-1] += self.column_means @ model[:-1]
        return model

    def intercept(self, model: np.ndarray) -> np.ndarray:
        return np.asarray(model[-1] - self.column_means @ model[:-1])

    def gradient_sums(self, local: LocalRows, index: np.ndarray) -> np.ndarray:
        if not self.fit_intercept and local.store.has_few(index):
            return self._sums_of_few(local, index)
        slopes = local.weighted(self.loss.slope(local.targets, local.values))
        if not self.fit_intercept:
            return local.store.products(index, slopes)
        is_feature = index < local.design.n_features
        features = index[is_feature]
        total = slopes.sum(axis=0)
        sums = np.empty((len(index), *slopes.shape[1:]))
        products = local.store.products(features, slopes)
        means = as_column(self.column_means[features], products.ndim)
        sums[is_feature] = products - means * total
        sums[~is_feature] = total
        return sums

    def _sums_of_few(self, local: LocalRows, index: np.ndarray) -> np.ndarray:
        """The same, with the slopes of those rows only that the columns have."""
        entries, rows, bounds = local.store.entries(index)
        if local.weight is not None:
            entries = entries * local.weight[rows]
        slopes = self.loss.slope(local.targets[rows], local.values[rows])
        return segment_sums(as_column(entries, slopes.ndim) * slopes, bounds)

    def at_zero(self, local: LocalRows, model: np.ndarray) -> np.ndarray:
        return np.zeros((len(local.targets), *model.shape[1:]))

    def add_effect(
        self, out: np.ndarray, local: LocalRows, index: np.ndarray, change: np.ndarray
    ) -> float:
        is_feature = index < local.design.n_features
        features, moved = index[is_feature], change[is_feature]
        added = change[~is_feature].sum(axis=0)
        out += added - self.column_means[features] @ moved
        if len(features):
            local.store.add(out, moved, features)
        return 0.0

    def predictions(self, local: LocalRows, origin: float) -> np.ndarray:
        return local.values - origin

    def loss_sum(self, local: LocalRows) -> float:
        losses = self.loss.value(local.targets, local.values)
        return float(local.weighted(losses).sum())


def as_column(values: np.ndarray, ndim: int) -> np.ndarray:
    """Values of parameters in a shape that goes with models of `ndim` dimensions."""
    return values if ndim == 1 else values[:, np.newaxis]
