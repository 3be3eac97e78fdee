"""Predictions of a network that tells classes apart."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dask_ma.mpca._estimator import MPCAEstimator, Predictor
from dask_ma.mpca.training._validation import codes_of


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
            several columns of labels, 1 where a row has the label and 0 elsewhere; or
            the class of each place, in the shape of y, where y held such numbers.
        """
        check_is_fitted(self)
        if self._n_codes is not None:
            return self._forward_rows(
                X, _codes, n_outputs=self.n_targets_, dtype=np.dtype(int)
            )
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
            Lazy for Dask input. Of shape (n_samples, n_classes, ...) where y held the
            number of a class in each place.
        """
        check_is_fitted(self)
        return self._forward_rows(
            X,
            Predictor.forward,
            by_class=True,
            n_outputs=len(self.classes_)
            if self._n_codes is None
            else self._n_codes * (self.n_targets_ or 1),
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


def _codes(predictor: Predictor, X: Any) -> np.ndarray:
    """Numbers of the likeliest classes of each place."""
    assert predictor.spec.n_codes is not None  # only asked for then
    return codes_of(predictor.forward(X), predictor.spec.n_codes)


def _indicators(predictor: Predictor, X: Any) -> np.ndarray:
    """Whether each row has each label."""
    return (predictor.forward(X) > 0.5).astype(int)
