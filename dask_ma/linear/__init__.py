"""Linear models: estimators, parameters, evaluation, refinement to the optimum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_ma._lazy import importer
from dask_ma.linear import _functions as functions
from dask_ma.linear._inactive import EPSILON, HELD_OUT, L1_RATIO
from dask_ma.linear._losses import as_named, check_loss, has_optimum, loss_name
from dask_ma.linear._model import (
    Evaluator,
    LinearModel,
    LinearParams,
    RefineParams,
    describe,
    initial_model,
    score_sums,
)
from dask_ma.linear._patience import PATIENCE, gain_to_go_on, may_hand_over, patience_of
from dask_ma.linear._scales import note_on_scales
from dask_ma.linear._start import (
    at_mean,
    may_start_at_mean,
    rounding_of,
    with_targets,
)
from dask_ma.linear._used import (
    UsedColumns,
    are_same,
    columns_of,
    renumbered,
    used_columns_of,
)

if TYPE_CHECKING:
    from dask_ma.linear._estimator import (
        LinearClassifierMixin,
        LinearEstimator,
        LinearRegressorMixin,
        given_model,
    )

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
    "PATIENCE",
    "RefineParams",
    "UsedColumns",
    "are_same",
    "as_named",
    "at_mean",
    "check_loss",
    "columns_of",
    "describe",
    "functions",
    "gain_to_go_on",
    "given_model",
    "has_optimum",
    "initial_model",
    "loss_name",
    "may_hand_over",
    "may_start_at_mean",
    "note_on_scales",
    "patience_of",
    "renumbered",
    "rounding_of",
    "score_sums",
    "used_columns_of",
    "with_targets",
]

# A rank has no estimator.
__getattr__, __dir__ = importer(
    __name__,
    dict.fromkeys(
        (
            "LinearClassifierMixin",
            "LinearEstimator",
            "LinearRegressorMixin",
            "given_model",
        ),
        "_estimator",
    ),
)
