"""Model averaging: linear and topic models, trained on every rank and averaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_ma._lazy import importer

if TYPE_CHECKING:
    from dask_ma.ma._paradigm import Gradients, Models
    from dask_ma.ma.lda._estimator import MALDA
    from dask_ma.ma.sgd._classifier import MASGDClassifier
    from dask_ma.ma.sgd._regressor import MASGDRegressor

__all__ = ["Gradients", "MALDA", "MASGDClassifier", "MASGDRegressor", "Models"]

__getattr__, __dir__ = importer(
    __name__,
    {
        "Gradients": "_paradigm",
        "MALDA": "lda._estimator",
        "MASGDClassifier": "sgd._classifier",
        "MASGDRegressor": "sgd._regressor",
        "Models": "_paradigm",
    },
)
