"""Butterfly mixing: mini-batch SGD whose ranks average in pairs after every step."""

from dask_ma.butterfly._classifier import ButterflySGDClassifier

__all__ = ["ButterflySGDClassifier"]
