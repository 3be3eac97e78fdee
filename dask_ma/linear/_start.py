"""The intercept that SGD starts from: the mean of targets that are values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dask_ma.data import Shard
from dask_ma.linear._model import LinearParams
from dask_ma.supervised._problem import Problem

Measure = Callable[[Shard], np.ndarray]


def starts_at_mean(params: LinearParams) -> bool:
    """Whether a fit without a model to start from has the mean of y as its intercept.

    Losses of a slope that has a bound would walk there, in steps that become shorter.
    A loss of the user's own may mean something else by a value.
    """
    is_given = params.coef is not None or params.intercept is not None
    is_value = not params.is_classifier and isinstance(params.loss, str)
    return is_value and params.fit_intercept and not is_given


def with_targets(measure: Measure | None) -> Measure:
    """What measures a rank's rows, and also sums up its targets and their weights."""

    def both(shard: Shard) -> np.ndarray:
        own = _target_sums(shard)
        return own if measure is None else np.concatenate([measure(shard), own])

    return both


def at_mean(problem: Problem) -> Problem:
    """The problem with a level to start from, by what :func:`with_targets` measured."""
    if problem.measured is None:
        raise RuntimeError("the targets have not been summed up")
    *others, total, weight = problem.measured.tolist()
    with np.errstate(all="ignore"):
        mean = float(np.float64(total) / weight)
    level = mean if np.isfinite(mean) else 0.0
    return replace(problem, level=level, measured=np.array(others) if others else None)


@np.errstate(over="ignore", invalid="ignore")
def _target_sums(shard: Shard) -> np.ndarray:
    """Weighted sum of the targets of all rows at once, however they are cut."""
    if not shard.blocks:
        return np.zeros(2)
    targets = np.concatenate([block.y for block in shard.blocks])
    weights = np.concatenate([block.weights() for block in shard.blocks])
    weights = weights.astype(np.float64, copy=False)
    return np.array([weights @ targets, weights.sum()])
