"""Distributed machine learning on Dask with the scikit-learn API."""

from dask_ma.butterfly import ButterflySGDClassifier
from dask_ma.engine import run_spmd
from dask_ma.ma import MALDA, MASGDClassifier, MASGDRegressor

__all__ = [
    "ButterflySGDClassifier",
    "MALDA",
    "MASGDClassifier",
    "MASGDRegressor",
    "__version__",
    "run_spmd",
]

__version__ = "0.1.0.dev0"
