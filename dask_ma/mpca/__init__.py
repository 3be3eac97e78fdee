"""MPCA SGD: neural networks whose ranks train while their models are exchanged."""

from dask_ma.mpca._classifier import MPCAClassifier
from dask_ma.mpca._regressor import MPCARegressor

__all__ = ["MPCAClassifier", "MPCARegressor"]
