"""Linear models: estimators, parameters, evaluation, refinement to the optimum."""

from dask_ma.linear import _functions as functions
from dask_ma.linear._classifier import LinearClassifierMixin
from dask_ma.linear._estimator import LinearEstimator, given_model
from dask_ma.linear._evaluation import Evaluator
from dask_ma.linear._inactive import EPSILON, HELD_OUT, L1_RATIO
from dask_ma.linear._loss import as_named, check_loss, has_optimum, loss_name
from dask_ma.linear._model import describe, initial_model
from dask_ma.linear._params import LinearModel, LinearParams, RefineParams
from dask_ma.linear._regressor import LinearRegressorMixin
from dask_ma.linear._scores import score_sums

__all__ = [
    "EPSILON",
    "Evaluator",
    "HELD_OUT",
    "L1_RATIO",
    "LinearClassifierMixin",
    "LinearEstimator",
    "LinearModel",
    "LinearParams",
    "LinearRegressorMixin",
    "RefineParams",
    "as_named",
    "check_loss",
    "describe",
    "functions",
    "given_model",
    "has_optimum",
    "initial_model",
    "loss_name",
    "score_sums",
]
