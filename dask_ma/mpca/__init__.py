"""MPCA SGD: neural networks whose ranks train while their models are exchanged."""

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
