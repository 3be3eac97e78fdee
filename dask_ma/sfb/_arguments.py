"""Arguments of a run, checked, and described for checkpoints."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from dask_ma.engine import as_text, describe_program
from dask_ma.sfb.exchange._settings import (
    COMMUNICATION,
    Exchange,
    RunSettings,
    check_exact,
)
from dask_ma.sfb.model._model import FactorModel, view_of
from dask_ma.sfb.model._pairs import Tuples, check_tuples, known_length


def check_model(model: Any) -> None:
    """Refuse what is no model."""
    if not isinstance(model, FactorModel):
        raise TypeError(
            "model must be an object of a subclass of dask_ma.sfb.FactorModel, got "
            f"{model!r}"
        )


def exchange_for(model: FactorModel, communication: str | Exchange) -> Exchange:
    """The exchange that is asked for, if the model can have it."""
    exchange: Exchange = COMMUNICATION.as_object(communication)
    exchange.check()
    if view_of(model) is not None:
        check_dual(model, exchange)
    return exchange


def n_targets_of(y: Any) -> int | None:
    """Columns of targets; None for one dimension, or one column."""
    shape = y.shape if hasattr(y, "shape") else np.shape(y)
    return int(shape[1]) if len(shape) == 2 and shape[1] > 1 else None


def check_dual(model: FactorModel, exchange: Exchange) -> None:
    """Refuse what a model with a dual operator cannot have."""
    name = type(model).__name__
    check_exact(exchange, f"{name}.dual_operator")
    if model.fit_intercept:
        raise ValueError(
            f"{name}.fit_intercept is True, but a dual operator needs a penalty on all "
            "parameters; set it to False, and give X a column of ones"
        )
    if not model.averages:
        raise ValueError(
            f"{name}.averages is False, but dual sums are divided by the rows of all "
            "ranks; leave it at True"
        )


def tuples_of(
    pairs: Any, pair_labels: Any, X: Any, y: Any, sample_weight: Any
) -> Tuples | None:
    """Pairs to go over, checked as far as this process can."""
    if pairs is None:
        if pair_labels is not None:
            raise ValueError("pair_labels are those of pairs; pass pairs, too")
        return None
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ValueError(
                f"{name} cannot be used with pairs: batches have pairs, and "
                "pair_labels as their y"
            )
    return check_tuples(pairs, pair_labels, known_length(X))


def describe_run(
    model: FactorModel, settings: RunSettings, tuples: Tuples | None
) -> dict[str, str]:
    """What a checkpoint must share with a run that goes on from it."""
    own = describe_program(
        model,
        communication=as_text(settings.exchange),
        batch_size=settings.batch_size,
        shuffle=settings.shuffle,
        matrix_dtype=settings.dtype,  # beside that of the rows
        learning_rate=model.learning_rate,
        fit_intercept=model.fit_intercept,
    )
    for name, value in describe_program(model.prox).items():
        own[name.replace("program", "prox", 1)] = value
    if tuples is not None:
        own["pairs"] = as_text(tuples.rows)
        own["pair_labels"] = as_text(tuples.labels)
    return own


def check_tol(tol: Any) -> None:
    """Refuse what is neither None nor a number from 0 on."""
    if tol is None:
        return
    if not isinstance(tol, Real) or isinstance(tol, bool):
        raise TypeError(f"tol must be a number or None, got {tol!r}")
    if not 0 <= float(tol) < np.inf:
        raise ValueError(f"tol must be finite and at least 0, got {tol}")
