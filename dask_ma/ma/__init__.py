"""Model averaging: linear and topic models, trained on every rank and averaged."""

from dask_ma.ma._paradigm import Gradients, Models
from dask_ma.ma.lda._estimator import MALDA
from dask_ma.ma.sgd._classifier import MASGDClassifier
from dask_ma.ma.sgd._regressor import MASGDRegressor

__all__ = ["Gradients", "MALDA", "MASGDClassifier", "MASGDRegressor", "Models"]
