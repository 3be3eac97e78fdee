"""MPCA SGD: neural networks whose ranks train while their models are exchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_ma._lazy import importer

if TYPE_CHECKING:
    from dask_ma.mpca import strategies
    from dask_ma.mpca._classifier import MPCAClassifier
    from dask_ma.mpca._regressor import MPCARegressor
    from dask_ma.mpca.inputs._rank_info import RankInfo, get_rank_info
    from dask_ma.mpca.networks._training_state import TrainingState
    from dask_ma.mpca.torch._parameter import Torch
    from dask_ma.mpca.training._epoch_callbacks import Checkpoint, EpochScoring

__all__ = [
    "Checkpoint",
    "EpochScoring",
    "MPCAClassifier",
    "MPCARegressor",
    "RankInfo",
    "Torch",
    "TrainingState",
    "get_rank_info",
    "strategies",
]

# A rank has no estimator.
__getattr__, __dir__ = importer(
    __name__,
    {
        "Checkpoint": "training._epoch_callbacks",
        "EpochScoring": "training._epoch_callbacks",
        "MPCAClassifier": "_classifier",
        "MPCARegressor": "_regressor",
        "RankInfo": "inputs._rank_info",
        "Torch": "torch._parameter",
        "TrainingState": "networks._training_state",
        "get_rank_info": "inputs._rank_info",
        "strategies": "strategies",
    },
)
