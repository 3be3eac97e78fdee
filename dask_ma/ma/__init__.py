"""Model averaging: linear and topic models, trained on every rank and averaged.

Each part is imported when it is asked for: a worker needs that of its fit only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_ma.ma._paradigm import Gradients, Models
    from dask_ma.ma.lda._estimator import MALDA
    from dask_ma.ma.sgd._classifier import MASGDClassifier
    from dask_ma.ma.sgd._regressor import MASGDRegressor

__all__ = ["Gradients", "MALDA", "MASGDClassifier", "MASGDRegressor", "Models"]

_MODULE_OF = {
    "Gradients": "_paradigm",
    "MALDA": "lda._estimator",
    "MASGDClassifier": "sgd._classifier",
    "MASGDRegressor": "sgd._regressor",
    "Models": "_paradigm",
}


def __getattr__(name: str) -> Any:
    """Import what lies in this folder when it is asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"dask_ma.ma.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
