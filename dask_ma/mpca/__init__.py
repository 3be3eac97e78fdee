"""MPCA SGD: neural networks whose ranks train while their models are exchanged."""

from dask_ma.mpca import strategies
from dask_ma.mpca._classifier import MPCAClassifier
from dask_ma.mpca._epoch_callbacks import Checkpoint, EpochScoring
from dask_ma.mpca._rank_info import RankInfo, get_rank_info
from dask_ma.mpca._regressor import MPCARegressor
from dask_ma.mpca._torch import Torch
from dask_ma.mpca._training_state import TrainingState

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
