"""Data to try the estimators on: shipped text and generators with a known answer."""

from dask_ma.datasets._clinc150 import load_clinc150
from dask_ma.datasets._sparse_classification import (
    make_dask_sparse_classification,
    make_sparse_classification,
)

__all__ = [
    "load_clinc150",
    "make_dask_sparse_classification",
    "make_sparse_classification",
]
