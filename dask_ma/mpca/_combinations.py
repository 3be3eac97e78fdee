"""Parameters that do not go together, and such as cannot act."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from dask_ma._settings import Inactive, unless
from dask_ma.linear import HELD_OUT
from dask_ma.mpca.networks._mlp import MLPSpec
from dask_ma.mpca.strategies._parameters import STRATEGY, Gradients, ParameterServer
from dask_ma.mpca.torch._parameter import as_torch

_OF_SGD = ("momentum", "nesterovs_momentum")
_OF_ADAM = ("beta_1", "beta_2", "epsilon")
OF_MLP = tuple(each.name for each in fields(MLPSpec) if each.name != "n_targets")


def check_rate(estimator: Any) -> None:
    """Refuse rates that follow the rows or the loss with other optimisers than one.

    Parameters
    ----------
    estimator : MPCAClassifier or MPCARegressor
        Each of its parameters is in its range.

    Raises
    ------
    ValueError
        It names the parameters and what they are.
    """
    is_fixed = estimator.solver != "sgd" or estimator.module is not None
    if estimator.learning_rate in ("invscaling", "adaptive") and is_fixed:
        raise ValueError(
            f"learning_rate={estimator.learning_rate!r} needs solver='sgd' and no "
            "module; use 'constant' or 'cosine'"
        )


def check_class_weight(estimator: Any) -> None:
    """Refuse weights of classes where there are labels.

    Parameters
    ----------
    estimator : MPCAClassifier or MPCARegressor
        It knows the columns of y.

    Raises
    ------
    ValueError
        It tells how many columns there are.
    """
    if estimator.n_targets_ is not None and getattr(estimator, "class_weight", None):
        raise ValueError(
            "class_weight needs a y of one dimension, but this one has "
            f"{estimator.n_targets_} columns of labels; use sample_weight"
        )


def check_server(estimator: Any) -> None:
    """Refuse what belongs to a rank's own steps where it makes none.

    Parameters
    ----------
    estimator : MPCAClassifier or MPCARegressor
        Each of its parameters is in its range.

    Raises
    ------
    ValueError
        It names the parameter, and other strategies.
    """
    chosen = as_torch(estimator.module)
    strategy = STRATEGY.as_object(estimator.strategy)
    if chosen is None or not isinstance(strategy, Gradients | ParameterServer):
        return
    is_served = isinstance(strategy, ParameterServer)
    grouped = "param_groups" in (chosen.optimizer_params or {})
    wrong = [
        name
        for name, is_wrong in (
            ("lr_scheduler", is_served and chosen.lr_scheduler is not None),
            ("optimizer__param_groups", is_served and grouped),
            ("precision='fp16'", chosen.precision == "fp16"),
        )
        if is_wrong
    ]
    if not wrong:
        return
    reason = (
        "strategy='parameter_server' makes where the model lies"
        if is_served
        else "strategy='gradients' makes with all ranks together"
    )
    raise ValueError(
        f"{' and '.join(wrong)} of the module needs ranks that make steps of their "
        f"own, which {reason}; use another one"
    )


def check_partial(estimator: Any) -> None:
    """Refuse what `partial_fit` does not know the end of.

    Parameters
    ----------
    estimator : MPCAClassifier or MPCARegressor

    Raises
    ------
    ValueError
        It names the parameter.
    """
    chosen = as_torch(estimator.module)
    if estimator.early_stopping:
        raise ValueError("partial_fit does not support early_stopping=True")
    if chosen is not None and chosen.lr_scheduler is not None:
        raise ValueError(
            "partial_fit does not support lr_scheduler: each call is an epoch, of how "
            "many nobody knows; set learning_rate_init between the calls"
        )


# Parameters that cannot act ---------------------------------------------------------


def _with_module(estimator: Any) -> tuple[str, ...]:
    """There is no built-in network."""
    return () if estimator.module is None else ("module",)


def _without_hidden_layers(estimator: Any) -> tuple[str, ...]:
    """Only hidden units have an activation to choose."""
    return () if np.size(estimator.hidden_layer_sizes) else ("hidden_layer_sizes",)


def _with_own_step(estimator: Any) -> tuple[str, ...]:
    """The optimiser of a module may be told its step size."""
    chosen = as_torch(estimator.module)
    told = chosen is not None and "lr" in (chosen.optimizer_params or {})
    return ("module__optimizer__lr",) if told else ()


def is_planned(estimator: Any) -> bool:
    """Whether the sizes of steps depend on how many epochs there may be."""
    chosen = as_torch(estimator.module)
    if chosen is None or chosen.lr_scheduler is None:
        return bool(estimator.learning_rate == "cosine")
    params = (chosen.lr_scheduler_params or {}).values()
    return any(isinstance(value, str) and value == "auto" for value in params)


def _with_scheduler(estimator: Any) -> tuple[str, ...]:
    """A scheduler of torch changes the step sizes of a module."""
    chosen = as_torch(estimator.module)
    told = chosen is not None and chosen.lr_scheduler is not None
    return ("module__lr_scheduler",) if told else ()


def _without_scheduler(estimator: Any) -> tuple[str, ...]:
    """A module is trained at the estimator's own rate."""
    chosen = as_torch(estimator.module)
    has_none = chosen is not None and chosen.lr_scheduler is None
    return ("module__lr_scheduler",) if has_none else ()


