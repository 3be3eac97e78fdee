"""Parameters of a metric learner: those of a rank, and which of them go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_ma._settings import Inactive, unless
from dask_ma.kernels import MetricLoss
from dask_ma.kernels.prox import L1, L2, NoPenalty, Prox, TraceNorm
from dask_ma.linear import HELD_OUT
from dask_ma.sfb.exchange._settings import COMMUNICATION, RunSettings
from dask_ma.sfb.model._pairs import Tuples
from dask_ma.supervised import ProblemParams

_PENALTIES: dict[str, Callable[[float], Prox]] = {
    "l1": L1,
    "l2": L2,
    "trace": TraceNorm,
}


@dataclass(frozen=True, kw_only=True)
class MetricParams(ProblemParams):
    """Parameters of one fit, under the names of the estimator.

    Parameters
    ----------
    n_components : int
        Rows of the matrix that is learnt: 1 of a diagonal, which is kept as a vector.
    tuples : Tuples or None
        Pairs or triplets to learn from; None for labels.
    start : ndarray of shape (n_components, n_features) or None
        Components to go on from.
    is_partial : bool
        Whether this is a step of `partial_fit`, the number of which nobody knows.
    link_bandwidth : float
        Bytes a second between two ranks, for choices.
    most_moved : int
        Bytes of rows up to which they may go to other ranks.
    is_grouped : bool
        Whether batches of many rows are made of groups; see :class:`Plan`.
    iteration, n_passes : int
        Iterations and passes that have been made by then.
    steps : dict or None
        What the optimiser goes on from; None for nothing.
    settings : RunSettings
        How the ranks train and exchange.
    """

    n_components: int
    metric_form: str
    loss: str
    margin: float
    push_weight: float
    init: Any
    penalty: str
    alpha: float
    max_iter: int | str
    tol: float | None
    optimizer: str
    eta0: float | str
    learning_rate: str
    early_stopping: bool
    validation_fraction: float
    n_iter_no_change: int
    settings: RunSettings
    link_bandwidth: float
    most_moved: int
    tuples: Tuples | None = None
    start: np.ndarray | None = None
    is_partial: bool = False
    is_grouped: bool = False
    iteration: int = 0
    n_passes: int = 0
    steps: dict[str, Any] | None = None

    @property
    def metric_loss(self) -> MetricLoss:
        """The loss with its numbers."""
        return MetricLoss(self.loss, self.margin, self.push_weight)

    @property
    def is_diagonal(self) -> bool:
        """Whether features are weighed, and not mixed."""
        return self.metric_form == "diagonal"

    @property
    def prox(self) -> Prox:
        """Prox operator of the penalty."""
        if self.is_diagonal and self.penalty == "trace" and self.alpha:
            return L1(self.alpha)  # of a diagonal, the same
        return _PENALTIES[self.penalty](self.alpha) if self.alpha else NoPenalty()

    @property
    def held_out(self) -> float:
        """Share of rows or pairs that are not trained on."""
        return self.validation_fraction if self.early_stopping else 0.0


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
    if estimator.metric_form == "diagonal":
        _check_diagonal(estimator, exchange.content)
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


def _check_diagonal(estimator: Any, content: str) -> None:
    """Refuse what needs a matrix with rows that mix features."""
    init = estimator.init
    if content == "outputs":
        raise ValueError(
            "communication='outputs' shares out components, of which "
            "metric_form='diagonal' has none; set communication='factors', which sends "
            "one number for each feature"
        )
    if isinstance(init, str) and init in ("pca", "lda"):
        raise ValueError(
            f"init={init!r} mixes features, which metric_form='diagonal' only weighs; "
            "set init='identity' or 'random', or metric_form='low_rank'"
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
        ("n_components",),
        unless("metric_form", "low_rank"),
        "set metric_form='low_rank'",
    ),
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
