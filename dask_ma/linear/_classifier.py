"""What the linear classifiers share: labels, and predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data

from dask_ma.base import blockwise_accuracy
from dask_ma.data import is_dask_collection
from dask_ma.linear import _functions


def _has_probabilities(estimator: Any) -> bool:
    """Whether the loss gives probabilities."""
    # Logistic regressions have no choice of losses.
    if getattr(estimator, "loss", "log_loss") in ("log_loss", "modified_huber"):
        return True
    raise AttributeError(
        "probability estimates need loss='log_loss' or loss='modified_huber', got "
        f"loss={estimator.loss!r}"
    )


class LinearClassifierMixin(ClassifierMixin):
    """Checks of labels, and predictions, at once or lazily.

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
            Lazy for Dask input. With two classes a vector, above 0 for the second one.
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
        labels : ndarray or dask.array of shape (n_samples,)
            Lazy for Dask input.
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

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy on the rows given.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.
        y : array-like or Dask collection of shape (n_samples,)
            True labels.
        sample_weight : array-like or Dask collection, shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        accuracy : float
            For Dask input it is worked out where the rows are.
        """
        if is_dask_collection(X):
            return blockwise_accuracy(self.predict(X), y, sample_weight)
        return super().score(X, y, sample_weight)

    def _validate_memory(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, Any]:
        """scikit-learn's checks of data in memory."""
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            order="C",
            reset=reset,
        )
        check_classification_targets(y)
        return X, y

    def _check_classes(self, classes: Any) -> np.ndarray:
        """Labels that `partial_fit` is to know."""
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' cannot be used with partial_fit, which does "
                "not know how frequent the classes will be; pass a dict"
            )
        known = getattr(self, "classes_", None)
        if classes is None:
            if known is None:
                raise ValueError(
                    "classes must be passed on the first call to partial_fit."
                )
            return known
        classes = unique_labels(classes)
        if known is not None and not np.array_equal(classes, known):
            raise ValueError(
                f"classes={classes.tolist()} is not the same as on last call to "
                f"partial_fit, was: {known.tolist()}"
            )
        return classes

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        return {**super()._to_attributes(fitted), "classes_": fitted["classes"]}
