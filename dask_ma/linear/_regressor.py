"""Mixin of the linear regressors: checks of targets, and predictions."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import check_is_fitted

from dask_ma.base import DistributedRegressorMixin
from dask_ma.linear import _functions


class LinearRegressorMixin(DistributedRegressorMixin):
    """Predictions of linear regressors, at once or lazily.

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
        values : ndarray, dask.array or dask Series, of shape (n_samples,)
            Lazy for Dask input; a Series for a dask.dataframe.
        """
        check_is_fitted(self)
        return self._apply(X, _functions.predict)
