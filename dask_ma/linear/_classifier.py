"""Mixin of the linear classifiers: labels, and predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dask_ma.base import DistributedClassifierMixin
from dask_ma.linear import _functions
from dask_ma.linear._loss import loss_name


def _has_probabilities(estimator: Any) -> bool:
    """Whether the loss gives probabilities."""
    # Logistic regressions have no choice of losses.
    loss = loss_name(getattr(estimator, "loss", "log_loss"))
    if loss in ("log_loss", "modified_huber"):
        return True
    raise AttributeError(
        "probability estimates need loss='log_loss' or loss='modified_huber', got "
        f"loss={estimator.loss!r}"
    )


class LinearClassifierMixin(DistributedClassifierMixin):
    """Predictions of linear classifiers, at once or lazily.

    Goes before :class:`LinearEstimator`; needs `loss` and `class_weight`.
    """

    def decision_function(self, X: Any) -> Any:
        """Values of the linear functions; the largest one decides.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        values : ndarray or dask.array of shape (n_samples,) or (n_samples, n_classes)
            Lazy for Dask input. With two classes a vector, above 0 for the second one,
            which is a Series for a dask.dataframe.
        """
        check_is_fitted(self)
        n_classes = len(self.classes_)
        n_outputs = None if n_classes == 2 else n_classes
        return self._apply(X, _functions.decision_function, n_outputs=n_outputs)

    def predict(self, X: Any) -> Any:
        """Labels with the largest value of the decision function.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        labels : ndarray, dask.array or dask Series, of shape (n_samples,)
            Lazy for Dask input; a Series for a dask.dataframe.
        """
        check_is_fitted(self)
        return self._apply(X, _functions.predict, dtype=self.classes_.dtype)

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, for the losses "log_loss" and "modified_huber".

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        probabilities : ndarray or dask.array of shape (n_samples, n_classes)
            Lazy for Dask input. With more than two classes they are normalised over the
            problems of one class against the rest, as scikit-learn does it.
        """
        check_is_fitted(self)
        return self._apply(
            X, _functions.predict_proba, n_outputs=len(self.classes_), dtype=np.float64
        )

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of :meth:`predict_proba`.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        logarithms : ndarray or dask.array of shape (n_samples, n_classes)
            Lazy for Dask input.
        """
        check_is_fitted(self)
        return self._apply(
            X,
            _functions.predict_log_proba,
            n_outputs=len(self.classes_),
            dtype=np.float64,
        )

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        return {**super()._to_attributes(fitted), "classes_": fitted["classes"]}
