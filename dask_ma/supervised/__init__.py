"""Parts of every supervised fit: problem, validation, stopping, batches, scores."""

from dask_ma.supervised._batches import Piece, pass_batches, pass_generator
from dask_ma.supervised._params import FitResult, ProblemParams, ValidationParams
from dask_ma.supervised._problem import Problem, agree_on_problem, restore_state
from dask_ma.supervised._scores import N_SCORE_SUMS, score
from dask_ma.supervised._stopping import StopRule
from dask_ma.supervised._validation import hold_out

__all__ = [
    "FitResult",
    "N_SCORE_SUMS",
    "Piece",
    "Problem",
    "ProblemParams",
    "StopRule",
    "ValidationParams",
    "agree_on_problem",
    "hold_out",
    "pass_batches",
    "pass_generator",
    "restore_state",
    "score",
]
