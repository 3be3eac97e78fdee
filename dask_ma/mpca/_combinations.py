"""Parameters that do not go together, and such as nothing would come of."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

OF_MLP = (
    "activation",
    "alpha",
    "solver",
    "momentum",
    "nesterovs_momentum",
    "beta_1",
    "beta_2",
    "epsilon",
)
_OF_BUILT_IN = ("hidden_layer_sizes", *OF_MLP, "power_t")
_ALL_THE_TIME = ("mpca",)
_STRATEGIES = {
    "n_phases": _ALL_THE_TIME,
    "extrapolation": _ALL_THE_TIME,
    "smoothing": _ALL_THE_TIME,
    "penalty": _ALL_THE_TIME,
    "penalty_form": _ALL_THE_TIME,
    "blending": _ALL_THE_TIME,
    "weighting": _ALL_THE_TIME,
    "sync_period": ("synchronous", "easgd"),
    "elasticity": ("easgd",),
}


def check_combination(estimator: Any) -> None:
    """Refuse parameters of which one makes no sense with another.

    A parameter that has its default is not looked at.

    Parameters
    ----------
    estimator : MPCAClassifier or MPCARegressor
        Each of its parameters is in its range, and it knows the columns of y.

    Raises
    ------
    ValueError
        It names the parameters and what they are.
    """
    _check_rate(estimator)
    changed = _changed(estimator)
    if estimator.module is not None:
        for name in _OF_BUILT_IN:
            if name in changed:
                raise ValueError(
                    f"{name}={getattr(estimator, name)!r} is a parameter of the "
                    "built-in network and has no effect on module; leave it out, and "
                    "give the module or its optimizer what it stands for"
                )
    for name, strategies in _STRATEGIES.items():
        if name in changed and estimator.strategy not in strategies:
            raise ValueError(
                f"{name}={getattr(estimator, name)!r} has no effect with strategy="
                f"{estimator.strategy!r}; it belongs to {' and '.join(strategies)}"
            )
    if estimator.n_targets_ is not None and getattr(estimator, "class_weight", None):
        raise ValueError(
            "class_weight needs a y of one dimension, but this one has "
            f"{estimator.n_targets_} columns of labels; use sample_weight"
        )


def _check_rate(estimator: Any) -> None:
    """Rates that follow the rows or the loss are those of one optimiser."""
    is_fixed = estimator.solver != "sgd" or estimator.module is not None
    if estimator.learning_rate in ("invscaling", "adaptive") and is_fixed:
        raise ValueError(
            f"learning_rate={estimator.learning_rate!r} needs solver='sgd' and no "
            "module; use 'constant' or 'cosine'"
        )


def _changed(estimator: Any) -> set[str]:
    """Parameters that are not what they are by default."""
    declared = inspect.signature(type(estimator).__init__).parameters
    return {
        name
        for name in (*_OF_BUILT_IN, *_STRATEGIES)
        if not _are_equal(getattr(estimator, name), declared[name].default)
    }


def _are_equal(value: Any, other: Any) -> bool:
    """Whether two values are the same; sequences may be of several types."""
    return np.shape(value) == np.shape(other) and bool(
        np.all(np.asarray(value, dtype=object) == np.asarray(other, dtype=object))
    )
