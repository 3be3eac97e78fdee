"""Parameters of a metric learner, as sent to every rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_ma.kernels import MetricLoss
from dask_ma.kernels.prox import L1, L2, NoPenalty, Prox, TraceNorm
from dask_ma.sfb.exchange._settings import RunSettings
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
    batch_size : int
        Rows, or pairs, of a batch of all ranks.
    tuples : Tuples or None
        Pairs or triplets to learn from; None for labels.
    start : ndarray of shape (n_components, n_features) or None
        Components to go on from.
    is_partial : bool
        Whether this is a step of `partial_fit`, the number of which nobody knows.
    iteration, n_passes : int
        Iterations and passes that have been made by then.
    steps : dict or None
        What the optimiser goes on from; None for nothing.
    settings : RunSettings
        How the ranks exchange.
    """

    n_components: int
    loss: str
    margin: float
    push_weight: float
    init: Any
    penalty: str
    alpha: float
    max_iter: int | str
    tol: float | None
    batch_size: int
    optimizer: str
    eta0: float | str
    learning_rate: str
    early_stopping: bool
    validation_fraction: float
    n_iter_no_change: int
    settings: RunSettings
    tuples: Tuples | None = None
    start: np.ndarray | None = None
    is_partial: bool = False
    iteration: int = 0
    n_passes: int = 0
    steps: dict[str, Any] | None = None

    @property
    def metric_loss(self) -> MetricLoss:
        """The loss with its numbers."""
        return MetricLoss(self.loss, self.margin, self.push_weight)

    @property
    def prox(self) -> Prox:
        """Prox operator of the penalty."""
        return _PENALTIES[self.penalty](self.alpha) if self.alpha else NoPenalty()

    @property
    def held_out(self) -> float:
        """Share of rows or pairs that are not trained on."""
        return self.validation_fraction if self.early_stopping else 0.0
