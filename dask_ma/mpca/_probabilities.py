"""Predictions of a network that tells classes apart."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dask_ma.mpca._estimator import MPCAEstimator, Predictor


class ProbabilityMixin(MPCAEstimator):
    """Labels and probabilities, at once or lazily; a part of the classifier."""

    classes_: np.ndarray

    def predict(self, X: Any) -> Any:
        """Labels of the likeliest classes.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows, in the shape that they had in :meth:`fit`.

        Returns
        -------
        predicted : ndarray, dask.array or dask Series, of shape (n_samples,)
            Lazy for Dask input; a Series for a dask.dataframe.
        """
        check_is_fitted(self)
        return self._forward_rows(X, _labels, dtype=self.classes_.dtype)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows, in the shape that they had in :meth:`fit`.

        Returns
        -------
        probabilities : ndarray or dask.array of shape (n_samples, n_classes)
            Lazy for Dask input.
        """
        check_is_fitted(self)
        return self._forward_rows(
            X,
            Predictor.forward,
            n_outputs=len(self.classes_),
            dtype=self._float_dtype(),
        )

    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of :meth:`predict_proba`.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows, in the shape that they had in :meth:`fit`.

        Returns
        -------
        logarithms : ndarray or dask.array of shape (n_samples, n_classes)
            Lazy for Dask input.
        """
        return np.log(self.predict_proba(X))


def _labels(predictor: Predictor, X: Any) -> np.ndarray:
    """Labels of the likeliest classes."""
    if predictor.classes is None:
        raise TypeError("a regressor has no labels")
    return predictor.classes[predictor.forward(X).argmax(axis=1)]
