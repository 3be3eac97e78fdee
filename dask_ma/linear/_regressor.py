"""What the linear regressors share: checks of targets, and predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dask_ma.base import blockwise_r2
from dask_ma.data import is_dask_collection
from dask_ma.linear import _functions


class LinearRegressorMixin(RegressorMixin):
    """Checks of targets, and predictions, at once or lazily.

    Goes before :class:`LinearEstimator`.
    """

    def predict(self, X: Any) -> Any:
        """Values of the linear function.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        values : ndarray or dask.array of shape (n_samples,)
            Lazy for Dask input.
        """
        check_is_fitted(self)
        return self._apply(X, _functions.predict)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Coefficient of determination on the rows given.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.
        y : array-like or Dask collection of shape (n_samples,)
            True values.
        sample_weight : array-like or Dask collection, shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        r2 : float
            For Dask input it is worked out where the rows are.
        """
        if is_dask_collection(X):
            return blockwise_r2(self.predict(X), y, sample_weight)
        return super().score(X, y, sample_weight)

    def _validate_memory(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, Any]:
        """scikit-learn's checks of data in memory."""
        return validate_data(
            self,
            X,
            y,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            order="C",
            y_numeric=True,
            reset=reset,
        )
