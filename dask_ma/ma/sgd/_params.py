"""Parameters of model averaging: those of a fit, and which of them go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dask_ma._settings import Inactive
from dask_ma.linear import (
    EPSILON,
    HELD_OUT,
    L1_RATIO,
    RefineParams,
    check_loss,
    gain_to_go_on,
    has_optimum,
    loss_name,
    may_hand_over,
)
from dask_ma.linear.refine import Penalty
from dask_ma.linear.refine import unrefined_by as _unrefined_by
from dask_ma.ma._paradigm import PARADIGM, Gradients, Models, by_gradients, is_gradient


@dataclass(frozen=True, kw_only=True)
class FitParams(RefineParams):
    """Parameters of one fit by model averaging.

    The names are those of :class:`~dask_ma.MASGDClassifier`; the rest is listed here.

    Parameters
    ----------
    eta : float or None
        Step size to go on with where ``learning_rate="auto"`` has found one before.
    mean : tuple of (ndarray, ndarray, float, float) or None
        A mean of models to go on with: coefficients, intercepts, and how many rows and
        rounds have gone into it.
    join_limit : int
        Bytes up to which blocks are joined.
    link_bandwidth : float
        Bytes a second from one worker to another.
    """

    learning_rate: str
    eta0: float
    power_t: float
    average: bool | int
    local_epochs: float | str
    shuffle: bool | str
    paradigm: Models | Gradients
    join_limit: int
    link_bandwidth: float
    eta: float | None = None
    mean: tuple[np.ndarray, np.ndarray, float, float] | None = field(
        default=None, repr=False
    )

    @property
    def is_balanced(self) -> bool:
        """Whether step sizes are found by trial and shrink with the objective."""
        return self.learning_rate == "auto" and isinstance(self.paradigm, Models)

    @property
    def hands_over(self) -> bool:
        """Whether the rounds end with the first pass that brings little.

        The refinement goes on faster than such passes, unless L1 is in its way or it
        has too few rounds.
        """
        goes_on = may_hand_over(self) and is_refined(self)
        return goes_on and self.is_balanced and not penalty_weights(self)[1]

    @property
    def least_gain(self) -> float | None:
        """Part of the objective by which a pass must improve it for SGD to go on."""
        return gain_to_go_on(self.tol) if self.hands_over else self.tol


def gradient_rate(is_classifier: bool) -> str:
    """What "auto" stands for where a round is one step, on which nothing is tried."""
    return "optimal" if is_classifier else "invscaling"


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
    check_loss(estimator)
    _check_steps(estimator, passive_loss)
    _check_passive(estimator)
    _check_evaluation(estimator)
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
    rate, makes_steps = _rate(estimator), estimator.max_iter > 0
    if rate == "optimal" and estimator.alpha == 0 and makes_steps:
        raise ValueError(
            "alpha must be > 0 since learning_rate is 'optimal', which is "
            "1 / (alpha * t); got alpha=0"
        )
    if rate in ("pa1", "pa2") and loss_name(estimator.loss) != passive_loss:
        raise ValueError(
            f"learning_rate={rate!r} only works with loss={passive_loss!r}, got "
            f"loss={estimator.loss!r}"
        )


def _check_passive(estimator: Any) -> None:
    """Steps that the sum of the gradients is not made for."""
    is_passive = estimator.learning_rate in ("pa1", "pa2")
    if is_passive and is_gradient(estimator.paradigm):
        raise ValueError(
            f"learning_rate={estimator.learning_rate!r} does not work with "
            f"paradigm={estimator.paradigm!r}: passive-aggressive steps are made for a "
            "row each. Use 'invscaling', 'constant', 'adaptive' or 'optimal'"
        )


def _check_evaluation(estimator: Any) -> None:
    """What looks at evaluations, where there is none but the last."""
    every = PARADIGM.as_object(estimator.paradigm).evaluate_every
    if every > 0 or estimator.max_iter == 0:
        return
    refused = {
        "tol": (estimator.tol is not None, "tol=None"),
        "early_stopping": (estimator.early_stopping, "early_stopping=False"),
        "learning_rate": (
            _rate(estimator) in ("auto", "adaptive"),
            "'constant', 'optimal' or 'invscaling'",
        ),
    }
    for name, (is_refused, cure) in refused.items():
        if is_refused:
            raise ValueError(
                f"{name}={getattr(estimator, name)!r} looks at evaluations after "
                f"passes, and paradigm__evaluate_every={every} has none but that of "
                f"the last round; use {cure}, or evaluate_every above 0"
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


# Parameters that cannot act ---------------------------------------------------------


def unrefined_by(params: Any) -> tuple[str, ...]:
    """Parameters because of which no refinement follows the rounds; none if one does.

    Passive-aggressive steps, and the perceptron, whose optimum is zero, do not aim at
    the optimum of the training objective; the baseline is there to compare with.
    """
    return _unrefined_by(
        params,
        paradigm=is_gradient(params.paradigm),
        learning_rate=params.learning_rate in ("pa1", "pa2"),
        loss=not has_optimum(params.loss),
    )


def is_refined(params: Any) -> bool:
    """Whether the rounds are followed by a refinement."""
    return not unrefined_by(params)


def _rate(estimator: Any) -> str:
    """The learning rate; "auto" where some are tried."""
    from sklearn.base import is_classifier

    if estimator.learning_rate == "auto" and is_gradient(estimator.paradigm):
        return gradient_rate(is_classifier(estimator))
    return str(estimator.learning_rate)


def _without_rounds(estimator: Any) -> tuple[str, ...]:
    """Nothing but the refinement takes place."""
    return ("max_iter",) if estimator.max_iter == 0 else ()


def _unless_rate(*rates: str) -> Callable[[Any], tuple[str, ...]]:
    """Steps of other rates do not know the parameter."""

    def reason(estimator: Any) -> tuple[str, ...]:
        if _rate(estimator) in rates:
            return _without_rounds(estimator)
        is_chosen = estimator.learning_rate == "auto"
        return ("learning_rate", *(by_gradients(estimator) if is_chosen else ()))

    return reason


def _without_penalty(estimator: Any) -> tuple[str, ...]:
    """A weight of nothing, which makes no steps either."""
    sets_steps = _rate(estimator) == "optimal" and estimator.max_iter > 0
    is_told_twice = estimator.alpha == 0
    if estimator.penalty is not None or sets_steps or is_told_twice:
        return ()
    return ("penalty",)


def _without_patience(estimator: Any) -> tuple[str, ...]:
    """No round is too many where all are made, unless they are in vain."""
    if estimator.tol is None and unrefined_by(estimator):
        return ("tol",)
    return _without_rounds(estimator)


def _without_order(estimator: Any) -> tuple[str, ...]:
    """Sums do not depend on the order of the rows; "ranks" deals them out."""
    if estimator.shuffle == "ranks":
        return ()
    return by_gradients(estimator) or _without_rounds(estimator)


def _without_gradients(estimator: Any) -> tuple[str, ...]:
    """Models are added up by the refinement as well."""
    is_asked = is_gradient(estimator.paradigm)
    return _without_rounds(estimator) if is_asked else ()


INACTIVE = (
    L1_RATIO,
    EPSILON,
    HELD_OUT,
    Inactive(("alpha",), _without_penalty, "set penalty"),
    Inactive(
        ("eta0",),
        _unless_rate("constant", "invscaling", "adaptive", "pa1", "pa2"),
        "set learning_rate to one that begins with eta0, such as 'adaptive'",
    ),
    Inactive(
        ("power_t",), _unless_rate("invscaling"), "set learning_rate='invscaling'"
    ),
    Inactive(("n_iter_no_change",), _without_patience, "set tol to a number"),
    Inactive(("shuffle",), _without_order, "make rounds of paradigm='model'"),
    Inactive(
        ("local_epochs",),
        by_gradients,
        "batch_fraction says how many rows a round looks at",
    ),
    Inactive(
        ("paradigm",),
        _without_gradients,
        "set max_iter to the rounds that there may be",
    ),
    Inactive(
        ("paradigm__evaluate_every", "learning_rate", "average", "local_epochs"),
        _without_rounds,
        "set max_iter to the rounds that there may be",
    ),
    Inactive(
        ("tol",),
        # None asks for `max_iter` rounds, and gets them.
        lambda estimator: () if estimator.tol is None else _without_rounds(estimator),
        "set max_iter to the rounds that there may be",
    ),
    Inactive(
        ("refine_max_iter", "refine_tol"),
        unrefined_by,
        "set refine='newton' or refine='lbfgs'",
    ),
)


def penalty_weights(params: FitParams) -> Penalty:
    """Weights of ``||w||^2 / 2`` and of ``||w||_1``."""
    return Penalty.of(params.penalty, params.alpha, params.l1_ratio)
