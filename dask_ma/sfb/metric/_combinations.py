"""Parameters of a metric learner that do not go together, or cannot act."""

from __future__ import annotations

from typing import Any

from dask_ma._settings import Inactive, unless
from dask_ma.linear import HELD_OUT
from dask_ma.sfb.exchange._settings import COMMUNICATION


def check_combinations(estimator: Any) -> None:
    """Refuse parameters of which one makes no sense with another.

    Parameters
    ----------
    estimator : SFBMetricLearner
        Each of its parameters is in its range.

    Raises
    ------
    ValueError
        It names the parameters and what they are.
    """
    exchange = COMMUNICATION.as_object(estimator.communication)
    if estimator.optimizer == "adam" and not exchange._is_in_step:
        raise ValueError(
            "optimizer='adam' needs the gradients of all ranks in each step, but "
            f"communication is {exchange!r}, with which ranks do not wait for each "
            "other, or do not send to all; set optimizer='sgd'"
        )
    if estimator.optimizer == "adam" and estimator.penalty != "l2":
        raise ValueError(
            f"penalty={estimator.penalty!r} needs steps in proportion to the gradient, "
            "by which its proximal operator is defined; set optimizer='sgd'"
        )


def _without_pass(estimator: Any) -> tuple[str, ...]:
    """Fits that make all passes."""
    return ("tol",) if estimator.tol is None else ()


def _without_peers(estimator: Any) -> tuple[str, ...]:
    """Each rank sends to all others, and nothing is passed on."""
    is_whole = COMMUNICATION.as_object(estimator.communication).broadcast is None
    return ("communication__broadcast",) if is_whole else ()


def _without_penalty(estimator: Any) -> tuple[str, ...]:
    """A penalty that weighs nothing."""
    return ("alpha",) if not estimator.alpha else ()


def _in_step(estimator: Any) -> tuple[str, ...]:
    """Ranks have the same matrix all the time."""
    names = ("communication__staleness", "communication__broadcast")
    is_in_step = COMMUNICATION.as_object(estimator.communication)._is_in_step
    return names if is_in_step else ()


INACTIVE = (
    Inactive(
        ("margin",),
        unless("loss", "hinge", "logistic", "triplet"),
        "set loss='hinge', 'logistic' or 'triplet'",
    ),
    Inactive(("push_weight",), unless("loss", "hinge"), "set loss='hinge'"),
    Inactive(("penalty",), _without_penalty, "set alpha above 0"),
    HELD_OUT,
    Inactive(("n_iter_no_change",), _without_pass, "set tol"),
    Inactive(
        ("communication__relay",),
        _without_peers,
        "say in broadcast to whom ranks send",
    ),
    Inactive(
        ("communication__averaging",),
        _in_step,
        "set staleness or broadcast, with which matrices of ranks differ",
    ),
)
