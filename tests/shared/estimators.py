"""Estimators from parameters in one dict, those of objects among them."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone

from dask_ma._settings import Settings


def build(cls: type, params: dict[str, Any]) -> Any:
    """An estimator that is not fitted, with objects of its own.

    Parameters
    ----------
    cls : type
    params : dict
        Those of an object as ``schedule__floor``, beside the object.
    """
    objects = {k: clone(v) for k, v in params.items() if isinstance(v, Settings)}
    inner = {k: v for k, v in params.items() if "__" in k}
    outer = {k: v for k, v in params.items() if k not in inner}
    return cls(**{**outer, **objects}).set_params(**inner)
