"""Predictions of a network that tells classes apart."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dask_ma.mpca._estimator import MPCAEstimator, Predictor


class ProbabilityMixin(MPCAEstimator):
    """Labels and probabilities, at once or lazily; a part of the classifier."""

    classes_: np.ndarray
    n_targets_: int | None

    def predict(self, X: Any) -> Any:
        """Labels of the likeliest classes.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows, in the shape that they had in :meth:`fit`.

        Returns
        -------
        predicted : ndarray, dask.array or dask Series, of shape (n_samples,) or \
                (n_samples, n_targets)
            Lazy for Dask input; a Series for a dask.dataframe, if it is a vector. With
            several columns of labels, 1 where a row has the label and 0 elsewhere.
        """
        check_is_fitted(self)
        if self.n_targets_ is not None:
            return self._forward_rows(
                X, _indicators, n_outputs=self.n_targets_, dtype=np.dtype(int)
            )
        return self._forward_rows(X, _labels, dtype=self.classes_.dtype)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, or of each of several labels.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows, in the shape that they had in :meth:`fit`.

        Returns
        -------
        probabilities : ndarray or dask.array of shape (n_samples, n_classes) or \
                (n_samples, n_targets)
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
        logarithms : ndarray or dask.array of shape (n_samples, n_classes) or \
                (n_samples, n_targets)
            Lazy for Dask input.
        """
        return np.log(self.predict_proba(X))


def _labels(predictor: Predictor, X: Any) -> np.ndarray:
    """Labels of the likeliest classes."""
    if predictor.classes is None:
        raise TypeError("a regressor has no labels")
    return predictor.classes[predictor.forward(X).argmax(axis=1)]


def _indicators(predictor: Predictor, X: Any) -> np.ndarray:
    """Whether each row has each label."""
    return (predictor.forward(X) > 0.5).astype(int)
