"""Model averaging: linear models trained by SGD on every rank and averaged."""

from dask_ma.ma._classifier import MASGDClassifier
from dask_ma.ma._regressor import MASGDRegressor

__all__ = ["MASGDClassifier", "MASGDRegressor"]
