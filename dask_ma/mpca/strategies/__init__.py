"""Strategies of exchange: MPCA SGD, averaging, elastic averaging, a server.

For the parameter `strategy` of MPCAClassifier and MPCARegressor.
"""

from dask_ma.mpca.strategies._parameters import (
    MPCA,
    ElasticAveraging,
    Local,
    ParameterServer,
    Synchronous,
)

__all__ = ["ElasticAveraging", "Local", "MPCA", "ParameterServer", "Synchronous"]
