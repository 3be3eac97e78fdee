"""Features of a small scale, which early stopping leaves before steps have moved them.

Steps must suit the features of the largest scale. Those of a feature a thousand times
as small take a million times as long: a score that does not rise meanwhile says
nothing of it. That the fit has left a feature behind shows in the slopes of the losses,
which are the more correlated with it the more it would still tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.data import Block, Shard
from dask_ma.kernels import (
    chunked_predictions,
    log_loss_of,
    loss_slopes,
    moment_sums,
    one_vs_rest_targets,
    transposed,
)
from dask_ma.linear._model import LinearModel, LinearParams
from dask_ma.supervised._problem import Problem

SlopesOf = Callable[[np.ndarray, np.ndarray], np.ndarray]

_SMALL = 0.1  # of the root of the mean square of the largest feature
_LEAST = 0.25  # correlation that a fit does not leave where features are of a scale
# Times what the largest correlation of so many features may be by chance.
_CHANCE = 2.0
_ROUNDING = 1e-10  # of a mean square: a variance that is less may be none


def note_on_scales(
    group: Group,
    problem: Problem,
    model: LinearModel,
    params: LinearParams,
    *,
    is_softmax: bool = False,
    numbers: np.ndarray | None = None,
) -> str | None:
    """What the user is to know of features that a fit has left behind; collective.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        The rows to train on.
    model : LinearModel
        What the fit has ended with; the same on all ranks.
    params : LinearParams
        Parameters of the fit.
    is_softmax : bool, default=False
        Whether the loss is the log loss of all classes together.
    numbers : ndarray of int, shape (n_features,), or None, default=None
        Numbers of the features, where they are some of those of X.

    Returns
    -------
    note : str or None
        None where the fit is not one that early stopping has ended, or all is well.
    """
    if not params.early_stopping or params.tol is None:
        return None
    slopes_of = _softmax_slopes(problem) if is_softmax else _slopes_of(problem, params)
    sums = allreduce(group, _sums(problem.shard, model, slopes_of))
    mean, square, products, slope, slope_square = (
        array / problem.total_weight for array in sums
    )
    if not params.fit_intercept:
        mean, slope = np.zeros_like(mean), np.zeros_like(slope)
    variance = square - mean**2
    largest = int(np.argmax(square))
    limit = (_SMALL**2) * square[largest]
    is_small = (variance > _ROUNDING * square) & (variance < limit)
    spread = np.sqrt(np.maximum(slope_square - slope**2, 0.0))
    left = _left(products - np.outer(slope, mean), model, params)
    scale = np.outer(spread, np.sqrt(np.where(is_small, variance, 1.0)))
    part = np.divide(left, scale, out=np.zeros_like(scale), where=scale > 0)
    part[:, ~is_small] = 0.0
    most, worst = float(part.max(initial=0.0)), int(part.max(axis=0).argmax())
    chance = np.sqrt(2 * np.log(max(2, len(mean))) / problem.total_rows)
    if not most > max(_LEAST, _CHANCE * chance):
        return None
    ratio = np.sqrt(square[largest] / variance[worst])
    if numbers is not None:
        worst, largest = int(numbers[worst]), int(numbers[largest])
    return (
        f"early_stopping has ended the fit before it came to features of a small scale:"
        f" what it leaves has a correlation of {most:.2f} with feature {worst}, whose "
        f"standard deviation is {ratio:.2g} times smaller than the values of feature "
        f"{largest}. Scale the features, for example with "
        "sklearn.preprocessing.StandardScaler, or MaxAbsScaler where X is sparse, or "
        "set early_stopping=False"
    )


def _left(products: np.ndarray, model: LinearModel, params: LinearParams) -> np.ndarray:
    """Derivatives by the coefficients, without what the penalty weighs up."""
    share = {"l1": 1.0, "elasticnet": params.l1_ratio}.get(params.penalty or "", 0.0)
    alpha = params.alpha if params.penalty in ("l1", "l2", "elasticnet") else 0.0
    gradient = products + alpha * (1 - share) * model.coef
    held = alpha * share
    gradient -= np.clip(gradient, -held, held)
    # A penalty that pulls is none of what features would still tell.
    return np.minimum(np.abs(products), np.abs(gradient))


def _slopes_of(problem: Problem, params: LinearParams) -> SlopesOf:
    """Derivatives of the loss, of each class against the rest."""

    def slopes(y: np.ndarray, p: np.ndarray) -> np.ndarray:
        if params.is_classifier:
            y = one_vs_rest_targets(y, problem.n_problems).reshape(p.shape)
        return loss_slopes(params.loss, y, p, params.epsilon)

    return slopes


def _softmax_slopes(problem: Problem) -> SlopesOf:
    """Derivatives of the log loss of all classes together."""
    loss = log_loss_of(problem.n_problems)
    return lambda y, p: loss.slope(loss.targets(y), p)


@np.errstate(over="ignore", invalid="ignore")
def _sums(shard: Shard, model: LinearModel, slopes_of: SlopesOf) -> list[np.ndarray]:
    """This rank's sums of features, slopes, their squares and their products."""
    n_problems, n_features = model.coef.shape
    moments, products = np.zeros((2, n_features)), np.zeros((n_problems, n_features))
    slopes = np.zeros((2, n_problems))
    for block in shard.read():
        moments += moment_sums(block.X, block.sample_weight)
        for X, own, weighted in _weighted(block, model, slopes_of):
            products += (transposed(X) @ weighted).T
            slopes += weighted.sum(axis=0), (weighted * own).sum(axis=0)
    return [*moments, products, *slopes]


def _weighted(block: Block, model: LinearModel, slopes_of: SlopesOf) -> Any:
    """Some rows of a block at a time, with slopes and slopes times weights."""
    weights = block.weights().astype(np.float64, copy=False)
    for rows, p in chunked_predictions(block.X, *model):
        slopes = slopes_of(block.y[rows], p).reshape(len(p), -1)
        yield block.X[rows], slopes, slopes * weights[rows, np.newaxis]
