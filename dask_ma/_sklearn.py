"""Parts of scikit-learn that have no public door.

`_parameter_constraints`, with `HasMethods`, `Interval` and `StrOptions`, is how
scikit-learn's own estimators declare the ranges of their parameters and how its common
tests check them; `_fit_context` applies them. Third-party estimators use them from
these modules, since no public module has them.

What `partial_fit` of SGD does after its checks is a method of its own, with arguments
that versions may change: :func:`pass_over` calls it where it has those known here.
"""

from __future__ import annotations

from functools import cache
from inspect import signature
from typing import Any

import numpy as np
from sklearn.base import _fit_context as fit_context
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

__all__ = ["HasMethods", "Interval", "StrOptions", "fit_context", "pass_over"]

_INDICES = np.empty(0, dtype=np.int32)
_PASSES = {
    "_fit_binary": {"X", "y", "alpha", "sample_weight", "learning_rate", "max_iter"},
    "_fit_regressor": {
        *("X", "y", "alpha", "loss", "sample_weight", "learning_rate", "max_iter")
    },
}


def pass_over(
    sgd: Any, X: Any, y: np.ndarray, sample_weight: np.ndarray | None
) -> None:
    """One `partial_fit` of SGD over rows that have been checked.

    To check them again takes longer than the steps over some hundred rows. That is done
    where a version of scikit-learn has no such method, or one with other arguments, and
    for matrices so large that SGD refuses them.

    Parameters
    ----------
    sgd : SGDClassifier or SGDRegressor
        With `coef_`, `intercept_` and `t_`; the classes are 0 and 1, whose weights are
        in `class_weight` or equal.
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        Rows, float64 or float32.
    y : ndarray of shape (n_samples,)
        Targets; 0 and 1 of a classifier.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the rows.
    """
    is_classifier = hasattr(sgd, "class_weight")
    name = "_fit_binary" if is_classifier else "_fit_regressor"
    given = _arguments(sgd.__class__, name)
    if given is None or getattr(X, "indices", _INDICES).dtype != _INDICES.dtype:
        # Once is enough: comparing the classes takes longer than a step.
        is_new = is_classifier and not hasattr(sgd, "classes_")
        classes = {"classes": np.arange(2)} if is_new else {}
        sgd.partial_fit(X, y, sample_weight=sample_weight, **classes)
        return
    if is_classifier:
        _prepare(sgd)
    else:
        y = y.astype(X.dtype, copy=False)
    if sample_weight is None:
        sample_weight = np.ones(len(y), dtype=X.dtype)
    values = {
        **{"X": X, "y": y, "alpha": sgd.alpha, "loss": sgd.loss, "C": 1.0},
        "sample_weight": np.ascontiguousarray(sample_weight, dtype=X.dtype),
        "learning_rate": sgd.learning_rate,
        "max_iter": 1,
    }
    getattr(sgd, name)(**{key: values[key] for key in given})


def _prepare(sgd: Any) -> None:
    """Set what a pass of a classifier looks at."""
    if not hasattr(sgd, "_loss_function_"):
        sgd._loss_function_ = sgd._get_loss_function(sgd.loss)
        sgd.classes_ = np.arange(2)
    weights = sgd.class_weight or {}
    sgd._expanded_class_weight = np.array([weights.get(k, 1.0) for k in (0, 1)])


@cache
def _arguments(kind: type, name: str) -> frozenset[str] | None:
    """Arguments of a pass, or None if they are not those known here."""
    method = getattr(kind, name, None)
    if method is None or not hasattr(kind, "_get_loss_function"):
        return None
    found = frozenset(signature(method).parameters) - {"self"}
    return found if found - {"C"} == _PASSES[name] else None
