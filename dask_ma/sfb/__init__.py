"""Sufficient factor broadcasting: updates of a matrix travel as pairs of vectors.

A model says how the factors of some rows are computed, and names a penalty; every rank
keeps the whole matrix, sends the factors of its batch, and rebuilds the updates of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_ma._lazy import importer

if TYPE_CHECKING:
    from dask_ma.sfb import prox, topology
    from dask_ma.sfb._run import ModelResult, run
    from dask_ma.sfb.dictionary._estimator import SFBDictionaryLearning
    from dask_ma.sfb.exchange._settings import Exchange
    from dask_ma.sfb.logistic._classifier import SFBLogisticRegression
    from dask_ma.sfb.metric._learner import SFBMetricLearner
    from dask_ma.sfb.model._matrix import ParameterMatrix
    from dask_ma.sfb.model._model import Batch, FactorModel

__all__ = [
    "Batch",
    "Exchange",
    "FactorModel",
    "ModelResult",
    "ParameterMatrix",
    "SFBDictionaryLearning",
    "SFBLogisticRegression",
    "SFBMetricLearner",
    "prox",
    "run",
    "topology",
]

__getattr__, __dir__ = importer(
    __name__,
    {
        "Batch": "model._model",
        "Exchange": "exchange._settings",
        "FactorModel": "model._model",
        "ModelResult": "_run",
        "ParameterMatrix": "model._matrix",
        "SFBDictionaryLearning": "dictionary._estimator",
        "SFBLogisticRegression": "logistic._classifier",
        "SFBMetricLearner": "metric._learner",
        "prox": "prox",
        "run": "_run",
        "topology": "topology",
    },
)
