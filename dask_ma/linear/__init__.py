"""What all estimators of linear models share, whatever system trains them."""

from dask_ma.linear import _functions as functions
from dask_ma.linear._batches import Piece, pass_batches, pass_generator
from dask_ma.linear._classifier import LinearClassifierMixin
from dask_ma.linear._estimator import LinearEstimator
from dask_ma.linear._evaluation import Evaluator
from dask_ma.linear._inactive import EPSILON, HELD_OUT, L1_RATIO
from dask_ma.linear._model import describe, initial_model
from dask_ma.linear._params import (
    FitResult,
    LinearModel,
    LinearParams,
    ProblemParams,
    RefineParams,
    ValidationParams,
)
from dask_ma.linear._problem import Problem, agree_on_problem
from dask_ma.linear._regressor import LinearRegressorMixin
from dask_ma.linear._stopping import StopRule
from dask_ma.linear._validation import hold_out, score, score_sums

__all__ = [
    "EPSILON",
    "Evaluator",
    "FitResult",
    "HELD_OUT",
    "L1_RATIO",
    "LinearClassifierMixin",
    "LinearEstimator",
    "LinearModel",
    "LinearParams",
    "LinearRegressorMixin",
    "Piece",
    "Problem",
    "ProblemParams",
    "RefineParams",
    "StopRule",
    "ValidationParams",
    "agree_on_problem",
    "describe",
    "functions",
    "hold_out",
    "initial_model",
    "pass_batches",
    "pass_generator",
    "score",
    "score_sums",
]
