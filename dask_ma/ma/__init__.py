"""Model averaging: linear and topic models, trained on every rank and averaged."""

from dask_ma.ma._classifier import MASGDClassifier
from dask_ma.ma._lda import MALDA
from dask_ma.ma._regressor import MASGDRegressor

__all__ = ["MALDA", "MASGDClassifier", "MASGDRegressor"]
