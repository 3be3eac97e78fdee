"""Distributed machine learning on Dask with the scikit-learn API."""

from dask_ma.butterfly import ButterflySGDClassifier, ButterflySGDRegressor
from dask_ma.engine import run_spmd
from dask_ma.ma import MALDA, MASGDClassifier, MASGDRegressor
from dask_ma.mpca import MPCAClassifier, MPCARegressor
from dask_ma.schmp import SchMPLasso, SchMPLassoCV, SchMPLogisticRegression
from dask_ma.sfb import SFBLogisticRegression

__all__ = [
    "ButterflySGDClassifier",
    "ButterflySGDRegressor",
    "MALDA",
    "MASGDClassifier",
    "MASGDRegressor",
    "MPCAClassifier",
    "MPCARegressor",
    "SFBLogisticRegression",
    "SchMPLasso",
    "SchMPLassoCV",
    "SchMPLogisticRegression",
    "__version__",
    "run_spmd",
]

__version__ = "0.1.0.dev0"
