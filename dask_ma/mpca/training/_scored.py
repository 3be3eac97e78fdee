"""A rank's network as scorers of scikit-learn take estimators."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from dask_ma.linear import UsedColumns
from dask_ma.mpca.networks._columns import places_of, used_part
from dask_ma.mpca.networks._network import NetworkSpec
from dask_ma.mpca.training._validation import codes_of


class RankModel(BaseEstimator):
    """A network as scorers of scikit-learn take estimators.

    Parameters
    ----------
    spec : NetworkSpec
        Of the network.
    vector : ndarray of shape (n_values,)
        Its values.
    columns : UsedColumns
        The columns that it has inputs for.
    classes_ : ndarray of shape (n_classes,) or None
        Sorted labels.
    is_flat : bool
        Whether rows and predictions have one dimension each, and not the form in which
        users give them.
    """

    def __init__(
        self,
        spec: NetworkSpec,
        vector: np.ndarray,
        columns: UsedColumns,
        classes_: np.ndarray | None,
        is_flat: bool,
    ) -> None:
        self.spec = spec
        self.vector = vector
        self.columns = columns
        self.classes_ = classes_
        self.is_flat = is_flat

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def _forward(self, X: Any) -> np.ndarray:
        """Predictions or probabilities."""
        n_classes = None if self.classes_ is None else len(self.classes_)
        spec, rows = (self.spec, X) if self.is_flat else self.spec.taking(X)
        if self.columns.numbers is not None:
            rows = used_part(rows, self.columns, places_of(self.columns))
        return spec.forward(self.vector, rows, n_classes)

    def _shaped(self, predicted: np.ndarray, *by_class: int) -> np.ndarray:
        """Predictions in the shape of targets, maybe for each class."""
        shape = self.spec.target_shape
        if by_class and shape is None:
            shape = (self.spec.n_targets or 1,)
        n_values = len(predicted) * prod([*by_class, *(shape or ())])
        if self.is_flat or shape is None or predicted.size != n_values:
            return predicted
        return predicted.reshape(len(predicted), *by_class, *shape)


class RankClassifier(ClassifierMixin, RankModel):
    """A network that tells classes or labels apart."""

    def predict(self, X: Any) -> np.ndarray:
        """Labels of the likeliest classes, or whether rows have each label."""
        probabilities = self._forward(X)
        if self.spec.n_codes is not None:
            return self._shaped(codes_of(probabilities, self.spec.n_codes))
        if self.spec.n_targets is not None:
            return self._shaped((probabilities > 0.5).astype(int))
        labels: np.ndarray = np.asarray(self.classes_)[probabilities.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities."""
        n_codes = self.spec.n_codes
        return self._shaped(self._forward(X), *(() if n_codes is None else (n_codes,)))


class RankRegressor(RegressorMixin, RankModel):
    """A network that predicts numbers."""

    def predict(self, X: Any) -> np.ndarray:
        """Predictions."""
        return self._shaped(self._forward(X))
