"""Strategies of exchange: MPCA SGD, gradients, averaging, elastic averaging, a server.

For the parameter `strategy` of MPCAClassifier and MPCARegressor.
"""

from dask_ma.mpca.strategies._parameters import (
    MPCA,
    ElasticAveraging,
    Gradients,
    Local,
    ParameterServer,
    Synchronous,
)

__all__ = [
    "ElasticAveraging",
    "Gradients",
    "Local",
    "MPCA",
    "ParameterServer",
    "Synchronous",
]
