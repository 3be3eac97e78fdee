"""A rank's network as scorers of scikit-learn take estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

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
    classes_ : ndarray of shape (n_classes,) or None
        Sorted labels.
    """

    def __init__(
        self, spec: NetworkSpec, vector: np.ndarray, classes_: np.ndarray | None
    ) -> None:
        self.spec = spec
        self.vector = vector
        self.classes_ = classes_

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def _forward(self, X: Any) -> np.ndarray:
        """Predictions or probabilities."""
        n_classes = None if self.classes_ is None else len(self.classes_)
        return self.spec.forward(self.vector, X, n_classes)


class RankClassifier(ClassifierMixin, RankModel):
    """A network that tells classes or labels apart."""

    def predict(self, X: Any) -> np.ndarray:
        """Labels of the likeliest classes, or whether rows have each label."""
        probabilities = self._forward(X)
        if self.spec.n_codes is not None:
            return codes_of(probabilities, self.spec.n_codes)
        if self.spec.n_targets is not None:
            return (probabilities > 0.5).astype(int)
        labels: np.ndarray = np.asarray(self.classes_)[probabilities.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities."""
        return self._forward(X)


class RankRegressor(RegressorMixin, RankModel):
    """A network that predicts numbers."""

    def predict(self, X: Any) -> np.ndarray:
        """Predictions."""
        return self._forward(X)
