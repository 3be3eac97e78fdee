"""The intercept that SGD starts from: the mean of targets that are far from zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dask_ma.data import Shard
from dask_ma.linear._model import LinearParams
from dask_ma.supervised._problem import Problem

Measure = Callable[[Shard], np.ndarray]

_ROUNDING = 64 * np.finfo(np.float64).eps  # of a mean, relatively
FAR = 4.0  # times as far as the best value may be from the mean of the targets


def reach_of(params: LinearParams, spread: float) -> float:
    """How far from the mean of targets of some deviation the best one value may be."""
    # Within a tube around targets that are few and far all values are as good.
    has_tube = str(params.loss).endswith("epsilon_insensitive")
    return spread + params.epsilon * has_tube


def may_start_at_mean(params: LinearParams) -> bool:
    """Whether a fit without a model to start from looks at how far the targets are.

    Losses of a slope that has a bound would walk there, in steps that become shorter.
    A loss of the user's own may mean something else by a value.
    """
    is_given = params.coef is not None or params.intercept is not None
    is_value = not params.is_classifier and isinstance(params.loss, str)
    return is_value and params.fit_intercept and not is_given


def with_targets(measure: Measure | None) -> Measure:
    """What measures a rank's rows, and sums up its targets and their squares."""

    def both(shard: Shard) -> np.ndarray:
        own = _target_sums(shard)
        return own if measure is None else np.concatenate([measure(shard), own])

    return both


def at_mean(problem: Problem, params: LinearParams) -> Problem:
    """The problem with the level to start from, by what :func:`with_targets` measured.

    Steps that go on from the mean of the targets have to take the values of columns
    that are not centred off it, which costs passes where SGD would reach both at once.
    So the level is the mean where targets are far from zero, and zero elsewhere.
    """
    if problem.measured is None:
        raise RuntimeError("the targets have not been summed up")
    *others, total, second, weight = problem.measured.tolist()
    with np.errstate(all="ignore"):
        mean, square = np.array([total, second]) / weight
        # What rounding leaves of it matters only where the mean is far anyway.
        spread = np.sqrt(np.maximum(square - mean**2, 0.0))
        is_far = np.isfinite(square) and abs(mean) > FAR * reach_of(params, spread)
    level = float(mean) if is_far else 0.0
    return replace(problem, level=level, measured=np.array(others) if others else None)


def rounding_of(problem: Problem, params: LinearParams) -> float:
    """Objective that the rounding of a level leaves where it fits all rows."""
    residual = _ROUNDING * abs(problem.level)
    return residual if params.loss == "epsilon_insensitive" else residual**2


@np.errstate(over="ignore", invalid="ignore")
def _target_sums(shard: Shard) -> np.ndarray:
    """Weighted sums of targets and squares of all rows, however they are cut."""
    if not shard.blocks:
        return np.zeros(3)
    targets = np.concatenate([block.y for block in shard.blocks])
    weights = np.concatenate([block.weights() for block in shard.blocks])
    weights = weights.astype(np.float64, copy=False)
    return np.array([weights @ targets, weights @ targets**2, weights.sum()])