def _without_transform(estimator: Any) -> tuple[str, ...]:
    """Rows reach the module as they are."""
    chosen, kinds = as_torch(estimator.module), ("train_transform", "eval_transform")
    has_none = chosen is not None and not any(getattr(chosen, k) for k in kinds)
    return tuple(f"module__{kind}" for kind in kinds) if has_none else ()


def _with_device(estimator: Any) -> tuple[str, ...]:
    """All ranks train on one device of their processes, which is named."""
    chosen = as_torch(estimator.module)
    is_named = chosen is not None and str(chosen.device) not in ("auto", "cuda")
    return ("module__device",) if is_named else ()


def _without_score(estimator: Any) -> tuple[str, ...]:
    """Nothing is scored during the fit."""
    return () if estimator.early_stopping else ("early_stopping",)


def _without_end(estimator: Any) -> tuple[str, ...]:
    """All epochs are made."""
    return ("tol",) if estimator.tol is None else ()


def _without_standstill(estimator: Any) -> tuple[str, ...]:
    """Rates that go down where the fit would end are constant where it does not."""
    return _without_end(estimator) if estimator.learning_rate == "adaptive" else ()


INACTIVE = (
    Inactive(
        (*OF_MLP, "power_t"),
        _with_module,
        "give the module or its optimizer what it stands for",
    ),
    Inactive(
        ("learning_rate_init",), _with_own_step, "leave the step size to one of them"
    ),
    Inactive(("learning_rate",), _with_scheduler, "leave the steps to one of them"),
    Inactive(
        ("module__lr_scheduler_params", "module__lr_scheduler_step"),
        _without_scheduler,
        "name a scheduler",
    ),
    Inactive(("module__transform_scope",), _without_transform, "give it a transform"),
    Inactive(("module__ranks_per_gpu",), _with_device, "leave the device to ranks"),
    Inactive(("activation",), _without_hidden_layers, "have a hidden layer"),
    Inactive(_OF_SGD, unless("solver", "sgd"), "set solver='sgd'"),
    Inactive(_OF_ADAM, unless("solver", "adam"), "set solver='adam'"),
    Inactive(
        ("power_t",),
        unless("learning_rate", "invscaling"),
        "set learning_rate='invscaling'",
    ),
    Inactive(("learning_rate",), _without_standstill, "set tol to a number"),
    Inactive(("n_iter_no_change",), _without_end, "set tol to a number"),
    Inactive(HELD_OUT.names, _without_score, HELD_OUT.cure),
)
