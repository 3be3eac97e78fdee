"""Distributed machine learning on Dask with the scikit-learn API.

Systems, a folder for each method:

============= ================================ =========================================
Folder        Method                           Estimators and programs
============= ================================ =========================================
``ma``        model averaging                  MASGDClassifier, MASGDRegressor, MALDA
``butterfly`` butterfly mixing                 ButterflySGDClassifier, -Regressor
``sfb``       sufficient factor broadcasting   SFBLogisticRegression,
                                               SFBMetricLearner, SFBDictionaryLearning;
                                               ``sfb.run``
``schmp``     scheduled model parallelism      SchMPLasso, SchMPLassoCV, SchMPLDA,
                                               SchMPLogisticRegression,
                                               SchMPMatrixFactorization; ``schmp.run``
``mpca``      MPCA SGD: extrapolated, partial  MPCAClassifier, MPCARegressor
              averages of networks
============= ================================ =========================================

Below them, a package imports only from those further down:

============== =========================================================================
``linear``     linear models: parameters, evaluation, refinement to the optimum
``topics``     fitted topic models, corpora, priors
``supervised`` the training problem, held-out rows, stopping, batches, scores
``base``       validate, share out, launch, take over; block-wise prediction
``layouts``    data over ranks by columns
``engine``     start, follow, stop and restart ranks; ``run_spmd``
``comm``       arrays from rank to rank: groups, collectives
``data``       any accepted input to one shard per rank; lazy results
``kernels``    mathematics on arrays; penalties by their proximal operators
``datasets``   readers and generators
============== =========================================================================

``plotting`` draws fits, collectives and networks; ``losses`` are what linear models
and programs may be fitted by.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dask_ma import _config as _config  # its defaults belong to Dask's configuration

if TYPE_CHECKING:
    from dask_ma.butterfly import ButterflySGDClassifier, ButterflySGDRegressor
    from dask_ma.engine import run_spmd
    from dask_ma.ma import MALDA, MASGDClassifier, MASGDRegressor
    from dask_ma.mpca import MPCAClassifier, MPCARegressor
    from dask_ma.schmp import (
        SchMPLasso,
        SchMPLassoCV,
        SchMPLDA,
        SchMPLogisticRegression,
        SchMPMatrixFactorization,
    )
    from dask_ma.sfb import (
        SFBDictionaryLearning,
        SFBLogisticRegression,
        SFBMetricLearner,
    )

__all__ = [
    "ButterflySGDClassifier",
    "ButterflySGDRegressor",
    "MALDA",
    "MASGDClassifier",
    "MASGDRegressor",
    "MPCAClassifier",
    "MPCARegressor",
    "SFBDictionaryLearning",
    "SFBLogisticRegression",
    "SFBMetricLearner",
    "SchMPLDA",
    "SchMPLasso",
    "SchMPLassoCV",
    "SchMPLogisticRegression",
    "SchMPMatrixFactorization",
    "__version__",
    "run_spmd",
]

__version__ = "0.1.0.dev0"

# What is imported when it is asked for: a worker needs one method only.
_FOLDERS = (
    "base",
    "butterfly",
    "comm",
    "data",
    "datasets",
    "engine",
    "exceptions",
    "kernels",
    "ma",
    "mpca",
    "plotting",
    "schmp",
    "sfb",
    "topics",
)
_FOLDER_OF = {
    "ButterflySGDClassifier": "butterfly",
    "ButterflySGDRegressor": "butterfly",
    "MALDA": "ma",
    "MASGDClassifier": "ma",
    "MASGDRegressor": "ma",
    "MPCAClassifier": "mpca",
    "MPCARegressor": "mpca",
    "SFBDictionaryLearning": "sfb",
    "SFBLogisticRegression": "sfb",
    "SFBMetricLearner": "sfb",
    "SchMPLDA": "schmp",
    "SchMPLasso": "schmp",
    "SchMPLassoCV": "schmp",
    "SchMPLogisticRegression": "schmp",
    "SchMPMatrixFactorization": "schmp",
    "run_spmd": "engine",
}


def __getattr__(name: str) -> Any:
    """Import a folder, or what lies in it, when it is asked for."""
    if name in _FOLDERS:
        return import_module(f"dask_ma.{name}")
    if name not in _FOLDER_OF:
        raise AttributeError(f"module 'dask_ma' has no attribute {name!r}")
    value = getattr(import_module(f"dask_ma.{_FOLDER_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_FOLDERS})
