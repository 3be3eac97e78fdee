"""Parameters that do not go together."""

from __future__ import annotations

from typing import Any

from sklearn.base import is_classifier

from dask_ma.ma.sgd._steps import gradient_rate


def check_combinations(estimator: Any, passive_loss: str) -> None:
    """Refuse parameters of an estimator of which one makes no sense with another.

    Parameters
    ----------
    estimator : MASGDClassifier or MASGDRegressor
        Each of its parameters is in its range.
    passive_loss : str
        The loss that passive-aggressive steps are made for.

    Raises
    ------
    ValueError
        It names the parameters and what they are.
    """
    _check_steps(estimator, passive_loss)
    _check_paradigm(estimator)
    if estimator.refine is not None:
        _check_refine(estimator)
    if estimator.max_iter == 0 and estimator.refine not in ("newton", "lbfgs"):
        raise ValueError(
            f"The 'max_iter' parameter of {type(estimator).__name__} must be at least "
            "1 unless refine='newton' or refine='lbfgs', which can begin without a "
            f"round; got 0 with refine={estimator.refine!r}"
        )


def _check_steps(estimator: Any, passive_loss: str) -> None:
    """Step sizes against losses and penalties."""
    rate, makes_steps = estimator.learning_rate, estimator.max_iter > 0
    if rate == "auto" and estimator.paradigm == "gradient":
        rate = gradient_rate(is_classifier(estimator))
    if rate == "optimal" and estimator.alpha == 0 and makes_steps:
        raise ValueError(
            "alpha must be > 0 since learning_rate is 'optimal', which is "
            "1 / (alpha * t); got alpha=0"
        )
    if rate in ("pa1", "pa2") and estimator.loss != passive_loss:
        raise ValueError(
            f"learning_rate={rate!r} only works with loss={passive_loss!r}, got "
            f"loss={estimator.loss!r}"
        )


def _check_paradigm(estimator: Any) -> None:
    """What only one of the paradigms knows."""
    if estimator.paradigm == "model":
        if estimator.batch_fraction != 1:
            raise ValueError(
                "batch_fraction must be 1 with paradigm='model', whose rounds are "
                "shortened by local_epochs; got batch_fraction="
                f"{estimator.batch_fraction!r}"
            )
        return
    if estimator.local_epochs != "auto":
        raise ValueError(
            "local_epochs must be 'auto' with paradigm='gradient', which makes one "
            "update per round; batch_fraction says how many rows it looks at. Got "
            f"local_epochs={estimator.local_epochs!r}"
        )
    if estimator.learning_rate in ("pa1", "pa2"):
        raise ValueError(
            f"learning_rate={estimator.learning_rate!r} does not work with "
            "paradigm='gradient': passive-aggressive steps are made for a row each. "
            "Use 'invscaling', 'constant', 'adaptive' or 'optimal'"
        )


def _check_refine(estimator: Any) -> None:
    """What has no optimum to go to."""
    if estimator.refine == "auto":
        return
    if estimator.loss == "perceptron":
        raise ValueError(
            f"refine={estimator.refine!r} goes on to the optimum of the objective, "
            "which is zero for loss='perceptron'; use refine='auto' or refine=None "
            "with it, or loss='hinge'"
        )
    if estimator.early_stopping:
        raise ValueError(
            f"early_stopping must be False with refine={estimator.refine!r}, which "
            "goes on to the optimum of the objective; got early_stopping=True"
        )
