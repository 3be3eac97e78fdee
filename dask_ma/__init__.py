"""Distributed machine learning on Dask with the scikit-learn API.

Systems, a folder for each method:

============= ================================ =========================================
Folder        Method                           Estimators and programs
============= ================================ =========================================
``ma``        model averaging                  MASGDClassifier, MASGDRegressor, MALDA
``butterfly`` butterfly mixing                 ButterflySGDClassifier, -Regressor
``sfb``       sufficient factor broadcasting   SFBLogisticRegression; ``sfb.run``
``schmp``     scheduled model parallelism      SchMPLasso, SchMPLassoCV,
                                               SchMPLogisticRegression; ``schmp.run``
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

``plotting`` draws fits, collectives and networks.
"""

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
