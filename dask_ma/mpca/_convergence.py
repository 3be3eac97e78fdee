"""Words for the user on fits that have not settled, or have learned little."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import is_classifier

from dask_ma.mpca.training._params import LITTLE_EXPLAINED, MPCAResult

_WORSE = 1.1  # times the loss of a constant model: more than chance makes of it
_YOUNG = 10.0  # the same in the first epochs, which begin wherever the values are


def unconverged(estimator: Any, result: MPCAResult) -> str | None:
    """What scikit-learn warns of if `tol` was not reached, or if it says little.

    Parameters
    ----------
    estimator : MPCAClassifier or MPCARegressor
        What was fitted.
    result : MPCAResult
        What came back.

    Returns
    -------
    message : str or None
        None if all is well.
    """
    describe = _classified if is_classifier(estimator) else _explained
    ended, poor = _ended(estimator, result), describe(estimator, result)
    if ended is None:
        return poor
    return ended if poor is None else f"{ended}. Besides, {poor}"


def _ended(estimator: Any, result: MPCAResult) -> str | None:
    """Whether the fit had to end."""
    is_over = result.fitted["n_iter"] >= estimator.max_iter and not result.converged
    if estimator.tol is None or not is_over:
        return None
    return (
        f"the maximum of {estimator.max_iter} epochs was reached before the loss "
        "settled; raise max_iter, or set tol=None if this is wanted"
    )


def _explained(estimator: Any, result: MPCAResult) -> str | None:
    """Whether the last losses of a regression tell little of the targets' variance."""
    curve, (constant, unlearned) = result.fitted["loss_curve"], result.baseline
    if not constant > 0 or not len(curve):
        return None
    allowed = constant
    if not result.converged and _is_young(estimator, result):
        # A model to go on from begins wherever it is.
        allowed = np.inf if estimator.warm_start else unlearned * _YOUNG / _WORSE
    loss = _last_loss(estimator, result)
    if loss > _WORSE * allowed:
        return _behind_the_mean(estimator, loss, constant)
    # Of a module it is not known where it begins.
    if estimator.tol is None or estimator.module is not None:
        return None
    recent = curve[-estimator.n_iter_no_change :]
    explained = 1 - sum(recent) / len(recent) / constant
    if explained >= LITTLE_EXPLAINED:
        return None
    settled = "the loss does not fall any more, but " if result.converged else ""
    cure = "raise learning_rate_init, or set a smaller tol"
    return (
        f"{settled}the network explains only {max(0.0, explained):.1%} of the variance "
        "of the training targets; if there is more to learn, scale the features, "
        + (cure if result.converged else "or raise learning_rate_init")
    )


def _behind_the_mean(estimator: Any, loss: float, constant: float) -> str:
    """What to say of a regression that is worse than the mean of its targets."""
    found = (
        f"the last training losses are {loss:.3g} or more, and it takes {constant:.3g} "
        "to predict the mean of y for all rows"
    )
    if estimator.module is None:
        return f"{found}; scale the features, or lower learning_rate_init"
    return (
        f"{found}; standardise y, as sklearn.compose.TransformedTargetRegressor does, "
        "and the features, or try other values of learning_rate_init"
    )


def _last_loss(estimator: Any, result: MPCAResult) -> float:
    """The least one that the model may have; there must be some."""
    # Early stopping takes the model of the best epoch, whichever that was.
    first = 0 if estimator.early_stopping else -estimator.n_iter_no_change
    return min(result.fitted["loss_curve"][first:])


def _is_young(estimator: Any, result: MPCAResult) -> bool:
    """Whether all epochs are first ones."""
    return len(result.fitted["loss_curve"]) <= estimator.n_iter_no_change


def _classified(estimator: Any, result: MPCAResult) -> str | None:
    """Whether the last losses of a classification are above those of no features."""
    constant, unlearned = result.baseline
    if not constant > 0 or not len(result.fitted["loss_curve"]):
        return None
    loss, allowed = _last_loss(estimator, result), constant
    if not result.converged:
        is_young = _is_young(estimator, result)
        allowed = unlearned * (_YOUNG / _WORSE if is_young else 1)
    if not loss > _WORSE * allowed:
        return None
    found = (
        f"the last training losses are {loss:.3g} or more, and it takes {constant:.3g} "
        "to predict the frequencies of the classes for all rows"
    )
    if loss > _WORSE * unlearned:
        return f"{found}; lower learning_rate_init, or scale the features"
    return f"{found}; scale the features, raise learning_rate_init, or lower tol"
