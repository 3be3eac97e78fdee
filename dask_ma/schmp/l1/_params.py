"""Parameters of an L1-regularised fit, as sent to every rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dask_ma.schmp.schedules._schedules import CandidateSchedule
from dask_ma.supervised import ProblemParams


@dataclass(frozen=True, kw_only=True)
class SchMPParams(ProblemParams):
    """Parameters of an L1-regularised fit, under the names of the estimators.

    Parameters
    ----------
    is_alpha_of_sum : bool
        Whether the losses are added up, not averaged, beside `alpha`, as C of
        scikit-learn has it: `alpha` is then to be divided by the sum of the weights.
    schedule : CandidateSchedule or None
        None for working sets.
    link_bandwidth : float
        Bytes a second between two ranks, for the choice of the layout.
    start : dict or None
        Model to start from: `coordinates`, `coef` and `intercept`. None starts from
        zeros.
    """

    alpha: float
    l1_ratio: float
    fit_intercept: bool
    max_iter: int
    tol: float
    positive: bool = False
    layout: str
    link_bandwidth: float
    schedule: CandidateSchedule | None = None
    polish: bool = True
    is_alpha_of_sum: bool = False
    feature_weights: np.ndarray | None = field(default=None, repr=False)
    start: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def n_rounds(self) -> int:
        """Gradients over all features to expect; coordinate descent makes few."""
        return 6 if self.schedule is None else 0
