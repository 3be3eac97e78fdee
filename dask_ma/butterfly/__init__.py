"""Butterfly mixing: mini-batch SGD whose ranks average in pairs after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_ma._lazy import importer

if TYPE_CHECKING:
    from dask_ma.butterfly._classifier import ButterflySGDClassifier
    from dask_ma.butterfly._regressor import ButterflySGDRegressor

__all__ = ["ButterflySGDClassifier", "ButterflySGDRegressor"]

# A rank has no estimator.
__getattr__, __dir__ = importer(
    __name__,
    {
        "ButterflySGDClassifier": "_classifier",
        "ButterflySGDRegressor": "_regressor",
    },
)
