"""Transformed rows of Dask collections in the container that `set_output` asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Self

from sklearn import get_config
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from dask_ma.data import (
    apply_blockwise,
    is_dask_collection,
    is_dask_frame,
    is_sparse,
    refuse_unfinished,
)

_WRAPPED = ("transform", "fit_transform")
_OUTPUTS = ("default", "pandas", "polars", None)
_MARK = "is_lazy_for_dask"  # of methods that need no other wrapper


class DistributedTransformerMixin(ClassNamePrefixFeaturesOutMixin, TransformerMixin):
    """Transformers whose results are lazy for a Dask collection, in frames as well.

    Goes before :class:`~dask_ma.base.DistributedEstimator`. scikit-learn's own
    containers would take all rows into the memory of the client, and give them a new
    index.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # scikit-learn wraps the methods
        for name in _WRAPPED:
            method = getattr(cls, name, None)
            if method is not None and _MARK not in vars(method):
                setattr(cls, name, _lazy_for_dask(method))

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit to rows, and transform the same rows.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Rows.
        y : array-like or Dask collection of shape (n_samples,), default=None
            Labels, for estimators that learn from them.
        **fit_params : dict
            Further arguments of `fit`.

        Returns
        -------
        Z : ndarray or Dask collection
            As from `transform`.
        """
        labels = () if y is None else (y,)
        return self.fit(X, *labels, **fit_params).transform(X)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose what `transform` and `fit_transform` return.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"} or None, default=None
            "pandas" gives a DataFrame; of a Dask collection a lazy dask.dataframe, with
            the index of a dask.dataframe that is transformed. Where the lengths of a
            dask.array's chunks are not known, each partition has an index from 0 on, as
            always in Dask. "polars" leaves results of Dask collections arrays. None
            changes nothing.

        Returns
        -------
        self : estimator

        Raises
        ------
        ValueError
            If there is no such container.
        """
        if transform not in _OUTPUTS:
            raise ValueError(
                f"transform should be one of {_OUTPUTS}, got {transform!r}"
            )
        super().set_output(transform=transform)
        if transform is not None:
            self._chosen_output = transform
        return self

    def __sklearn_clone__(self) -> Self:
        clone: Self = super().__sklearn_clone__()
        if hasattr(self, "_chosen_output"):
            clone._chosen_output = self._chosen_output
        return clone

    def _transformed(self, X: Any, function: Callable[..., Any], **how: Any) -> Any:
        """Rows as `_apply` makes them, of a Dask collection in frames if wanted."""
        chosen = getattr(self, "_chosen_output", get_config()["transform_output"])
        if chosen != "pandas" or not is_dask_collection(X):
            return self._apply(X, function, **how)
        names = self.get_feature_names_out()
        if is_dask_frame(X):
            refuse_unfinished(X, "X")
            self._validate_input(X, reset=False)
            if how.get("model") is None:
                how["model"] = self._predictor()
            return apply_blockwise(X, function, columns=names, **how)
        rows = self._apply(X, function, **how)
        if is_sparse(rows._meta):
            raise ValueError(
                "pandas output does not hold sparse blocks; use "
                "set_output(transform='default')"
            )
        from dask.dataframe import from_dask_array  # an extra

        return from_dask_array(rows, columns=names)


def _lazy_for_dask(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that scikit-learn has wrapped, without its wrapper for Dask."""
    bare = getattr(method, "__wrapped__", method)

    @wraps(method)
    def chosen(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        found = bare if is_dask_collection(X) else method
        return found(self, X, *args, **options)

    vars(chosen)[_MARK] = True
    return chosen
