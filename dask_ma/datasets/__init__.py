"""Data to try the estimators on, and readers of corpora of text.

Shipped text, generators with a known answer, and lazy arrays from files or text.
"""

from dask_ma.datasets._bag_of_words import read_bag_of_words
from dask_ma.datasets._clinc150 import load_clinc150
from dask_ma.datasets._corpus import Corpus
from dask_ma.datasets._lda_c import read_lda_c
from dask_ma.datasets._sparse_classification import (
    make_dask_sparse_classification,
    make_sparse_classification,
)
from dask_ma.datasets._svmlight import read_svmlight
from dask_ma.datasets._text import vectorize_text

__all__ = [
    "Corpus",
    "load_clinc150",
    "make_dask_sparse_classification",
    "make_sparse_classification",
    "read_bag_of_words",
    "read_lda_c",
    "read_svmlight",
    "vectorize_text",
]
