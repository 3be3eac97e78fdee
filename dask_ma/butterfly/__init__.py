"""Butterfly mixing: mini-batch SGD whose ranks average in pairs after every step."""

from dask_ma.butterfly._classifier import ButterflySGDClassifier
from dask_ma.butterfly._regressor import ButterflySGDRegressor

__all__ = ["ButterflySGDClassifier", "ButterflySGDRegressor"]
