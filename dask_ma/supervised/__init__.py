"""Parts of every supervised fit: problem, validation, stopping, batches, scores."""

from dask_ma.supervised._batches import Piece, pass_batches, pass_generator
from dask_ma.supervised._dealing import deal_rows
from dask_ma.supervised._gathering import gathered
from dask_ma.supervised._params import FitResult, ProblemParams, ValidationParams
from dask_ma.supervised._problem import (
    Problem,
    agree_on_problem,
    restore_state,
)
from dask_ma.supervised._scores import Spread, score, score_sums, spread_of
from dask_ma.supervised._stopping import StopRule, hold_out

__all__ = [
    "FitResult",
    "Piece",
    "Problem",
    "ProblemParams",
    "Spread",
    "StopRule",
    "ValidationParams",
    "agree_on_problem",
    "deal_rows",
    "gathered",
    "hold_out",
    "pass_batches",
    "pass_generator",
    "restore_state",
    "score",
    "score_sums",
    "spread_of",
]
